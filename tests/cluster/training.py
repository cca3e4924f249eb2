"""The training job of the lab under torchrun, and what it would have been undisturbed."""

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from lab import NODES
from namespaces import wait_until

TRAINER = pathlib.Path(__file__).with_name("trainer.py")
PARTS = ("weights", "optimizer", "generators", "rate")


def records(path):
    """The lines of a log, but for one that is being written."""
    found = []
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def state_of(record):
    return tuple(str(record[part]) for part in PARTS)


class Undisturbed:
    """The same training, of which nobody kills anything: as far as it was asked for."""

    def __init__(self, ranks=NODES):
        self._ranks = ranks
        self._directory = tempfile.mkdtemp(prefix="unreft-lab-")
        self._log = pathlib.Path(self._directory) / "log"
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", sys.executable, TRAINER, "--undisturbed",
             str(ranks), "--step-log", self._log],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._until = 0
        self._states = {}

    def states(self, step):
        """(rank, step) and the state then, of all steps up to that one."""
        if step > self._until:
            self._process.stdin.write(f"{step}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n", "the undisturbed run has ended"
            self._until = step
            self._states = {(line["rank"], line["step"]): state_of(line)
                            for line in records(self._log)}
            assert len(self._states) == self._ranks * step
        return self._states

    def close(self):
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._directory)


class Training:
    """Agents of torchrun, one on each host that trains, and what their ranks have logged."""

    def __init__(self, lab, number, *words):
        """`number`: of this start of the job in its lab."""
        self._lab = lab
        self.agents = {}
        self._words = " ".join(words)
        self._log, self._until = f"steps{number}", f"end{number}"
        self._meeting_point = lab.control.start("meeting-point", lab.block("meeting-point"))
        for host in lab.hosts[:NODES]:
            self.start_agent(host)

    def start_agent(self, host):
        disk = self._lab.directory / "disk"
        train = f"{TRAINER} --step-log {disk}/{self._log} --until {disk}/{self._until}"
        self.agents[host.name] = host.start("torchrun", self._lab.block(
            "train", ETC=self._lab.etc, GPUS=1, TRAIN=f"{train} {self._words}"))

    def end_agent(self, host):
        """As Ctrl-C or a scheduler does."""
        agent = self.agents.pop(host.name)
        agent.signal_all("TERM")
        agent.wait()

    def end(self):
        """All ranks end with one step, and the agents with success."""
        for host in self._lab.hosts:
            (host.disk / self._until).touch()
        for name, agent in self.agents.items():
            assert agent.wait() == 0, f"torchrun of {name}:\n{agent.log}"
        self._end_meeting_point()

    def abort(self):
        for host in self._lab.hosts:
            if host.name in self.agents:
                self.end_agent(host)
        self._end_meeting_point()

    def _end_meeting_point(self):
        """Agents do not meet at one where others have ended."""
        self._meeting_point.signal_all()
        self._meeting_point.wait()

    # --- what the ranks have logged ---

    def lines(self, host=None):
        """In the order of each host."""
        hosts = [host] if host else self._lab.hosts
        return [line for each in hosts for line in records(each.disk / self._log)]

    def states(self):
        """The lines that have a state: of steps that were done, or restored."""
        return [{**line, "step": line.get("step", line.get("restored"))} for line in self.lines()
                if "weights" in line]

    def last_step(self):
        """That all ranks have done."""
        newest = {}
        for line in self.lines():
            if "step" in line:
                newest[line["rank"]] = max(line["step"], newest.get(line["rank"], 0))
        return min(newest.values()) if len(newest) == NODES else 0

    def last_done(self):
        """That any rank has done."""
        return max((line["step"] for line in self.lines() if "step" in line), default=0)

    def pid(self, host):
        """Of its rank, by the host's own numbers."""
        return self.lines(host)[-1]["pid"]

    def restored(self):
        """What each whole attempt has restored, None for nothing; the ranks agree."""
        by_rank = {rank: [] for rank in range(NODES)}
        for line in self.lines():
            if "restored" in line:
                by_rank[line["rank"]].append((line["unix_s"], line["restored"]))
        attempts = []
        for round_of_ranks in zip(*(sorted(own) for own in by_rank.values()), strict=False):
            steps = {step for _, step in round_of_ranks}
            assert len(steps) == 1, f"ranks restored different steps: {round_of_ranks}"
            attempts.append(steps.pop())
        return attempts

    def attempts(self):
        return len(self.restored())

    # --- waiting ---

    def wait_error(self, part="message"):
        """What a rank says that could not go on."""
        def ready():
            return next((line[part] for line in self.lines() if "error" in line), None)

        return wait_until("an error", ready)

    def check_runs(self):
        for name, agent in self.agents.items():
            assert agent.process.poll() is None, f"torchrun of {name} has ended:\n{agent.log}"

    def wait_step(self, step):
        def ready():
            self.check_runs()
            return self.last_step() >= step

        wait_until(f"step {step}", ready)
