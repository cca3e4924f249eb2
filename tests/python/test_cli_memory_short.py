"""`unreft run` begins no attempt beside a replaced node that has too little memory for it."""

import os
import signal

import pytest
from cli_testing import wait_until
from cluster_testing import PATIENCE_S, train, up_nodes, wait_protected, wait_restored
from small_shm import fill, small_cli, wait_free_again

REPLACED = 2


@pytest.fixture(name="small")
def small_shm():
    with small_cli(256 << 20) as small:
        yield small


def held(small):
    return sum(segment.stat().st_size for segment in small.segments())


def replace_in_full_memory(small, job):
    """Its slot gets a new node, for which something else has taken the memory; what did."""
    os.kill(job.process.pid, signal.SIGSTOP)
    small.json("inject", "kill-node", "--node", REPLACED)
    wait_until("its memory to be free", lambda: small.shm.used() == held(small))
    full = fill(small.shm, spare=1 << 20)
    os.kill(job.process.pid, signal.SIGCONT)
    wait_until("the shortage", lambda: job.events("memory-short"), PATIENCE_S)
    return full


def test_it_is_told_once_and_waited_for(small):
    up_nodes(small)
    job = train(small, "--replace-nodes")
    wait_protected(small, job, 2)
    full = replace_in_full_memory(small, job)
    (short,) = job.events("memory-short")
    assert short["node"] == REPLACED
    assert short["needed"] > 20 << 20 > short["allowed"]
    assert "/dev/shm" in short["limit"]
    assert len(job.events("attempt-start")) == 1
    wait_free_again(small.shm, full)
    assert min(wait_restored(job, 1)) >= 2
    assert len(job.events("memory-short")) == 1
    step = small.status()["committed"]["step"]
    wait_protected(small, job, step + 2)
    job.interrupt()


def test_a_node_that_stays_short_ends_the_job_and_uses_up_no_restart(small):
    up_nodes(small)
    job = train(small, "--replace-nodes", "--max-restarts", 1, "--memory-wait-ms", 2000)
    wait_protected(small, job, 2)
    replace_in_full_memory(small, job)
    assert job.wait() == 1
    assert len(job.events("attempt-start")) == 1
    assert "no restart is used up: node 2: too little memory" in job.output()
