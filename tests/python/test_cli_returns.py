"""A daemon that comes back after a spare has taken its slot: real daemons, a real meta store."""

import os
import signal
import subprocess

import pytest

from cli_testing import is_alive, wait_until
from cluster_testing import (NODES, PATIENCE_S, nodes_and_a_spare, train, wait_protected,
                             wait_restored, wait_status)

RETURNS = 2


@pytest.fixture
def nodes():
    with nodes_and_a_spare() as cli:
        yield cli


def kill_until_the_spare_has_the_slot(nodes):
    pid = nodes.status_or_nothing()["members"][RETURNS]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until("its end", lambda: not is_alive(pid), PATIENCE_S)
    wait_status(nodes, "the spare in the slot", lambda s: s["members"][RETURNS]["place"] == NODES)


def test_it_has_its_slot_again_if_its_ranks_live(nodes):
    """It said "serving", and the job trained to its end without one commit."""
    job = train(nodes)
    wait_protected(nodes, job, 2)
    kill_until_the_spare_has_the_slot(nodes)
    before = nodes.status_or_nothing()["committed"]["step"]
    nodes.json("up", "--node", RETURNS)
    status = wait_protected(nodes, job, before + 3)
    member = status["members"][RETURNS]
    assert (member["place"], member["lost"]) == (RETURNS, False)
    # The spare waits for another slot, and nobody had to start it anew.
    wait_status(nodes, "the spare", lambda s: [spare["place"] for spare in s["spares"]] == [NODES])
    assert [line["attempt"] for line in job.lines() if "attempt" in line] == [0] * NODES
    assert "problem:" not in nodes("status", "--node", RETURNS)


def test_it_is_out_and_says_so_if_ranks_are_with_the_other(nodes):
    job = train(nodes)
    wait_protected(nodes, job, 2)
    (rank_pid,) = [rank["pid"] for rank in nodes.json("status", "--node", RETURNS)["ranks"]]
    kill_until_the_spare_has_the_slot(nodes)
    os.kill(rank_pid, signal.SIGKILL)  # the next attempt asks where the slot is now
    restored = wait_restored(job, attempt=1)
    wait_protected(nodes, job, restored[0] + 1)
    nodes.json("up", "--node", RETURNS)

    def says_so():
        asked = subprocess.run(nodes.command("status", "--node", RETURNS), capture_output=True,
                               text=True, timeout=PATIENCE_S)
        return asked.returncode == 1 and "out of the job" in asked.stdout

    wait_until("its word that it is out", says_so, PATIENCE_S)
    status = wait_protected(nodes, job, restored[0] + 5)
    assert status["members"][RETURNS]["place"] == NODES
