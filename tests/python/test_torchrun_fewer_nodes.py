"""torchrun that may have three to four nodes: one is lost for good, and the others go on."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import cli_testing
import pytest
from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes, wait_status

TRAINER = cli_testing.ROOT / "integrations/python/tests/sharded_trainer.py"
STEPS = 120
# An agent that says nothing for so long is gone, and so long the others wait for one more.
GONE = "join_timeout=120,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"


class Agent:
    """torchrun on one node, in the environment of that node's daemon."""

    def __init__(self, cli, node, port, directory):
        self.logs = directory / f"agent{node}"
        variables = dict(line.removeprefix("export ").split("=", 1) for line in cli(
            "up", "--node", node, "--print-env").splitlines() if line.startswith("export "))
        environment = {**os.environ, **{key: value.strip("'") for key, value in variables.items()},
                       "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        words = ["--nnodes", f"{NODES - 1}:{NODES}", "--nproc-per-node", 1, "--max-restarts", 3,
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id",
                 cli.job, "--rdzv-conf", f"{GONE},is_host={int(node == 0)}", "--redirects", 3,
                 "--log-dir", self.logs, "--", TRAINER, "--steps", STEPS]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *map(str, words)], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def lines(self):
        """What its ranks have said, of all attempts."""
        found = []
        for log in sorted(self.logs.rglob("stdout.log")):
            for line in log.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def said(self):
        return "\n".join(f"{log}:\n{log.read_text()}" for log in sorted(self.logs.rglob("std*")))

    def kill(self):
        """With its ranks, as a host's end does."""
        pid = self.process.pid
        if self.process.poll() is None:
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def agents(cli, tmp_path):
    up_nodes(cli)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [Agent(cli, node, port, tmp_path) for node in range(NODES)]
    yield started
    for agent in started:
        agent.kill()


def test_torchrun_goes_on_with_three_of_four_nodes(cli, agents):
    wait_status(cli, "some commits", lambda s: s["committed"] and s["committed"]["step"] >= 10)
    lost = agents.pop()
    cli.json("inject", "kill-node", "--node", NODES - 1)
    lost.kill()
    for agent in agents:
        assert agent.process.wait(PATIENCE_S) == 0, agent.said()
    restored = set()
    for agent in agents:
        (end,) = [line for line in agent.lines() if "committed" in line]
        assert end["committed"] == end["step"] == STEPS
        # Of a start that was no restart by its count torchrun keeps the newest log.
        restored |= {(line["restored"], line["reshaped_from"]) for line in agent.lines()
                     if line.get("restored")}
    ((step, reshaped_from),) = restored
    assert 10 <= step < STEPS and reshaped_from == NODES
    status = wait_until("the groups", lambda: cli.status_or_nothing())
    assert [(group["slots"], group["m"]) for group in status["groups"]] == [([0, 1, 2], 2)]
