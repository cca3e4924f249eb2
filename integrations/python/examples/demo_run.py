"""One run of the demo's training job: its processes, its log, and waiting for what they do.

Every wait ends: it fails, naming what it waited for, when the job ends, stands still or the
demo's deadline passes.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

EXAMPLES = pathlib.Path(__file__).resolve().parent
REPOSITORY = EXAMPLES.parents[2]

POLL_S = 0.002  # the moment of a fault is drawn in milliseconds
STATUS_POLL_S = 0.25  # each is a process
STANDSTILL_S = 90  # nothing happens at all for so long: the job hangs
COMMAND_TIMEOUT_S = 40
PARITY_CHUNKS = 2  # of several nodes: so many may be lost at once
STOP_TIMEOUT_S = 20


class DemoError(Exception):
    """Why the demo failed."""


class Deadline:
    def __init__(self, seconds):
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self, what):
        if time.monotonic() > self._end:
            raise DemoError(f"over the limit of {self._seconds:.0f} s, waiting for {what}")


@dataclasses.dataclass(frozen=True)
class Tools:
    """Where the programs are."""

    unreft: pathlib.Path

    @staticmethod
    def find():
        default = REPOSITORY / "build/release/bin"
        unreft = pathlib.Path(os.environ.get("UNREFT_BIN_DIR", default)) / "unreft"
        if not unreft.exists():
            raise DemoError(f"{unreft} is not built (make build), or UNREFT_BIN_DIR is wrong")
        return Tools(unreft)


class LogTail:
    """The training log as far as it is written: JSON lines of rank 0, appended by every attempt.

    Each record is given the "attempt" that wrote it.
    """

    def __init__(self, path):
        self.path = path
        self._offset = 0
        self.starts = []
        self.steps = []
        self.on_step = lambda record: None

    @property
    def attempt(self):
        return self.starts[-1]["attempt"] if self.starts else 0

    @property
    def last_step(self):
        return self.steps[-1]["step"] if self.steps else 0

    def read_on(self):
        """Takes the lines written since the last call; whether there were any."""
        if not self.path.exists():
            return False
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            lines = file.read().split(b"\n")
        # A line without its end is still being written, or was cut by a kill: then the next
        # attempt ends it.
        self._offset += sum(len(line) + 1 for line in lines[:-1])
        for line in lines[:-1]:
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))
        return len(lines) > 1

    def _take(self, record):
        if record["event"] == "start":
            self.starts.append(record)
        elif record["event"] == "step":
            self.steps.append({**record, "attempt": self.attempt})
            self.on_step(self.steps[-1])

    def last_step_before(self, unix_s):
        return max((r["step"] for r in self.steps if r["unix_s"] <= unix_s), default=0)


class Launcher:
    """`unreft run`, and what it says of its attempts."""

    def __init__(self, command, environment, output_path):
        self.events = []
        self._output = open(output_path, "wb")
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stderr:
            try:
                self.events.append(json.loads(line))
            except ValueError:  # of a rank, with its number before it
                self._output.write(line)
                self._output.flush()

    def exit_code(self):
        return self._process.poll()

    def newest_start(self):
        starts = [e for e in list(self.events) if e.get("event") == "attempt-start"]
        return starts[-1] if starts else None

    def reason(self):
        ends = [e for e in list(self.events) if e.get("event") == "attempt-end"]
        return ends[-1] if ends else {}

    def kill(self):
        self._process.kill()
        self._process.wait()

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its ranks die with it
        self._process.wait()
        self._reader.join()
        self._output.close()


class Run:
    """A run of a training job in a directory of its own; so many ranks end it."""

    def __init__(self, tools, directory, steps, ranks, nodes, deadline):
        directory.mkdir(parents=True)
        self.steps, self.ranks, self.nodes = steps, ranks, nodes
        self.log = LogTail(directory / "steps.jsonl")
        self.replaces_nodes = False  # a node that is killed, where the launcher does not
        self.daemon_words = []  # options of the daemons
        self.last_skip = ""
        self._tools, self._directory, self._deadline = tools, directory, deadline
        self._job = f"demo-{os.getpid()}"
        self._launcher = None
        self._daemon_pids = {}  # by node
        self._meta_pid = None
        self._skips = {}
        self._abandoned = {}

    def final_file(self, rank):
        return self._directory / f"final.rank{rank}.json"

    # The processes.

    @contextlib.contextmanager
    def daemon(self):
        """`unreft up --supervise`, and `unreft down --force` whatever happens."""
        try:
            self._up()
            yield
        finally:
            down = self._unreft("down", "--force")
            left = list(pathlib.Path("/dev/shm").glob(f"unreft.{self._job}.*"))
            if left:
                raise DemoError(f"unreft down left {left[0]} and {len(left) - 1} more: {down}")

    def _up(self):
        if self.nodes == 1:
            self._daemon_pids = {0: self._unreft("up", "--supervise")["pid"]}
            return
        up = self._unreft("up", "--supervise", "--nodes", self.nodes, "--data-chunks", 2,
                          "--parity-chunks", PARITY_CHUNKS, "--", *self.daemon_words)
        self._daemon_pids = {node["node"]: node["pid"] for node in up["nodes"]}
        self._meta_pid = up["meta"]["pid"]

    def killer(self):
        """Who sends SIGKILL to victims of a fault (chaos.Fault), trainers of the present attempt.

        For a node it returns how to wait for its end.
        """
        trainer_pids = self.trainer_pids
        return lambda victim: self._kill(victim, trainer_pids)

    def _kill(self, victim, trainer_pids):
        if not isinstance(victim, str):
            # The launcher ends the others of an attempt that has lost one.
            with contextlib.suppress(ProcessLookupError):
                os.kill(trainer_pids[victim], signal.SIGKILL)
        elif victim.startswith("daemon"):
            node = int(victim.split()[1]) if " " in victim else 0
            os.kill(self._daemon_pids[node], signal.SIGKILL)
        elif victim.startswith("node "):
            node = victim.split()[1]
            commands = [("inject", "kill-node", "--node", node)]
            commands += [("up", "--supervise", "--node", node)] if self.replaces_nodes else []
            return self._begin(*commands)
        else:
            os.kill(self._meta_pid, signal.SIGKILL)
        return None

    def kill_job(self):
        """SIGKILL to the launcher; its ranks die with it."""
        self._launcher.kill()

    def forget_records(self):
        """Of a job whose daemons are down: nothing of it is left on any host."""
        shutil.rmtree(self._directory / "run", ignore_errors=True)

    @contextlib.contextmanager
    def launch(self, trainer, *words, ranks, options=()):
        """Runs this trainer of ours with these words, under `unreft run` with these options."""
        command = [self._tools.unreft, *self._place(), "--json", "run", "--prefix-output"]
        command += ["--ranks", ranks, *options, "--", sys.executable, EXAMPLES / trainer]
        command += ["--log", self.log.path, "--final", self._directory / "final", *words]
        output = self._directory / "output.txt"
        self._launcher = Launcher([*map(str, command)], self._environment(), output)
        try:
            yield
        finally:
            self._launcher.stop()

    @property
    def attempt(self):
        start = self._launcher.newest_start()
        return start["attempt"] if start else 0

    @property
    def trainer_pids(self):
        return self._launcher.newest_start()["pids"]

    def _place(self):
        return ["--job", self._job, "--run-dir", str(self._directory / "run")]

    def _environment(self):
        # Options of a user's own daemon are not for this one.
        return {k: v for k, v in os.environ.items() if k not in ("UNREFT_SOCKET", "UNREFT_JOB",
                                                                 "UNREFT_ATTEMPT", "UNREFT_NODE")}

    def _unreft(self, *words, codes=(0,)):
        command = [str(self._tools.unreft), *self._place(), "--json", *map(str, words)]
        try:
            done = subprocess.run(command, env=self._environment(), stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"unreft {words[0]}: no end after {COMMAND_TIMEOUT_S} s") from None
        if done.returncode not in codes:
            raise DemoError(f"{' '.join(command)}: {done.stdout.strip() or done.stderr}")
        return json.loads(done.stdout)

    def _begin(self, *commands):
        """Runs these of `unreft`, in a thread of its own; the function to call for their end."""
        errors = []

        def run():
            try:
                for words in commands:
                    self._unreft(*words)
            except DemoError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def wait():
            thread.join()
            if errors:
                raise errors[0]

        return wait

    def _status(self):
        """The daemon's, or None while it is down."""
        try:
            return self._unreft("status", codes=(0, 1))  # 1: after a fault, with what is wrong
        except DemoError:
            return None

    # What the daemon counts.

    def note_status(self):
        """Adds what the daemon counts to what its earlier lives and sessions counted."""
        status = self._status()
        if status is None:
            return None
        for node in self._of_daemons(status):
            daemon = (node["node"], node["incarnation"], node["session"])
            for rank in node["ranks"]:
                life = (*daemon, rank["rank"], rank["pid"])
                self._skips[life] = max(self._skips.get(life, 0), rank["skipped"])
                self.last_skip = rank["last_skip"] or self.last_skip
            self._abandoned[daemon] = node["counters"]["versions_abandoned"]
        return status

    def _of_daemons(self, status):
        """What each daemon that answers says of itself."""
        if self.nodes == 1:
            return [status]
        return [member["status"] for member in status["members"] if member["status"]]

    @property
    def skipped_snapshots(self):
        return sum(self._skips.values())

    @property
    def abandoned_versions(self):
        """Snapshots that a fault caught before all ranks had completed them."""
        return sum(self._abandoned.values())

    # Waiting.

    def _wait(self, what, ready):
        """Until `ready` returns something true, which is returned; reads the log meanwhile."""
        quiet_since = time.monotonic()
        while True:
            exited = self._launcher.exit_code()  # before the log: then that is complete
            if self.log.read_on():
                quiet_since = time.monotonic()
            if result := ready():
                return result
            if exited is not None:
                raise DemoError(f"the job ended (code {exited}: {self._launcher.reason()}) before"
                                f" {what}")
            if time.monotonic() - quiet_since > STANDSTILL_S:
                raise DemoError(f"nothing happened for {STANDSTILL_S} s, waiting for {what}")
            self._deadline.check(what)
            time.sleep(POLL_S)

    def _wait_status(self, what, accept):
        """Until the daemon's status is accepted; it is asked a few times a second."""
        asked_at = [0.0]

        def ready():
            if time.monotonic() - asked_at[0] < STATUS_POLL_S:
                return None
            asked_at[0] = time.monotonic()
            status = self.note_status()
            return status if status and accept(status) else None

        return self._wait(what, ready)

    def wait_step(self, step, after_attempt=-1):
        """Until this step or a later one was logged, after that attempt; its record."""
        def ready():
            last = self.log.steps[-1] if self.log.steps else None
            if not last or last["step"] < step or last["attempt"] <= after_attempt:
                return None
            return last

        return self._wait(f"step {step}", ready)

    def wait_restart(self, attempt):
        """Until an attempt after this one has restored; its start record."""
        def ready():
            return next((s for s in self.log.starts if s["attempt"] > attempt), None)

        return self._wait(f"the attempt after {attempt} to restore", ready)

    def wait_start(self, number):
        """Until that many starts and another one were logged; its record."""
        def ready():
            return self.log.starts[number] if len(self.log.starts) > number else None

        return self._wait("the job to restore", ready)

    def wait_copy(self, directory, step):
        """Until a durable copy of that step or a later one is complete; the newest one's step."""
        def ready():
            newest = self.newest_copy(directory)
            return newest if newest >= step else None

        return self._wait(f"a durable copy of step {step} or later", ready)

    @staticmethod
    def newest_copy(directory):
        """The step of the newest that is complete, by their names; 0 before there is one."""
        names = [mark.parent.name for mark in directory.glob("*/.metadata")]
        return max((int(name.split("-")[3]) for name in names), default=0)

    def wait_daemon_back(self, node=0):
        """Until the supervisor's next daemon of that node answers."""
        old = self._daemon_pids[node]

        def accept(status):
            return any(daemon["node"] == node and daemon["pid"] != old
                       for daemon in self._of_daemons(status))

        self._note_pids(self._wait_status(f"the daemon of node {node} to be back", accept))

    def wait_lost(self, node):
        """Until that node counts as lost, or the job has restarted; what `unreft status` says."""
        attempt = self.log.attempt

        def accept(status):
            return status["members"][node]["lost"] or self.log.attempt > attempt

        return self._wait_status(f"node {node} to be lost", accept)

    def wait_meta_back(self):
        """Until the supervisor's next meta store is up."""
        old = self._meta_pid
        status = self._wait_status("the meta store to be back",
                                   lambda s: s["meta"]["pid"] not in (None, old))
        self._note_pids(status)

    def wait_committed(self):
        """Until a step that is finished now, or a later one, is committed.

        With several nodes also until the loss of as many as before can be borne again. Returns what
        `unreft status` says then.
        """
        step = self.log.last_step

        def accept(status):
            committed = status.get("committed")
            return committed and committed["step"] >= step and (
                self.nodes == 1
                or all(group["stands"] == PARITY_CHUNKS for group in status["groups"]))

        status = self._wait_status(f"the commit of step {step} or later", accept)
        self._note_pids(status)
        return status

    def _note_pids(self, status):
        for daemon in self._of_daemons(status):
            self._daemon_pids[daemon["node"]] = daemon["pid"]
        self._meta_pid = status.get("meta", {}).get("pid")

    def wait_end(self):
        def ready():
            code = self._launcher.exit_code()
            return None if code is None else (code,)

        code = self._wait("the end of the job", ready)[0]
        self.log.read_on()
        if code != 0:
            raise DemoError(f"the job failed with code {code}: {self._launcher.reason()}")
