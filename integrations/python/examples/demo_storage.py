"""Act three of the demo: all nodes are lost at once, and the job goes on from storage.

Four ranks on four nodes train under FSDP2 (train_fsdp.py), with a snapshot every step, while the
daemons write a durable copy every few seconds. Then the job and every node go, with their memory
and what is recorded of the job, as hosts that are lost do. New daemons of new nodes, which know of
nothing but the directory, restore the newest copy, and the job trains to its end. What was
committed after that copy is trained again.

The reference is the same run, left alone and without Unreft.
"""

import time

import demo_check
import demo_run
from demo_strike import say, show_progress

STEPS = 24
NODES = RANKS = 4
STEP_S_MIN = 0.25  # such a small model would be done before the first copy is
EXPORT_EVERY_S = 2
FIRST_COPY = 4  # the step from which on a copy is waited for
LOST_STEPS = 3  # at least, after the newest copy
TRAINER = "train_fsdp.py"


def train(run, seed, *words):
    return run.launch(TRAINER, "--steps", run.steps, "--seed", seed, *words, ranks=RANKS,
                      options=["--max-restarts", 0])


def run_reference(run, seed):
    say(f"reference of torch alone: {RANKS} ranks, {run.steps} steps")
    begin = time.monotonic()
    run.log.on_step = show_progress(run)
    with train(run, seed):
        run.wait_end()
    say(f"  done in {time.monotonic() - begin:.0f} s")


def run_losing_all(run, seed, copies, totals):
    say(f"act three: {RANKS} ranks under FSDP2 on {NODES} nodes, a durable copy every"
        f" {EXPORT_EVERY_S} s; then all nodes are lost")
    begin = time.monotonic()
    run.log.on_step = show_progress(run)
    words = ["--checkpoint", "unreft", "--step-s-min", STEP_S_MIN]
    with run.daemon(), train(run, seed, *words):
        copy = run.wait_copy(copies, FIRST_COPY)
        run.wait_step(copy + LOST_STEPS)
        run.kill_job()
        lost_at = time.time()
    totals.faults += 1
    newest, last = run.newest_copy(copies), run.log.last_step_before(lost_at)
    say(f"  fault {totals.faults}: all {NODES} nodes, with memory and records, after step {last}")
    run.forget_records()
    starts = len(run.log.starts)
    with run.daemon(), train(run, seed, *words):
        start = run.wait_start(starts)
        if start["restored_step"] != newest:
            raise demo_run.DemoError(f"step {start['restored_step']} is restored; the newest"
                                     f" durable copy is of step {newest}")
        say(f"    step {newest} is restored out of a durable copy, {time.time() - lost_at:.1f} s"
            f" after the fault: {last - newest} steps are trained again")
        run.wait_end()
    say(f"  done in {time.monotonic() - begin:.0f} s")


def run_act(tools, seed, directory, deadline, totals):
    """What is different from the reference, in words."""
    copies = directory / "copies"
    copies.mkdir(parents=True)
    run = demo_run.Run(tools, directory / "storage", STEPS, RANKS, NODES, deadline)
    run.daemon_words = ["--pins", 1, "--export-dir", copies, "--export-every-s", EXPORT_EVERY_S]
    run_losing_all(run, seed, copies, totals)
    reference = demo_run.Run(tools, directory / "alone", STEPS, RANKS, NODES, deadline)
    run_reference(reference, seed)
    return demo_check.compare(reference, run, say)
