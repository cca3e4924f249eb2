"""`unreft pin`: a committed version is kept on every node while training goes on."""

import os
import signal

import pytest

from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_protected, wait_restored

FAILED = 1


@pytest.fixture
def nodes(cli):
    return up_nodes(cli, "--pins", 1)


def held(cli, step):
    """What is held of that step, if anything is."""
    found = [v for v in cli.json("versions")["versions"] if v["step"] == step]
    return found[0] if found else None


def pin(cli, *words):
    (pinned,) = cli.json("pin", *words, "--for", "2h")["pins"]
    return pinned["step"]


def test_a_pinned_version_is_kept_on_every_node_until_it_is_unpinned(nodes):
    job = train(nodes)
    wait_protected(nodes, job, 2)
    step = pin(nodes, "--owner", "export")
    # Many more than there are slots.
    wait_protected(nodes, job, step + 20)
    version = held(nodes, step)
    assert version["whole"] and version["live"] and version["nodes"] == list(range(NODES))
    assert version["pinned_by"] == ["export"] and not version["committed"]
    assert "export" in nodes("versions")

    nodes("pin", "--owner", "nightly", "--for", "1m", code=FAILED)
    assert "1 pin slot needed, 0 of 1 free" in nodes.stderr and "'export'" in nodes.stderr
    nodes("pin", step - 1, "--owner", "export", "--for", "1m", code=FAILED)
    nodes("unpin", "--owner", "nightly", code=FAILED)
    # Every daemon starts again, and every rank: nothing of it is retired meanwhile.
    for node in range(NODES):
        nodes.json("inject", "kill-daemon", "--node", node)
    nodes.json("up")
    os.kill(job.pids()[1], signal.SIGKILL)
    restored = wait_restored(job, attempt=1)[0]
    assert restored > step
    wait_protected(nodes, job, restored + 20)
    version = held(nodes, step)
    assert version["whole"] and version["nodes"] == list(range(NODES))
    assert all(not node["bad"] for node in nodes.json("verify")["nodes"])

    assert [pin["step"] for pin in nodes.json("unpin", "--owner", "export")["pins"]] == [step]
    committed = nodes.committed()
    wait_protected(nodes, job, committed + 20)
    assert held(nodes, step) is None
    assert pin(nodes, "--owner", "nightly") > step


def test_a_pin_ends_by_itself(nodes):
    job = train(nodes)
    wait_protected(nodes, job, 2)
    (pinned,) = nodes.json("pin", "--owner", "export", "--for", "300ms")["pins"]
    assert pinned["for_ms"] == 300
    wait_until("its end", lambda: held(nodes, pinned["step"]) is None, PATIENCE_S)


def test_without_slots_for_it_nothing_is_pinned(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 2)
    cli("pin", "--owner", "export", "--for", "1m", code=FAILED)
    assert "0 of 0 free" in cli.stderr and "--pins" in cli.stderr
    cli("pin", "--owner", "export", code=2)
    cli("pin", "--for", "1m", code=2)


def test_in_a_job_of_one_node(cli):
    cli("up", "--", "--pins", 1)
    cli("pin", "--owner", "export", "--for", "1m", code=FAILED)
    assert "nothing is committed" in cli.stderr
    job = cli.train()
    cli.wait_committed(job, 2)
    step = pin(cli, "--owner", "export")
    cli.wait_committed(job, step + 20)
    assert held(cli, step)["pinned_by"] == ["export"]
    cli("inject", "kill-daemon")
    cli("up", "--", "--pins", 1)
    cli.wait_committed(job, cli.committed() + 20)
    assert held(cli, step)["pinned_by"] == ["export"]
    cli("unpin", "--owner", "export")
    cli.wait_committed(job, cli.committed() + 20)
    assert held(cli, step) is None
