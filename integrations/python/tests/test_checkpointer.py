"""After restore() a checkpointer never raises: problems are a warning and a status."""

import logging
import os

import numpy as np
import pytest
import torch
from fake_job import Job, assert_equal_state, registrations, trained
from torch import nn

import unreft
import unreft.torch


@pytest.mark.parametrize("method", ["snapshot", "register", "fence", "wait_committed", "close"])
def test_problem_is_one_warning(store, caplog, method):
    job = Job(store)
    job.ck.restore()
    job.client.fail[method] = unreft.Unavailable("node 0: no daemon")
    for step in (1, 2, 3):
        job.step()
        job.ck.snapshot(step)
        job.ck.wait(step)
    job.ck.close()
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "no daemon" in warnings[0].getMessage()


def test_failing_extra_is_one_warning(store, caplog):
    def broken():
        raise RuntimeError("no position")

    job = Job(store, extras={"position": broken})
    job.ck.restore()
    assert not job.ck.snapshot(1) and not job.ck.snapshot(2)
    assert len(caplog.records) == 1
    assert "no position" in job.ck.status.last_problem


def test_registration_is_tried_again_but_not_at_once(store, monkeypatch):
    job = Job(store)
    job.ck.restore()
    now = [100.0]
    monkeypatch.setattr("unreft.torch.registered_tensors.time.monotonic", lambda: now[0])
    job.client.fail["register"] = unreft.Unavailable("node 0: no daemon")
    assert not job.ck.snapshot(1)
    assert not job.ck.snapshot(2)
    assert registrations(job) == 1
    job.client.fail.clear()
    now[0] += 1.5
    assert job.ck.snapshot(3)
    assert registrations(job) == 2
    assert job.ck.status.skipped == 2
    assert job.client.skipped == [
        (1, "node 0: no daemon"), (2, "its tensors have changed, and are being registered")
    ]


def test_a_skip_that_cannot_be_told_raises_nothing(store, caplog):
    job = Job(store)
    job.ck.restore()
    job.client.fail["skip_snapshot"] = TypeError("step: needed an int, found a str")
    assert not job.ck.snapshot("three")
    assert "'str' object cannot be interpreted as an integer" in caplog.text


@pytest.mark.parametrize("step", [np.int64(3), torch.tensor(3), np.arange(4)[3:].max()], ids=str)
def test_a_step_may_be_any_whole_number(store, step):
    job = trained(store)
    assert job.ck.snapshot(step)
    again = Job(store, seed=1)
    assert again.ck.restore() == 3


def test_memory_that_comes_late_is_waited_for_once(store, caplog):
    job = Job(store)
    job.ck.restore()
    job.client.fail["wait_ready"] = unreft.DeadlineExceeded("the memory of slot 0 is being filled")
    job.client.skip = "memory is not ready"
    assert not job.ck.snapshot(1)
    assert job.ck.status.skipped == 1 and caplog.text == ""
    job.client.skip = ""
    assert job.ck.snapshot(2)
    assert registrations(job) == 1


def test_closed_in_mid_snapshot_it_raises_nothing(store):
    job = Job(store, extras={"closing": lambda: job.ck.close()})
    job.ck.restore()
    job.ck.snapshot(1)
    assert not job.ck.snapshot(2)


def test_many_skips_are_one_warning(store, caplog):
    job = trained(store)
    job.client.skip = "no free slot"
    for step in range(3, 60):
        assert not job.ck.snapshot(step)
    assert len(caplog.records) == 1 and "no free slot" in caplog.text
    assert job.ck.status.skipped == 57


def test_a_missing_fence_is_said_at_once(store, caplog):
    job = trained(store)
    job.client.skip = "tensor 'w' changed since step 2 although nothing called fence()"
    for step in range(3, 6):
        assert not job.ck.snapshot(step)
    assert len(caplog.records) == 1 + 1  # and that training is unprotected
    assert "step 3 skipped: tensor 'w' changed" in caplog.text
    assert not job.ck.status.protecting and "tensor 'w'" in job.ck.status.why_unprotected
    job.client.skip = ""
    assert job.ck.snapshot(6)
    assert job.ck.status.protecting


def test_that_a_device_is_not_sampled_is_said_once(store, caplog):
    job = trained(store)
    job.client.status().unsampled = "no samples of them are compared: CUDA device 0: no nvcc"
    for step in range(3, 6):
        assert job.ck.snapshot(step)
    assert len(caplog.records) == 1
    assert "CUDA device 0: no nvcc; training goes on" in caplog.text
    assert job.ck.status.unsampled.endswith("no nvcc") and job.ck.status.protecting


def test_snapshot_needs_restore(store, caplog):
    job = Job(store)
    assert not job.ck.snapshot(1)
    assert "needs restore()" in caplog.text


def test_what_is_in_memory_may_be_passed_over(store):
    trained(store)
    job = Job(store, seed=5)
    before = {name: value.clone() for name, value in job.state().items()}
    job.ck.pass_over()
    assert_equal_state(job.state(), before)
    assert job.ck.status.restored_step is None
    job.step()
    assert job.ck.snapshot(9)
    other = Job(store, seed=6)
    assert other.ck.restore() == 9
    assert_equal_state(other.state(), job.state())


def test_status(store):
    job = trained(store)
    status = job.ck.status
    assert status.connected and status.protecting
    assert status.last_committed_step == 2 and status.started == 2
    assert status.last_problem == ""
    other = Job(store)
    other.ck.restore()
    assert other.ck.status.restored_step == 2
    assert not other.ck.status.protecting


def test_closed_is_inert(store):
    job = trained(store)
    job.ck.close()
    job.ck.close()
    job.client.calls.clear()
    with job.ck.fence():
        pass
    assert not job.ck.snapshot(3)
    assert job.client.calls == []


def test_forked_child_is_inert(store):
    job = trained(store)
    job.client.calls.clear()
    child = os.fork()
    if child == 0:
        with job.ck.fence():
            inert = not job.ck.snapshot(3) and not job.ck.wait(3) and not job.ck.status.connected
        job.ck.close()
        os._exit(0 if inert and not job.client.calls else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert job.ck.snapshot(3)


def test_not_required(monkeypatch, caplog):
    monkeypatch.setenv("UNREFT_SOCKET", "/nonexistent/unreftd.sock")
    model = nn.Linear(2, 2)
    with pytest.raises(unreft.Unavailable):
        unreft.torch.attach(model, connect_timeout_s=0.1)
    ck = unreft.torch.attach(model, required=False, connect_timeout_s=0.1)
    assert "unprotected" in caplog.text
    assert ck.restore() is None
    with ck.fence():
        assert not ck.snapshot(1)
    assert not ck.status.connected
    ck.close()
