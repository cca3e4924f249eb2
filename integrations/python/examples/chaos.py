"""Faults for the demo: a seeded plan of them, and the injector that carries it out.

A plan is drawn before the run and depends on nothing but its arguments, so a seed names the same
victims and the same moments again. A moment is a step of the training log and an offset after it.
"""

import dataclasses
import os
import random
import signal
import time

# What dies. Every plan has each of them at least once.
TRAINER = "trainer"  # at any moment of a step
CAPTURE = "trainer in capture"  # right after its snapshot started
DAEMON = "daemon"  # training must go on
BOTH = "daemon and trainer"  # at the same time
KINDS = (TRAINER, CAPTURE, DAEMON, BOTH)

STEP_MS_MAX = 500  # "any moment": drawn from this after a step
CAPTURE_MS_MAX = 8  # the copy begins with the end of the step and takes some 10 ms
BOTH_GAP_MS_MAX = 30

# Steps between faults: enough to see that training goes on, and to have a snapshot again.
GAP_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: `delay_ms` after step `step`, or a later one, was logged, `victims` are killed."""

    kind: str
    step: int
    delay_ms: float
    victims: tuple  # ranks, and "daemon", in this order
    gap_ms: float = 0.0  # between the first victim and the next

    @property
    def hits_trainer(self):
        return self.kind != DAEMON

    @property
    def hits_daemon(self):
        return self.kind in (DAEMON, BOTH)

    def __str__(self):
        who = " and ".join(v if v == "daemon" else f"rank {v}" for v in self.victims)
        return f"{self.kind}: SIGKILL to {who}"


def draw_plan(seed, steps, ranks, faults):
    """The faults of a run, in the order of their steps."""
    if faults < len(KINDS):
        raise ValueError(f"a plan has at least {len(KINDS)} faults, one of each kind; not {faults}")
    room = steps // (faults + 1)
    if room <= GAP_STEPS:
        raise ValueError(f"{faults} faults need at least {(GAP_STEPS + 1) * (faults + 1)} steps")
    rng = random.Random(f"unreft demo {seed}")
    kinds = [*KINDS, *rng.choices(KINDS, k=faults - len(KINDS))]
    rng.shuffle(kinds)
    # Each in its own stretch of the run, at a drawn step of it.
    steps_of = [room * (i + 1) - rng.randrange(room - GAP_STEPS) for i in range(faults)]
    return [_draw_fault(rng, kind, step, ranks) for kind, step in zip(kinds, steps_of)]


def _draw_fault(rng, kind, step, ranks):
    delay_ms = rng.uniform(0, CAPTURE_MS_MAX if kind == CAPTURE else STEP_MS_MAX)
    if kind == DAEMON:
        return Fault(kind, step, delay_ms, ("daemon",))
    # Mostly one; sometimes several go down together.
    trainers = rng.sample(range(ranks), rng.choice([1, 1, min(2, ranks)]))
    if kind != BOTH:
        return Fault(kind, step, delay_ms, tuple(trainers))
    victims = ["daemon", *trainers]
    rng.shuffle(victims)
    return Fault(kind, step, delay_ms, tuple(victims), rng.uniform(0, BOTH_GAP_MS_MAX))


def inject(fault, seen_at, trainer_pids, daemon_pid):
    """Kills the victims when `delay_ms` has passed since `seen_at` (time.monotonic()).

    Returns the unix time of the first kill. The pids are of processes that the caller started.
    """
    time.sleep(max(0.0, seen_at + fault.delay_ms / 1000 - time.monotonic()))
    killed_at = time.time()
    for number, victim in enumerate(fault.victims):
        if number == 1:
            time.sleep(fault.gap_ms / 1000)
        os.kill(daemon_pid if victim == "daemon" else trainer_pids[victim], signal.SIGKILL)
    return killed_at
