"""Faults for the demo: a seeded plan of them, and the injector that carries it out.

A plan is drawn before the run and depends on nothing but its arguments, so a seed names the same
victims and the same moments again. A moment is a step of the training log and an offset after it.
"""

import dataclasses
import random
import time

# What dies. Every plan has each of its kinds at least once.
TRAINER = "trainer"  # at any moment of a step
CAPTURE = "trainer in capture"  # right after its snapshot started
DAEMON = "daemon"  # training must go on
BOTH = "daemon and trainer"  # at the same time
KINDS = (TRAINER, CAPTURE, DAEMON, BOTH)

# Of several nodes.
META = "meta store"  # training must go on
NODE = "node"  # its daemon, its trainers and its memory; a new one takes its slot
TWO_NODES = "two nodes"  # at the same time
KINDS_OF_NODES = (TRAINER, CAPTURE, DAEMON, BOTH, META)
KINDS_THAT_DESTROY = (NODE, TWO_NODES)

STEP_MS_MAX = 500  # "any moment": drawn from this after a step
CAPTURE_MS_MAX = 8  # the copy begins with the end of the step and takes some 10 ms
BOTH_GAP_MS_MAX = 30

# Steps between faults: enough to see that training goes on, and to have a snapshot again.
GAP_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: `delay_ms` after step `step`, or a later one, was logged, `victims` are killed.

    A victim is a rank's number, "daemon", "meta store", or, of several nodes, "daemon 2", "node 2".
    """

    kind: str
    step: int
    delay_ms: float
    victims: tuple  # in this order
    gap_ms: float = 0.0  # between the first victim and the next

    @property
    def stops_training(self):
        return self.kind not in (DAEMON, META)

    @property
    def hits_daemon(self):
        return self.kind in (DAEMON, BOTH)

    @property
    def nodes(self):
        """The nodes whose daemon or memory is hit, as far as they have a number."""
        return [int(v.split()[1]) for v in self.victims
                if isinstance(v, str) and v.startswith(("daemon ", "node "))]

    def __str__(self):
        who = " and ".join(v if isinstance(v, str) else f"rank {v}" for v in self.victims)
        return f"{self.kind}: SIGKILL to {who}"


def kinds_of(nodes, destroy):
    if nodes == 1:
        return KINDS
    return (*KINDS_OF_NODES, *KINDS_THAT_DESTROY) if destroy else KINDS_OF_NODES


def draw_plan(seed, steps, ranks, faults, nodes=1, destroy=False):
    """The faults of a run, in the order of their steps."""
    each = kinds_of(nodes, destroy)
    if faults < len(each):
        raise ValueError(f"a plan has at least {len(each)} faults, one of each kind; not {faults}")
    room = steps // (faults + 1)
    if room <= GAP_STEPS:
        raise ValueError(f"{faults} faults need at least {(GAP_STEPS + 1) * (faults + 1)} steps")
    rng = random.Random(f"unreft demo {seed}")
    kinds = [*each, *rng.choices(each, k=faults - len(each))]
    rng.shuffle(kinds)
    # Each in its own stretch of the run, at a drawn step of it.
    steps_of = [room * (i + 1) - rng.randrange(room - GAP_STEPS) for i in range(faults)]
    return [_draw_fault(rng, kind, step, ranks, nodes) for kind, step in zip(kinds, steps_of)]


def draw_losses(seed, steps, nodes):
    """Two faults, each of one node: the first is not replaced, the second is another one."""
    rng = random.Random(f"unreft demo {seed}, act two")
    victims = rng.sample(range(nodes), 2)
    room = steps // 3
    if room <= GAP_STEPS:
        raise ValueError(f"two losses need at least {3 * (GAP_STEPS + 1)} steps")
    return [Fault(NODE, room * (i + 1) - rng.randrange(room - GAP_STEPS),
                  rng.uniform(0, STEP_MS_MAX), (f"node {victim}",))
            for i, victim in enumerate(victims)]


def _draw_fault(rng, kind, step, ranks, nodes):
    delay_ms = rng.uniform(0, CAPTURE_MS_MAX if kind == CAPTURE else STEP_MS_MAX)
    if kind == DAEMON:
        victim = "daemon" if nodes == 1 else f"daemon {rng.randrange(nodes)}"
        return Fault(kind, step, delay_ms, (victim,))
    if kind == META:
        return Fault(kind, step, delay_ms, (META,))
    if kind in KINDS_THAT_DESTROY:
        lost = rng.sample(range(nodes), 1 if kind == NODE else 2)
        return Fault(kind, step, delay_ms, tuple(f"node {node}" for node in lost))
    # Mostly one; sometimes several go down together.
    trainers = rng.sample(range(ranks), rng.choice([1, 1, min(2, ranks)]))
    if kind != BOTH:
        return Fault(kind, step, delay_ms, tuple(trainers))
    victims = ["daemon" if nodes == 1 else f"daemon {rng.randrange(nodes)}", *trainers]
    rng.shuffle(victims)
    return Fault(kind, step, delay_ms, tuple(victims), rng.uniform(0, BOTH_GAP_MS_MAX))


def inject(fault, seen_at, kill):
    """Kills the victims, by `kill(victim)`, when `delay_ms` has passed since `seen_at` (monotonic).

    Returns the unix time of the first kill. What takes longer than a signal, `kill` only begins; it
    returns how to wait for it.
    """
    time.sleep(max(0.0, seen_at + fault.delay_ms / 1000 - time.monotonic()))
    killed_at = time.time()
    waits = []
    for number, victim in enumerate(fault.victims):
        if number == 1:
            time.sleep(fault.gap_ms / 1000)
        waits.append(kill(victim))
    for wait in waits:
        if wait:
            wait()
    return killed_at
