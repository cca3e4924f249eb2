"""The training job of the lab under torchrun, and what it would have been undisturbed."""

import contextlib
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

from lab import NODES
from namespaces import wait_until

TRAINER = pathlib.Path(__file__).with_name("trainer.py")
PARTS = ("weights", "optimizer", "generators", "rate")
REFERENCE_STEPS = 250
REFERENCE_TIMEOUT_S = 300


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


@functools.cache
def undisturbed(steps):
    """The state of each rank after each of so many steps, of a job that nobody touches."""
    with tempfile.TemporaryDirectory(prefix="unreft-lab-") as directory:
        log = pathlib.Path(directory) / "log"
        subprocess.run([sys.executable, TRAINER, "--undisturbed", str(NODES), "--steps", str(steps),
                        "--step-log", log], check=True, timeout=REFERENCE_TIMEOUT_S,
                       stdin=subprocess.DEVNULL, capture_output=True)
        found = {(line["rank"], line["step"]): state_of(line) for line in records(log)}
    assert len(found) == NODES * steps
    return found


def undisturbed_until(step):
    steps = REFERENCE_STEPS
    while steps < step:
        steps *= 2
    return undisturbed(steps)


class Training:
    """Agents of torchrun, one on each host that trains, and what their ranks have logged."""

    def __init__(self, lab, *words):
        self._lab = lab
        self.agents = {}
        self._words = " ".join(words)
        self._until = lab.directory / "disk" / "end"
        self._meeting_point = lab.control.start("meeting-point", lab.block("meeting-point"))
        for host in lab.hosts[:NODES]:
            self.start_agent(host)

    def start_agent(self, host):
        host_log = self._lab.directory / "disk" / "steps"
        train = f"{TRAINER} --step-log {host_log} --until {self._until} {self._words}"
        block = self._lab.block("train", ETC=self._lab.etc, GPUS=1, TRAIN=train)
        self.agents[host.name] = host.start("torchrun", block)

    # --- what the ranks have logged ---

    def lines(self, host=None):
        """In the order of each host."""
        hosts = [host] if host else self._lab.hosts
        return [line for each in hosts for line in records(each.disk / "steps")]

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

    def check_runs(self):
        for name, agent in self.agents.items():
            assert agent.process.poll() is None, f"torchrun of {name} has ended:\n{agent.log}"

    def wait_step(self, step):
        def ready():
            self.check_runs()
            return self.last_step() >= step

        wait_until(f"step {step}", ready)
