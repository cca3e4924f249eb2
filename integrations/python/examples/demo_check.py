"""The demo's verdict: whether two runs of a trainer ended in the same state, bit for bit."""

import collections
import json


def compare(reference, run, say):
    """What differs between two finished runs, in words; nothing when they are equal.

    Compares the digests of every part of every rank's final state, and every loss ever logged:
    also those of steps that were lost and done again.
    """
    differences = []
    expected, found = _final_parts(reference), _final_parts(run)
    for part in sorted({part for rank in [*expected, *found] for part in rank}):
        ranks = [n for n, (a, b) in enumerate(zip(expected, found)) if a.get(part) != b.get(part)]
        say(f"  {part:12s} {'equal on all ranks' if not ranks else f'DIFFERENT on ranks {ranks}'}")
        if ranks:
            differences.append(f"{part} on ranks {ranks}")
    differences += _compare_losses(reference, run, say)
    return differences


def _final_parts(run):
    files = [run.final_file(rank) for rank in range(run.ranks)]
    return [json.loads(file.read_text())["parts"] for file in files]


def _compare_losses(reference, run, say):
    expected = {r["step"]: r["loss_hex"] for r in reference.log.steps}
    steps = lasting_steps(run.log)
    wrong = sorted({r["step"] for r in steps if r["loss_hex"] != expected.get(r["step"])})
    missing = sorted(set(expected) - {r["step"] for r in steps})
    repeated = len(steps) - len(expected) + len(missing)
    if wrong or missing:
        say(f"  {'loss curve':12s} DIFFERENT at steps {wrong}, missing steps {missing}")
        return [f"losses at steps {wrong}, missing {missing}"]
    say(f"  {'loss curve':12s} equal at {len(expected)} steps and {repeated} repeated ones")
    return []


def lasting_steps(log):
    """The steps without those that were lost, and done again by another number of ranks.

    These had other samples than in the end.
    """
    def is_lost(step, start):
        return (step["attempt"] < start["attempt"] and step.get("world") != start.get("world")
                and step["step"] > (start["restored_step"] or 0))

    return [step for step in log.steps if not any(is_lost(step, start) for start in log.starts)]


def check_samples(run, say):
    """What is wrong with the samples of a run whose number of ranks changed: none may be repeated,
    and where a number of ranks takes over, up to one less may be left out."""
    by_step = {record["step"]: record for record in lasting_steps(run.log)}
    worlds = [by_step[step]["world"] for step in sorted(by_step)]
    allowed = sum(now - 1 for before, now in zip(worlds, worlds[1:]) if before != now)
    taken = collections.Counter(s for record in by_step.values() for s in record["samples"])
    repeated = sorted(sample for sample, times in taken.items() if times > 1)
    left_out = sorted(set(range(max(taken) + 1)) - set(taken))
    fine = not repeated and len(left_out) <= allowed
    say(f"  {'samples':12s} {'' if fine else 'WRONG: '}{len(taken)}, {len(repeated)} repeated,"
        f" {len(left_out)} left out of at most {allowed}")
    return [] if fine else [f"samples repeated {repeated}, left out {left_out}"]
