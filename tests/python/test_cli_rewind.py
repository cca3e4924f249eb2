"""`unreft rewind`: the next attempt restores an older version that was kept, or nothing."""

import os
import signal

import pytest

from cli_testing import wait_until
from cluster_testing import train, up_nodes, wait_protected, wait_restored

FAILED = 1


def restart(job, attempt):
    os.kill(job.pids()[1], signal.SIGKILL)
    return wait_restored(job, attempt)


@pytest.fixture(params=["one node", "nodes"])
def pinned(cli, request):
    """A job that trains, and a step of it that is kept."""
    if request.param == "nodes":
        up_nodes(cli, "--pins", 1)
        job = train(cli)
        wait_protected(cli, job, 3)
    else:
        cli("up", "--", "--pins", "1")
        job = train(cli)
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
