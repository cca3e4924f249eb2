"""unprotected_after: a job that ends itself for its launcher."""

import pytest
from fake_job import Job
from torch import nn

import unreft
import unreft.torch
from unreft.torch import reports
from unreft.torch.patience import Patience


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def committed(step):
    return unreft.Status(last_committed_step=step, protecting=step is not None)


def test_counts_from_the_first_snapshot_after_a_commit(clock):
    patience = Patience(60, clock)
    patience.look(1, committed(None))
    clock.now = 50
    patience.look(2, committed(1))
    clock.now = 1000  # an evaluation: no snapshot was asked for
    patience.look(3, committed(1))
    clock.now = 1060
    patience.look(4, committed(1))
    clock.now = 1061
    with pytest.raises(unreft.Unprotected, match="step 5: nothing after step 1 .* for 61 s"):
        patience.look(5, committed(1))


def test_names_why(clock):
    patience = Patience(10, clock)
    status = unreft.Status(why_unprotected="node 3: its slot has another memory")
    patience.look(1, status)
    clock.now = 11
    with pytest.raises(unreft.Unprotected, match="nothing was committed .*: node 3: its slot"):
        patience.look(2, status)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_limit_is_a_time(seconds):
    with pytest.raises(unreft.InvalidArgument, match="unprotected_after: needed a number"):
        unreft.torch.attach(nn.Linear(2, 2), unprotected_after=seconds)


def test_snapshot_raises_it_and_nothing_else(store, clock):
    job = Job(store)
    job.ck._patience = Patience(30, clock)
    job.ck.restore()
    assert job.ck.snapshot(1)
    job.client.fail["snapshot"] = unreft.Unavailable("the daemon is gone")
    assert not job.ck.snapshot(2)  # the commit of step 1 is news
    assert not job.ck.snapshot(3)
    clock.now = 31
    with pytest.raises(unreft.Unprotected, match="step 4"):
        job.ck.snapshot(4)


def test_also_where_snapshots_are_off_for_good(store, clock):
    job = Job(store)
    job.ck._patience = Patience(30, clock)
    job.ck.restore()
    job.client.fail["snapshot"] = unreft.PermissionDenied("another process is this rank by now")
    assert not job.ck.snapshot(1)
    assert not job.ck.snapshot(2)
    clock.now = 31
    with pytest.raises(unreft.Unprotected, match="another process is this rank"):
        job.ck.snapshot(3)


def test_it_is_said_again_each_time_that_the_period_has_doubled(clock, monkeypatch, caplog):
    monkeypatch.setattr(reports.time, "monotonic", clock)
    said = reports.Reports()
    said.look(committed(1))
    for second in range(1, 1000):
        clock.now = second
        said.look(unreft.Status(last_committed_step=1, why_unprotected="node 3 is out"))
    lines = [record for record in caplog.records if "node 3 is out" in record.getMessage()]
    # At 1, 61, 181, 421 and 901 s.
    assert len(lines) == 5


@pytest.mark.parametrize("snapshots_a_second, said_at", [(50, 10), (1, 21), (0.1, 70)])
def test_a_first_commit_has_time_however_fast_the_steps_are(clock, monkeypatch, caplog,
                                                            snapshots_a_second, said_at):
    monkeypatch.setattr(reports.time, "monotonic", clock)
    said = reports.Reports()
    period = 1 / snapshots_a_second
    while not caplog.records:
        said.look(unreft.Status(why_unprotected="rank 1 takes no snapshots"))
        clock.now += period
        assert clock.now < 100
    assert said_at <= clock.now <= said_at + 2 * period
    assert "unprotected: rank 1 takes no snapshots" in caplog.text
