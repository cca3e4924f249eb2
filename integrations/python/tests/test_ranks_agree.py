"""Two ranks, of which some reach no daemon: none hangs, none starts from zero in silence."""

import pathlib

import pytest
from real_store import Store

SCRIPT = pathlib.Path(__file__).with_name("agreeing_trainer.py")


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "60")
    yield made
    made.close()


def run(store, *args):
    return store.train(2, *args, script=SCRIPT)


def test_all_ranks_raise_and_name_the_one_without_a_daemon(store):
    for records in run(store, "--without", 1):
        assert records[-1]["error"] == "Unavailable"
        assert "1 of 2 ranks reach no daemon (rank 1)" in records[-1]["message"]
        assert "/nonexistent/1.sock" in records[-1]["message"]


def test_all_ranks_raise_what_is_wrong_on_one(store):
    records = run(store, "--bad-model", 1)
    assert records[1][-1]["error"] == "InvalidArgument"
    assert records[0][-1]["error"] == "Aborted"
    assert "rank 1 could not attach: tensor" in records[0][-1]["message"]


def test_no_daemon_at_all_is_one_line(store):
    records = run(store, "--without", 0, 1, "--not-required")
    lines = [record["line"] for rank in records for record in rank if "line" in record]
    assert len(lines) == 1 and "no rank reaches a daemon" in lines[0]
    for rank in records:
        assert rank[-2:] == [{"restored": 0}, {"committed": False, "protecting": False}]


def test_some_without_a_daemon_may_start_but_not_resume(store):
    records = run(store, "--without", 1, "--not-required")
    assert "rank 1" in records[0][0]["line"]
    assert [rank[-1]["committed"] for rank in records] == [False, False]
    assert [rank[-1]["committed"] for rank in run(store)] == [True, True]
    for rank in run(store, "--without", 0, "--not-required"):
        assert rank[-1]["error"] == "Unavailable"
        assert "an earlier run of this job has committed state" in rank[-1]["message"]
    # Nothing is lost by it.
    assert [rank[0]["restored"] > 0 for rank in run(store)] == [True, True]
