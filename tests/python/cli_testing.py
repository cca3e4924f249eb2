"""What the tests of the command line share: `unreft` for a job of its own, and what it launched.

All real processes; `Cli.close` leaves neither process nor segment behind.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
TRAINER = pathlib.Path(__file__).with_name("cli_trainer.py")
COMMAND_TIMEOUT_S = 60

NO_DAEMON = 3
TOO_LATE = 4
CORRUPT = 5


def wait_until(what, ready, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not (result := ready()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
    return result


def is_alive(pid):
    """Whether any thread of it runs: one that ended and that nobody waited for does not.

    Of a process that was killed, the first thread may be a zombie while others still end.
    """
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, threads = fields[0], int(fields[17])
    return state not in "ZX" or threads > 1


class Cli:
    """`unreft` for one job; remembers what it launched."""

    def __init__(self):
        self.job = f"cli{os.getpid()}-{secrets.token_hex(4)}"
        # Short: the path of a socket has 107 bytes at most.
        self.run_dir = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.launched = []

    def command(self, *words):
        place = ["--job", self.job, "--run-dir", self.run_dir]
        return [str(word) for word in [BIN_DIR / "unreft", *place, *words]]

    def __call__(self, *words, code=0):
        """Runs a command to its end; its standard output. `code` may be several."""
        done = subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=COMMAND_TIMEOUT_S)
        codes = code if isinstance(code, tuple) else (code,)
        assert done.returncode in codes, done.stdout + done.stderr
        self.stderr = done.stderr
        return done.stdout

    def json(self, *words, code=0):
        return json.loads(self("--json", *words, code=code))

    def launch(self, *words):
        """`unreft run` in the background, its ranks' and its own lines in files."""
        number = len(self.launched)
        out, err = (self.run_dir / f"run{number}.{name}" for name in ("out", "err"))
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(self.command("--json", "run", *words), stdout=out_file,
                                       stderr=err_file, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        launched = Launched(process, out, err)
        self.launched.append(launched)
        return launched

    def train(self, *words, ranks=2):
        return self.launch("--ranks", ranks, *words, "--", sys.executable, TRAINER)

    def train_to_end(self, commits, ranks=2):
        """A job of so many commits; nothing is under way any more when this returns."""
        job = self.launch("--ranks", ranks, "--", sys.executable, TRAINER, "--commits", commits)
        assert job.wait() == 0, job.output()

    def run_verify(self):
        """Reads all that is sealed, and says so whatever it found."""
        subprocess.run(self.command("verify"), stdin=subprocess.DEVNULL, capture_output=True,
                       timeout=COMMAND_TIMEOUT_S, check=False)
        return True

    def daemon_pid(self):
        return self.status()["pid"]

    def status_or_nothing(self):
        """Also of a job in whose way something stands."""
        asked = subprocess.run(self.command("--json", "status"), stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        return json.loads(asked.stdout) if asked.returncode in (0, 1) else {}

    def status(self):
        """Also of one that has a problem."""
        status = self.status_or_nothing()
        assert status, "no unreftd answers"
        return status

    def fresh_start(self):
        """Once the daemons have noticed that no rank lives any more."""
        def declared():
            done = subprocess.run(self.command("--json", "fresh-start"), capture_output=True,
                                  stdin=subprocess.DEVNULL, text=True, timeout=COMMAND_TIMEOUT_S)
            assert done.returncode == 0 or "ranks that are connected" in done.stdout, done.stdout
            return json.loads(done.stdout) if done.returncode == 0 else None

        return wait_until("a fresh start", declared)

    def log(self):
        """What all daemons have logged."""
        return "".join(log.read_text() for log in sorted(self.run_dir.rglob("unreftd.log")))

    def segments(self):
        return sorted(pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"))

    def committed(self):
        committed = self.status()["committed"]
        return committed["step"] if committed else 0

    def wait_committed(self, job, step):
        def ready():
            assert job.process.poll() is None, f"the job ended: {job.output()}"
            return self.committed() >= step

        wait_until(f"the commit of step {step}", ready)

    def close(self):
        for launched in self.launched:
            launched.process.kill()
            launched.process.wait()
        with contextlib.suppress(AssertionError):
            self("down", "--force")
        for segment in self.segments():
            segment.unlink()
        shutil.rmtree(self.run_dir)


class Launched:
    def __init__(self, process, out, err):
        self.process, self._out, self._err = process, out, err

    def wait(self):
        return self.process.wait(COMMAND_TIMEOUT_S)

    def interrupt(self):
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def lines(self):
        """What the ranks printed, as far as it is JSON."""
        return self._parse(self._out)

    def follow(self):
        """Each line that the ranks print, as far as it is JSON; nothing while there is none."""
        with open(self._out) as out:
            part = ""
            while True:
                part += out.readline()
                if not part.endswith("\n"):
                    yield None
                    continue
                with contextlib.suppress(ValueError):
                    yield json.loads(part)
                part = ""

    def events(self, name):
        return [event for event in self._parse(self._err) if event.get("event") == name]

    def pids(self):
        started = wait_until("an attempt", lambda: self.events("attempt-start"))
        return started[-1]["pids"]

    def output(self):
        return self._out.read_text() + self._err.read_text()

    @staticmethod
    def _parse(path):
        records = []
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return records
