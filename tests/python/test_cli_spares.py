"""A spare takes the slot of a node that is destroyed: real daemons, a real meta store."""

import os
import signal

import pytest

from cli_testing import is_alive, wait_until
from cluster_testing import (NODES, PATIENCE_S, nodes_and_a_spare, train, wait_protected,
                             wait_restored, wait_status)


@pytest.fixture
def nodes():
    with nodes_and_a_spare() as cli:
        yield cli


def registered(nodes):
    own = nodes.json("status", "--node", NODES)
    return own if own["registered"] else None


def test_a_spare_waits_and_is_shown(nodes):
    status = nodes.status()
    (spare,) = status["spares"]
    assert spare["place"] == NODES and spare["memory_bytes"] > 0
    assert [member["place"] for member in status["members"]] == list(range(NODES))
    # The others hear of it before it does.
    own = wait_until("its registration", lambda: registered(nodes))
    assert own["spare"] and own["node"] is None
    assert "spare" in nodes("status")
    nodes("up", "--spares", 2, code=1)


def test_a_spare_takes_the_slot_of_a_destroyed_node(nodes):
    job = train(nodes, "--replace-nodes")
    before = wait_protected(nodes, job, 2)["committed"]["step"]
    spare_pid = nodes.json("status", "--node", NODES)["pid"]
    nodes.json("inject", "kill-node", "--node", 2)
    # Each rank checks all its bytes; those of the lost node's are decoded.
    restored = wait_restored(job, attempt=1)
    assert min(restored) == max(restored) >= before
    status = wait_protected(nodes, job, restored[0] + 1)
    member = status["members"][2]
    assert (member["place"], member["pid"]) == (NODES, spare_pid)
    assert not member["lost"] and status["spares"] == []
    assert [rank["rank"] for rank in member["status"]["ranks"]] == [2]
    assert not job.events("node-replaced")
    job.interrupt()
    check_all_nodes_are_found(nodes)

    # It is the slot's node also after its death: its memory is the slot's now.
    os.kill(spare_pid, signal.SIGKILL)
    wait_until("its end", lambda: not is_alive(spare_pid), PATIENCE_S)
    status = wait_status(nodes, "its absence", lambda s: not s["members"][2]["present"])
    assert status["members"][2]["place"] == NODES
    again = nodes.json("up")
    assert [node["node"] for node in again["nodes"]] == [0, 1, 3, NODES]
    status = wait_status(nodes, "the node", lambda s: s["members"][2]["present"]
                         and s["members"][2]["pid"] not in (None, spare_pid))
    assert status["members"][2]["incarnation"] == member["incarnation"]


def check_all_nodes_are_found(nodes):
    """With the spare in its place, and nobody where the lost node was."""
    versions = nodes.json("versions")
    assert [node["place"] for node in versions["nodes"]] == [0, 1, NODES, 3]
    committed = [version for version in versions["versions"] if version["committed"]]
    assert [(v["ranks"], v["nodes"], v["whole"]) for v in committed] == [
        ([0, 1, 2, 3], [0, 1, 2, 3], True)]
    verified = nodes.json("verify")["nodes"]
    assert all(node["running"] and node["slots_checked"] > 0 and not node["bad"]
               for node in verified)
    assert f'unreft_node_up{{job="{nodes.job}",node="2"}} 1' in nodes("metrics")
    nodes("up", "--node", 2, code=1)
    assert f"spare {NODES} has taken its slot" in nodes.stderr
    assert f"/node{NODES}/" in nodes("up", "--print-env")


def test_without_a_spare_left_a_new_node_is_started(nodes):
    job = train(nodes, "--replace-nodes")
    wait_protected(nodes, job, 2)
    for attempt, node in enumerate((1, 3)):
        nodes.json("inject", "kill-node", "--node", node)
        restored = wait_restored(job, attempt=attempt + 1)
        wait_protected(nodes, job, restored[0] + 1)
    assert [event["node"] for event in job.events("node-replaced")] == [3]
    assert [member["place"] for member in nodes.status()["members"]] == [0, NODES, 2, 3]


def test_down_leaves_no_spare(nodes):
    pid = nodes.json("status", "--node", NODES)["pid"]
    nodes("down")
    assert not is_alive(pid) and not nodes.segments()
    assert not (nodes.run_dir / f"node{NODES}").exists()
