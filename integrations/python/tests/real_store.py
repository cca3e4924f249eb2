"""Real daemons and real training processes for the end-to-end tests."""

import contextlib
import json
import os
import pathlib
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

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"):
            segment.unlink()
        shutil.rmtree(self.directory)

    def environment(self):
        return {
            "UNREFT_SOCKET": self.socket,
            "UNREFT_JOB": self.job,
            "UNREFT_ATTEMPT": str(self.attempt),
        }

    def train(self, world, *args, command=(TRAINER,), killed=False):
        """Runs one attempt of all ranks to its end; returns the records of each rank."""
        ranks = self.start_ranks(world, *args, command=command)
        return self.finish(ranks, killed=killed)

    def start_ranks(self, world, *args, command=(TRAINER,)):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [sys.executable, *map(str, command), *map(str, args)]
        ranks = []
        for rank in range(world):
            environment = dict(
                os.environ,
                RANK=str(rank),
                WORLD_SIZE=str(world),
                LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
                **self.environment(),
            )
            ranks.append(
                subprocess.Popen(
                    words,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        self.attempt += 1
        return ranks

    def finish(self, ranks, killed=False):
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            outputs = [rank.communicate(timeout=deadline - time.monotonic())[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        codes = [rank.returncode for rank in ranks]
        assert codes == [-signal.SIGKILL if killed else 0] * len(ranks)
        return [[json.loads(line) for line in output.splitlines()] for output in outputs]
