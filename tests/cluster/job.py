"""A lab with its training: what the tests do to it, and what they ask."""

import json

from lab import NODES, Lab
from namespaces import wait_until
from training import Training, state_of

STEPS_LOST_MAX = 2
LOG_TAIL = 1500


class Job:
    def __init__(self, stores=1):
        self.lab = Lab(stores)
        self.training = None
        self.trainings = 0
        self.spent = False  # its hosts are not those of a fresh lab any more

    def start(self, *words):
        try:
            self.lab.bring_up()
            self.train(*words)
        except BaseException:
            print(self.describe())
            self.close()
            raise

    def train(self, *words):
        self.training = Training(self.lab, self.trainings, *words)
        self.trainings += 1

    @property
    def hosts(self):
        return self.lab.hosts[:NODES]

    # --- whether it is well ---

    def committed(self):
        return (self.lab.status().get("committed") or {}).get("step", 0)

    def wait_protected(self):
        """Until a step that begins only now is committed, and any two hosts may be lost."""
        step = self.training.last_step() + 2

        def protected(status):
            return ((status["committed"] or {}).get("step", 0) >= step
                    and [group["stands"] for group in status["groups"]] == [2])

        return self.lab.wait_status(f"step {step} to be committed, two losses to stand", protected)

    def check_exact(self, undisturbed):
        """Every step of every rank, those that were done again too, is that of a quiet run."""
        steps = self.training.states()
        assert steps, "no step was logged"
        expected = undisturbed.states(max(line["step"] for line in steps))
        wrong = [(line["rank"], line["step"]) for line in steps
                 if state_of(line) != expected[line["rank"], line["step"]]]
        assert not wrong, f"(rank, step) that differ from an undisturbed run: {wrong[:20]}"

    # --- what goes on meanwhile ---

    def trains_on(self, steps=5):
        """So many steps more, in the same attempt."""
        attempts = self.training.attempts()
        self.training.wait_step(self.training.last_step() + steps)
        assert self.training.attempts() == attempts, "training was interrupted"

    def wait_restored(self, attempts_before, done):
        """Until the next attempt has restored; no more than two of the steps done are lost."""
        def ready():
            restored = self.training.restored()
            return restored[attempts_before] if len(restored) > attempts_before else None

        step = wait_until("the next attempt to restore", ready)
        assert step is not None and step >= done - STEPS_LOST_MAX, (
            f"step {done} was done, step {step} is restored")
        return step

    # --- hosts ---

    def replace(self, host, clock_offset_s=0):
        """Another machine in its place: the same disk, nothing in memory."""
        host.boot(clock_offset_s)
        self.lab.start_daemon(host)
        self.training.start_agent(host)

    # --- the end ---

    def describe(self):
        """The ends of all logs, for the report of a test that failed."""
        texts = [f"status: {self.lab.status()}"]
        for host in [*self.lab.hosts, *self.lab.stores.values()]:
            texts += [f"--- {path.name} of {host.name}:\n{path.read_text()[-LOG_TAIL:]}"
                      for path in sorted(host.disk.glob("*.log"))]
            if log := self.lab.daemon_log(host):
                texts.append(f"--- unreftd of {host.name}:\n{log[-LOG_TAIL:]}")
        return "\n".join(texts)

    def stop_daemon(self, host):
        """For good: neither it nor its supervisor has time to do anything."""
        up = json.loads(self.lab.unreft(host, "--json", "up"))
        host.signal(up["supervisor_pid"])
        host.signal(up["pid"])
        wait_until("its end", lambda: not host.runs(up["pid"]))

    def close(self):
        self.lab.close()
