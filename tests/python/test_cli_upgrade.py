"""Upgrades as documented: SIGTERM, a new daemon, its memory adopted, while the job trains.

UPGRADES=50 pytest -s test_cli_upgrade.py prints how long no commit came, each time.
"""

import itertools
import os
import random
import re
import signal
import sys
import threading
import time

import pytest

from cli_testing import TRAINER, is_alive, wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes, wait_protected, wait_status

UPGRADES = int(os.environ.get("UPGRADES", 8))
# Of the job's, by which an upgrade is done.
STEPS_AFTER = 3


class Upgrade(threading.Thread):
    """While somebody else looks at the job."""

    def __init__(self, cli, node, pid, away_s):
        super().__init__(daemon=True)
        self._cli, self._node, self._pid, self._away_s = cli, node, pid, away_s
        self.gone_s = self.up_s = None

    def run(self):
        begin = time.monotonic()
        os.kill(self._pid, signal.SIGTERM)
        wait_until("its end", lambda: not is_alive(self._pid), PATIENCE_S)
        self.gone_s = time.monotonic() - begin
        time.sleep(self._away_s)
        self._cli.json("up", "--node", self._node)
        self.up_s = time.monotonic() - begin

    def is_done(self):
        return self.up_s is not None


def commits_of(job):
    """Steps that are committed by the word of any rank, with when it was read."""
    newest, last = 0, time.monotonic()
    for line in job.follow():
        now = time.monotonic()
        if line is None:
            assert job.process.poll() is None, job.output()
            assert now - last < PATIENCE_S, f"no commit after step {newest}"
            time.sleep(0.005)
        elif line.get("committed", 0) > newest:
            newest, last = line["committed"], now
            yield newest, now


@pytest.mark.parametrize("words", [(), ("--free-running",)], ids=["in-step", "free-running"])
def test_each_upgrade_lets_commits_go_on(cli, words):
    """No clock gives up what stands still: the version deadline is an hour."""
    up_nodes(cli)
    job = cli.launch("--ranks", NODES, "--", sys.executable, TRAINER, *words)
    draw = random.Random(24)
    wait_protected(cli, job, 3)
    commits = commits_of(job)
    seen = [seen for _, seen in itertools.islice(commits, UPGRADES)]
    pauses = sorted(after - before for before, after in itertools.pairwise(seen))
    print(f"without an upgrade a commit came every {pauses[len(pauses) // 2]:.3f} s, "
          f"and after {pauses[-1]:.3f} s at most")
    for number in range(UPGRADES):
        node = number % NODES
        pid = cli.json("status", "--node", node, code=(0, 1))["pid"]
        begin = time.monotonic()
        step, last = next(commit for commit in commits if commit[1] >= begin)
        away_s = draw.choice([0, 0, draw.uniform(0, 2.5)])
        upgrade = Upgrade(cli, node, pid, away_s)
        upgrade.start()
        longest, after = 0.0, 0
        while after < STEPS_AFTER:
            step, seen = next(commits)
            longest = max(longest, seen - last)
            last = seen
            after += upgrade.is_done()
        upgrade.join()
        print(f"upgrade {number} of node {node}: gone after {upgrade.gone_s:.3f} s, up after "
              f"{upgrade.up_s:.3f} s, {away_s:.3f} s of them away; no commit for {longest:.3f} s, "
              f"now at step {step}")
    assert len(job.events("attempt-start")) == 1
    for node in range(min(UPGRADES, NODES)):
        log = (cli.run_dir / f"node{node}" / "unreftd.log").read_text()
        assert int(re.findall(r"(\d+) slots adopted", log)[-1]) > 0, log
    job.interrupt()


def test_a_leader_that_is_ended_hands_on_its_leadership(cli):
    """Not by the end of its lease, which comes only after the test."""
    up_nodes(cli, "--presence-ttl-s", 600)
    job = cli.launch("--ranks", NODES, "--", sys.executable, TRAINER)
    status = wait_protected(cli, job, 3)
    first = status["leader"]
    pid = cli.json("status", "--node", first, code=(0, 1))["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until("its end", lambda: not is_alive(pid), PATIENCE_S)
    status = wait_status(cli, "another leader",
                         lambda status: status["leader"] not in (None, first))
    assert not status["members"][first]["present"]
    assert not status["members"][first]["lost"]
    cli.json("up", "--node", first)
    wait_protected(cli, job, status["committed"]["step"] + 3)
    assert len(job.events("attempt-start")) == 1
    job.interrupt()
