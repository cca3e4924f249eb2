"""A job of examples/slurm/train.sbatch, with the trainer of tests/cluster."""

import os
import re
import sys

from machines import NODES, ROOT, wait_until

from training import records, state_of

SCRIPT = ROOT / "examples/slurm/train.sbatch"
TRAINER = ROOT / "tests/cluster/trainer.py"
RANKS = 3  # a node each; the fourth of Slurm's nodes is the one to move to
STEPS_LOST_MAX = 2
LOG_TAIL = 4000


class BatchJob:
    """One name under which jobs are submitted, one after the other or not."""

    def __init__(self, machines, name, **environment):
        self.machines, self.name = machines, name
        self.directory = machines.shared / name
        self.directory.mkdir()
        self.step_log, self.until = self.directory / "steps", self.directory / "end"
        self.environment = {
            "SHARED": self.directory / "unreft", "LOCAL": "/run", "UNREFT_DATA_CHUNKS": 2,
            "UNREFT_PARITY_CHUNKS": 1, "TRAIN": self.trainer(self.step_log), **environment,
        }
        self.ids = []

    def trainer(self, log):
        return f"{sys.executable} {TRAINER} --step-log {log} --until {self.until}"

    # --- what its user does ---

    def submit(self, *words, **environment):
        """As the page says, but for what this little Slurm has not got; its number."""
        variables = {**self.environment, **environment}
        number = len(self.ids)
        given = [f"{name}={value}" for name, value in variables.items()]
        self.ids.append(self.machines.ask(
            "env", *given, "sbatch", "--parsable", f"--job-name={self.name}", f"--nodes={RANKS}",
            "--ntasks-per-node=1", "--oversubscribe", f"--output={self.directory}/out{number}",
            *words, SCRIPT).strip())
        return self.ids[-1]

    def begin(self, *words, **environment):
        """From nothing, until it trains."""
        self.submit(*words, **environment)
        wait_until(f"{self.name} to begin", self.restored)
        assert self.restored() == [None]
        self.trains_on()

    def output(self, number=0):
        path = self.directory / f"out{number}"
        return path.read_text() if path.exists() else ""

    def asked(self, field):
        """What Slurm says of the job that was submitted last."""
        text = self.machines.ask("scontrol", "-o", "show", "job", self.ids[-1])
        return re.search(rf" {field}=(\S*)", text)[1]

    def wait_state(self, *states):
        wait_until(f"{self.name} to be {states}", lambda: self.asked("JobState") in states)

    def wait_queued_again(self):
        """Slurm lets a job that is queued again begin two minutes later: not so long here."""
        self.wait_state("PENDING")
        self.machines.ask("scontrol", "update", f"JobId={self.ids[-1]}", "StartTime=now")

    def requeue(self):
        self.machines.ask("scontrol", "requeue", self.ids[-1])
        self.wait_queued_again()

    def end(self):
        """Training ends by itself, and nothing of it stays on the hosts that it has."""
        hosts = self.hosts()
        self.until.touch()
        self.wait_state("COMPLETED")
        for host in hosts:
            assert self.memory(host) == [], f"left on {host.name}"

    def memory(self, host):
        return sorted(path.name for path in host.path("/dev/shm").glob(f"unreft.{self.name}.*"))

    def unreft(self, host, *words, code=0):
        return host.run("unreft", "--run-dir", f"/run/unreft-{os.getuid()}/{self.name}", *words,
                        code=code)

    # --- what is going on ---

    def hosts(self):
        """By their slots."""
        by_name = {host.name: host for host in self.machines.nodes}
        return [by_name[name] for name in
                (self.directory / "unreft/hosts").read_text().splitlines()]

    def spare(self):
        (host,) = set(self.machines.nodes) - set(self.hosts())
        return host

    def newest(self, log=None):
        """The last line of each rank that has done a step."""
        return {line["rank"]: line for line in records(log or self.step_log) if "step" in line}

    def last_step(self, log=None):
        """That all ranks have done."""
        newest = self.newest(log)
        return min(line["step"] for line in newest.values()) if len(newest) == RANKS else 0

    def signal_rank(self, rank, signal="KILL"):
        self.hosts()[rank].signal(self.newest()[rank]["pid"], signal)

    def restored(self, log=None):
        """What each whole attempt has restored, None for nothing; the ranks agree."""
        by_rank = {rank: [] for rank in range(RANKS)}
        for line in records(log or self.step_log):
            if "restored" in line:
                by_rank[line["rank"]].append(line["restored"])
        attempts = list(zip(*by_rank.values(), strict=False))
        assert all(len(set(steps)) == 1 for steps in attempts), attempts
        return [steps[0] for steps in attempts]

    def trains_on(self, steps=5):
        """So many steps more, in the same attempt, and protected."""
        attempts, step = len(self.restored()), self.last_step() + steps
        wait_until(f"step {step} of {self.name}", lambda: self.last_step() >= step)
        assert len(self.restored()) == attempts, "training was interrupted"
        wait_until("protection", lambda: all(line["protecting"] for line in
                                             self.newest().values()))

    def restores(self, attempts):
        """Until attempt `attempts` has restored: at most two of the steps before it are lost."""
        wait_until("the next attempt to restore", lambda: len(self.restored()) > attempts)
        step, done = self.restored()[attempts], self._done_before(attempts)
        assert step is not None and step >= done - STEPS_LOST_MAX, (
            f"step {done} was done, step {step} is restored")
        self.trains_on()

    def _done_before(self, attempts):
        begun, done = {}, 0
        for line in records(self.step_log):
            if "restored" in line:
                begun[line["rank"]] = begun.get(line["rank"], -1) + 1
                if begun[line["rank"]] == attempts:
                    return done
            elif "step" in line:
                done = max(done, line["step"])
        raise AssertionError(f"attempt {attempts} has not begun")

    def check_exact(self, undisturbed, log=None):
        """Every step of every rank, and whatever was restored, is that of a quiet run."""
        lines = [{**line, "step": line.get("step", line.get("restored"))}
                 for line in records(log or self.step_log) if "weights" in line]
        assert lines, "no step was logged"
        expected = undisturbed.states(max(line["step"] for line in lines))
        wrong = [(line["rank"], line["step"]) for line in lines
                 if state_of(line) != expected[line["rank"], line["step"]]]
        assert not wrong, f"(rank, step) that differ from an undisturbed run: {wrong[:20]}"

    def describe(self):
        """The ends of all logs, for the report of a test that failed."""
        texts = [self.machines.ask("squeue", "--long")]
        for path in sorted([*self.directory.glob("out*"), *self.directory.glob("unreft/*.log")]):
            texts.append(f"--- {path.name}:\n{path.read_text()[-LOG_TAIL:]}")
        return "\n".join(texts)

    def close(self):
        """Whatever became of it: its jobs end, and their memory goes."""
        for number in self.ids:
            self.machines.control.ask("scancel", "--signal=KILL", "--full", number)
            self.machines.control.ask("scancel", number)
        wait_until("the end of its jobs", lambda: not self.machines.ask(
            "squeue", "-h", "-n", self.name))
        for host in self.machines.nodes:
            if host.is_on:
                host.script(f"rm -f /dev/shm/unreft.{self.name}.*")


assert NODES == RANKS + 1
