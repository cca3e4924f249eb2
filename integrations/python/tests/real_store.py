"""Real daemons and real training processes for the end-to-end tests.

Ranks are forked by a server that has imported torch: importing takes longer than most of the tests.
"""

import contextlib
import json
import multiprocessing
import os
import pathlib
import re
import runpy
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
TRAINER = pathlib.Path(__file__).with_name("trainer.py")
START_TIMEOUT_S = 20
RUN_TIMEOUT_S = 120

# The server finds what it preloads there; its sys.path is not ours.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TRAINER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["preloaded"])


class Rank:
    """A training process; what it prints is in `output`."""

    def __init__(self, script, args, environment, output):
        self.output = output
        self._go_on = FORK_SERVER.Event()
        self._process = FORK_SERVER.Process(
            target=_run_script,
            args=(str(script), [str(arg) for arg in args], environment, str(output), self._go_on),
        )
        self._process.start()

    def go_on(self):
        """Ends the pause of the trainer."""
        self._go_on.set()

    def kill(self):
        self._process.kill()

    def wait(self, timeout=None):
        """The exit code, as of subprocess."""
        self._process.join(timeout)
        return self._process.exitcode

    def records(self):
        if not self.output.exists():
            return []
        # A framework may print lines of its own, as DeepSpeed does when accelerate imports it.
        lines = self.output.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def _run_script(script, args, environment, output, go_on):
    os.environ.update(environment)
    sys.stdout = open(output, "w", buffering=1)
    sys.argv = [script, *args]
    sys.path.insert(0, str(pathlib.Path(script).parent))
    runpy.run_path(script, init_globals={"GO_ON": go_on}, run_name="__main__")


def states(records):
    """Those of what a trainer says that have its state."""
    return [record for record in records if "weights" in record]


class Store:
    """A daemon with a job of its own. `close` leaves nothing behind, whatever happened before."""

    def __init__(self, *flags):
        self.job = f"py{os.getpid()}-{secrets.token_hex(4)}"
        # Short: the path of a Unix socket has 107 bytes at most.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.flags = flags
        self.attempt = 0
        self.process = None
        self.start()

    @property
    def socket(self):
        return str(self.directory / "unreftd.sock")

    def start(self):
        binary = BIN_DIR / "unreftd"
        assert binary.exists(), f"{binary} is not built"
        command = [binary, "--job", self.job, "--run-dir", self.directory, *self.flags]
        self.process = subprocess.Popen([str(word) for word in command])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, "the daemon ended"
            assert time.monotonic() < deadline, f"no daemon at {self.socket}"
            time.sleep(0.02)

    def _answers(self):
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(self.socket)
            return True
        return False

    def metric(self, name):
        """A metric of the daemon that has one value, by `unreft metrics`."""
        command = [BIN_DIR / "unreft", "metrics", "--job", self.job, "--run-dir", self.directory]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in text.splitlines() if re.split("[{ ]", line)[0] == name]
        return float(line.split()[-1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"):
            segment.unlink()
        shutil.rmtree(self.directory)

    def train(self, world, *args, script=TRAINER, killed=False):
        """Runs one attempt of all ranks to its end; returns the records of each rank."""
        ranks = self.start_ranks(world, *args, script=script)
        return self.finish(ranks, killed=killed)

    def start_ranks(self, world, *args, script=TRAINER):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            "UNREFT_SOCKET": self.socket,
            "UNREFT_JOB": self.job,
            "UNREFT_ATTEMPT": str(self.attempt),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        ranks = []
        for rank in range(world):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            output = self.directory / f"attempt{self.attempt}.rank{rank}"
            ranks.append(Rank(script, args, {**environment, **own}, output))
        self.attempt += 1
        return ranks

    @staticmethod
    def finish(ranks, killed=False):
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            codes = [rank.wait(deadline - time.monotonic()) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert codes == [-signal.SIGKILL if killed else 0] * len(ranks)
        return [rank.records() for rank in ranks]
