"""torchrun, the real daemon, and ranks that are killed: they resume as if nothing had happened.

The ranks of a later attempt must not meet the earlier one's addresses in torchrun's store, as they
do by default: docs/operations.md has the two ways that are tried here.
"""

import contextlib
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from real_store import TRAINER, Store, states

RUN_TIMEOUT_S = 240
RESTARTS_MAX = 3
STAY_AFTER = 3
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Words of torchrun. Of a run on one node it chooses the port itself.
def default_launch():
    return []


def fixed_port():
    return ["--rdzv-backend", "static", "--master-addr", "127.0.0.1", "--master-port", free_port()]


def two_nodes():
    place = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "nodes"]
    return ["--nnodes", 2, "--rdzv-backend", "c10d", *place]


class Agent:
    """One torchrun process and its ranks; what they print is in files of each attempt."""

    def __init__(self, directory, environment, words):
        self._logs = directory
        self._logs.mkdir()
        self._errors = directory / "torchrun.err"
        files = ["--redirects", 3, "--log-dir", self._logs]
        command = [sys.executable, "-m", "torch.distributed.run", *files, *words]
        with open(self._errors, "wb") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command], env=environment, stdout=errors, stderr=errors
            )

    def records(self):
        """Of the last attempt: the records of each rank, as far as they have come, in any order.

        An agent's first is numbered 0; it counts only those that follow its own ranks' failures.
        """
        attempts = [path for path in self._logs.glob("*/attempt_*") if any(path.iterdir())]
        if not attempts:
            return []
        last = max(attempts, key=lambda path: int(path.name.removeprefix("attempt_")))
        return [self._records(log) for log in last.glob("*/stdout.log")]

    @staticmethod
    def _records(log):
        # The last line may be cut.
        lines = [line for line in log.read_text().splitlines(True) if line.endswith("\n")]
        return [json.loads(line) for line in lines]

    def said(self):
        logs = [self._errors, *sorted(self._logs.rglob("std*.log"))]
        return "\n".join(f"{path}:\n{path.read_text()}" for path in logs)

    def close(self):
        """Its ranks have sessions of their own."""
        pid = self.process.pid
        if self.process.poll() is None:
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


class Torchrun:
    """A job of torchrun's: one agent per node, all on this machine, on one daemon."""

    def __init__(self, store, agents, ranks, launch, environment, trainer):
        self._ranks = ranks
        restarts = ["--max-restarts", RESTARTS_MAX]
        words = ["--nproc-per-node", ranks // agents, *restarts, *launch, TRAINER, *trainer]
        environment = {
            **os.environ,
            "UNREFT_SOCKET": store.socket,
            "UNREFT_JOB": store.job,
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self._deadline = time.monotonic() + RUN_TIMEOUT_S
        self._agents = []
        for agent in range(agents):
            self._agents.append(Agent(store.directory / f"agent{agent}", environment, words))

    def by_rank(self):
        """The records of those ranks of the last attempt that have said which they are."""
        records = [records for agent in self._agents for records in agent.records()]
        return {found["rank"]: own for own in records if (found := found_in(own, "rank"))}

    def wait_until_all_stay(self):
        """The records of all ranks, once they are where they are to be killed."""
        while len(ranks := self.by_rank()) < self._ranks:
            self._check(all(agent.process.poll() is None for agent in self._agents))
        return ranks

    def wait(self):
        while any(agent.process.poll() is None for agent in self._agents):
            self._check(True)
        self._check(all(agent.process.returncode == 0 for agent in self._agents))

    def _check(self, as_expected):
        overdue = time.monotonic() > self._deadline
        assert as_expected and not overdue, "\n".join(agent.said() for agent in self._agents)
        time.sleep(0.02)

    def close(self):
        for agent in self._agents:
            agent.close()


def found_in(records, key):
    return next((record for record in records if key in record), None)


@functools.cache
def undisturbed(ranks):
    """The final state of each rank of a run that nobody kills."""
    store = Store()
    try:
        return [states(records)[-1] for records in store.train(ranks)]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("agents", "ranks", "killed", "launch", "environment", "trainer"),
    [
        pytest.param(1, 2, [0, 1], default_launch, OWN_STORE, [], id="all of 2"),
        pytest.param(1, 4, [0, 1, 2, 3], default_launch, OWN_STORE, [], id="all of 4"),
        pytest.param(
            1, 2, [0, 1], default_launch, {}, ["--store-per-attempt"], id="all of 2, prefix"
        ),
        pytest.param(
            1, 2, [1], fixed_port, {}, ["--store-per-attempt"], id="1 of 2, prefix, fixed port"
        ),
        pytest.param(2, 2, [1], two_nodes, OWN_STORE, [], id="1 of 2, two nodes"),
    ],
)
def test_killed_ranks_resume(agents, ranks, killed, launch, environment, trainer):
    reference = undisturbed(ranks)
    store = Store()
    trainer = [*trainer, "--stay-after", STAY_AFTER]
    run = Torchrun(store, agents, ranks, launch(), environment, trainer)
    try:
        before = run.wait_until_all_stay()
        for rank in killed:
            os.kill(found_in(before[rank], "stays")["stays"], signal.SIGKILL)
        run.wait()
        after = run.by_rank()
    finally:
        run.close()
        store.close()
    assert sorted(after) == list(range(ranks))
    for rank in range(ranks):
        (saved,) = states(before[rank])
        assert saved["step"] >= STAY_AFTER
        assert found_in(after[rank], "restored") == {"restored": saved["step"]}
        assert states(after[rank]) == [saved, reference[rank]]
        for records in (before[rank], after[rank]):
            assert found_in(records, "stale_store")["stale_store"] is False
