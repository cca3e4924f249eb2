"""What the tests share that start torchrun on the nodes of one machine."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import cli_testing

TRAINER = cli_testing.ROOT / "integrations/python/tests/sharded_trainer.py"
# An agent that says nothing for so long is gone, and so long the others wait for one more.
GONE = "join_timeout=120,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Agent:
    """torchrun on one node, in the environment of that node's daemon."""

    def __init__(self, cli, node, port, directory, nnodes, *trainer_words):
        self.logs = directory / f"agent{node}"
        variables = dict(line.removeprefix("export ").split("=", 1) for line in cli(
            "up", "--node", node, "--print-env").splitlines() if line.startswith("export "))
        environment = {**os.environ, **{key: value.strip("'") for key, value in variables.items()},
                       "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        words = ["--nnodes", nnodes, "--nproc-per-node", 1, "--max-restarts", 10,
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id",
                 cli.job, "--rdzv-conf", f"{GONE},is_host={int(node == 0)}", "--redirects", 3,
                 "--log-dir", self.logs, "--", TRAINER, *trainer_words]
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
