"""Restoring an older version that was kept, or nothing: `unreft rewind`, and ranks that ask for
it."""

import os
import signal
import sys

import pytest

from cli_testing import TRAINER, wait_until
from cluster_testing import NODES, up_nodes, wait_protected, wait_restored

FAILED = 1


def restart(job, attempt):
    os.kill(job.pids()[1], signal.SIGKILL)
    return wait_restored(job, attempt)


@pytest.fixture
def wanted(tmp_path):
    """A file with the newest step that the ranks of the next attempt restore; none: any."""
    return tmp_path / "at_or_before"


@pytest.fixture(params=["one node", "nodes"])
def pinned(cli, request, wanted):
    """A job that trains, and a step of it that is kept."""
    command = ("--ranks", NODES, "--", sys.executable, TRAINER, "--at-or-before", wanted)
    if request.param == "nodes":
        up_nodes(cli, "--pins", 1)
        job = cli.launch(*command)
        wait_protected(cli, job, 3)
    else:
        cli("up", "--", "--pins", "1")
        job = cli.launch(*command)
        cli.wait_committed(job, 3)
    (pin,) = cli.json("pin", "--owner", "export", "--for", "2h")["pins"]
    cli.wait_committed(job, pin["step"] + 20)
    return cli, job, pin["step"]


def test_the_next_attempt_restores_what_was_ordered(pinned):
    cli, job, step = pinned
    can = cli.json("rewind")
    assert can["order"] is None
    assert step in [version["step"] for version in can["versions"]]
    (kept,) = [version for version in can["versions"] if version["step"] == step]
    assert kept["pinned_by"] == ["export"] and not kept["committed"]
    assert "restores the newest version" in cli("rewind")

    ordered = cli.json("rewind", "--to", step)
    assert ordered["order"]["step"] == step
    assert "unreft rewind" in cli("versions")
    cli.wait_committed(job, cli.committed() + 5)  # until then training goes on
    assert set(restart(job, attempt=1)) == {step}
    assert cli.json("rewind")["order"] is None
    cli.wait_committed(job, step + 1)
    # It is carried out once: what was trained since is not given up by another failure.
    assert min(restart(job, attempt=2)) > step


def test_what_was_ordered_can_be_taken_back(pinned):
    cli, job, step = pinned
    cli.json("rewind", "--to", step)
    assert cli.json("rewind", "--cancel")["order"] is None
    cli("rewind", "--cancel", code=FAILED)
    assert "nothing is ordered" in cli.stderr
    assert min(restart(job, attempt=1)) > step


def test_what_nobody_has_cannot_be_ordered(pinned):
    cli, job, step = pinned
    cli("rewind", "--to", step + 1, code=FAILED)
    assert f"rewind to step {step + 1}: no such version is whole" in cli.stderr
    assert f":{step}" in cli.stderr  # of those that are
    cli("rewind", "--to", step, "--cancel", code=2)
    wait_until("more commits", lambda: cli.committed() > step + 20)


def test_ranks_get_the_newest_step_of_those_that_they_ask_for(pinned, wanted):
    cli, job, step = pinned
    wanted.write_text(str(step + 1))
    assert set(restart(job, attempt=1)) == {step}
    wanted.unlink()
    cli.wait_committed(job, step + 1)
    assert min(restart(job, attempt=2)) > step


def test_ranks_that_ask_for_what_nobody_has_are_told_what_there_is(pinned, wanted):
    cli, job, step = pinned
    wanted.write_text(str(step - 1))
    os.kill(job.pids()[1], signal.SIGKILL)

    def told():
        output = job.output()
        return f"no version of step {step - 1} or an earlier one is whole" in output and output

    assert f":{step}" in wait_until("the ranks to be told", told)
    wanted.unlink()
    restored = wait_until("a restore", lambda: [
        line["restored"] for line in job.lines() if line.get("attempt", 0) > 1])
    assert restored[0] > step, "nothing was given up by what failed"
