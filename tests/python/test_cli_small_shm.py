"""A job restarts, and a node is replaced, in a /dev/shm of exactly the size that was printed; where
it was full, commits go on by themselves once it is not.
"""

import os
import re
import signal
import sys

from cli_testing import TRAINER, wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_protected, wait_restored
from small_shm import fill, small_cli, wait_free_again

TOGETHER = re.compile(r"memory budget: .*: (\d+) bytes together")


def printed(log):
    """The last sum that the daemon printed."""
    def ready():
        found = TOGETHER.findall(log.read_text())
        return found and int(found[-1])

    return wait_until("the budget", ready, PATIENCE_S)


def of_nodes(cli):
    return [printed(cli.run_dir / f"node{node}" / "unreftd.log") for node in range(NODES)]


def of_one(cli):
    return printed(cli.run_dir / "unreftd.log")


def committed(cli):
    return wait_until("a commit", lambda: cli.status_or_nothing().get("committed"))["step"]


def test_a_node_restarts_in_what_it_printed(cli):
    cli("up")
    job = cli.train()
    cli.wait_committed(job, 4)
    size = of_one(cli)
    job.interrupt()
    with small_cli(size) as small:
        small("up")
        job = small.train()
        small.wait_committed(job, 4)
        assert of_one(small) == size
        assert small.shm.free() == 0
        os.kill(job.pids()[1], signal.SIGKILL)
        wait_until("attempt 2", lambda: len(job.events("attempt-start")) == 2)
        step = small.committed()
        small.wait_committed(job, step + 3)
        restored = [line["restored"] for line in job.lines() if line.get("attempt") == 1]
        assert len(restored) == 2 and min(restored) >= 4
        job.interrupt()


def test_a_group_restarts_and_replaces_a_node_in_what_it_printed(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 4)
    sizes = of_nodes(cli)
    job.interrupt()
    with small_cli(sum(sizes)) as small:
        up_nodes(small)
        job = train(small, "--replace-nodes")
        wait_protected(small, job, 4)
        assert of_nodes(small) == sizes
        assert small.shm.free() == 0
        os.kill(job.pids()[1], signal.SIGKILL)
        assert min(wait_restored(job, 1)) >= 4
        wait_protected(small, job, committed(small) + 3)
        # Its rank gets all that it had through the staging, and its slabs and guards are made anew.
        small.json("inject", "kill-node", "--node", 2)
        assert min(wait_restored(job, 2)) >= 4
        wait_protected(small, job, committed(small) + 3)
        assert of_nodes(small) == sizes
        assert small.shm.free() == 0
        job.interrupt()


def said(job, word):
    return [line[word] for line in job.lines() if word in line]


def test_a_job_without_memory_is_protected_when_there_is_some(cli):
    with small_cli(64 << 20) as small:
        small("up")
        full = fill(small.shm)
        job = small.train()
        wait_until("registrations", lambda: len(said(job, "registered")) == 2)
        assert said(job, "registered") == [False, False]
        assert all("/dev/shm" in why for why in said(job, "why"))
        wait_free_again(small.shm, full)
        small.wait_committed(job, 1)
        assert len(job.events("attempt-start")) == 1
        job.interrupt()


def test_a_rank_without_memory_keeps_the_others_from_no_later_version(cli):
    cli("up", "--", "--version-deadline-s", 3600)
    job = cli.train()
    cli.wait_committed(job, 1)
    size = of_one(cli)
    job.interrupt()
    with small_cli(size) as small:
        small("up", "--", "--version-deadline-s", 3600)
        full = fill(small.shm, spare=size // 2 + (1 << 20))
        job = small.train()
        wait_until("a refusal", lambda: said(job, "registered") == [False])
        # The other's snapshots fill its memory, if nobody gives them up.
        wait_until("versions that are given up",
                   lambda: small.json("status")["counters"]["versions_abandoned"] >= 5)
        wait_free_again(small.shm, full)
        small.wait_committed(job, 1)
        assert len(job.events("attempt-start")) == 1
        job.interrupt()


def test_a_version_whose_guard_found_no_memory_is_committed_when_there_is_some(cli):
    with small_cli(256 << 20) as small:
        up_nodes(small)  # where no version is given up for its age
        begin = small.run_dir / "begin"
        job = small.launch("--ranks", NODES, "--", sys.executable, TRAINER, "--begin", begin)
        wait_until("registrations", lambda: said(job, "registered") == [True] * NODES)
        of_nodes(small)
        logs = [small.run_dir / f"node{node}" / "unreftd.log" for node in range(NODES)]
        slots = sum(s.stat().st_size for s in small.segments())
        wait_until("their pages", lambda: slots == small.shm.used())
        full = fill(small.shm)
        begin.touch()
        wait_until("refusals", lambda: all("no protection: a guard of" in log.read_text()
                                           for log in logs), PATIENCE_S)
        wait_free_again(small.shm, full)
        wait_protected(small, job, 1)
        job.interrupt()
