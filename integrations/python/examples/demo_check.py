"""The demo's verdict: whether two runs of train_gpt.py ended in the same state, bit for bit."""

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
    wrong = sorted({r["step"] for r in run.log.steps if r["loss_hex"] != expected.get(r["step"])})
    missing = sorted(set(expected) - {r["step"] for r in run.log.steps})
    repeated = len(run.log.steps) - len(expected) + len(missing)
    if wrong or missing:
        say(f"  {'loss curve':12s} DIFFERENT at steps {wrong}, missing steps {missing}")
        return [f"losses at steps {wrong}, missing {missing}"]
    say(f"  {'loss curve':12s} equal at {len(expected)} steps and {repeated} repeated ones")
    return []
