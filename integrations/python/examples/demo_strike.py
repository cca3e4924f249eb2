"""One fault of the demo, and what the job makes of it: struck, watched and counted."""

import time

import chaos
import demo_run

STEPS_LOST_MAX = 2


def say(text):
    print(text, flush=True)


class Totals:
    """What the faults have cost so far."""

    def __init__(self):
        self.faults = 0
        self.steps_lost_max = 0
        self.recovery_s_max = 0.0

    def add(self, steps_lost, recovery_s):
        self.steps_lost_max = max(self.steps_lost_max, steps_lost)
        self.recovery_s_max = max(self.recovery_s_max, recovery_s)


def show_progress(run, every=5):
    """A callback that says where the run is, every few steps."""
    def on_step(record):
        if record["step"] % every == 0:
            say(f"  step {record['step']:3d}/{run.steps}  loss {record['loss']:.4f}"
                f"  attempt {record['attempt']}")

    return on_step


def strike(run, fault, totals, meanwhile=lambda: None):
    """Carries one fault out, calls `meanwhile`, and waits until the job has gone beyond it.

    Returns the record with which the attempt began that recovered from it, if one had to.
    """
    # The end of a step that is seen now: the fault's moment is counted from it.
    step = run.wait_step(max(fault.step, run.log.last_step + 1))["step"]
    seen_at, attempt = time.monotonic(), run.attempt
    killed_at = chaos.inject(fault, seen_at, run.killer())
    totals.faults += 1
    say(f"  fault {totals.faults}: {fault}, {fault.delay_ms:.0f} ms after step {step}")
    meanwhile()
    start = None
    if fault.stops_training:
        start = check_recovery(run, attempt, killed_at, totals)
    else:
        check_training_went_on(run, attempt, killed_at, fault.kind)
    if fault.hits_daemon:
        run.wait_daemon_back(*fault.nodes)
    elif fault.kind == chaos.META:
        run.wait_meta_back()
    run.wait_committed()  # the next fault meets a job that is protected again
    return start


def check_recovery(run, attempt, killed_at, totals):
    start = run.wait_restart(attempt)
    # Only now: what the dying ranks still wrote is in the log.
    restored = start["restored_step"] or 0
    last = max(run.log.last_step_before(killed_at), restored)
    record = run.wait_step(last + 1, after_attempt=attempt)
    lost, recovery_s = last - restored, record["unix_s"] - killed_at
    totals.add(lost, recovery_s)
    say(f"    step {last} was finished, step {restored} is restored: {lost} lost;"
        f" step {last + 1} finished {recovery_s:.1f} s after the fault")
    if lost > STEPS_LOST_MAX:
        raise demo_run.DemoError(f"{lost} steps lost by a fault; at most {STEPS_LOST_MAX} may be")
    return start


def check_training_went_on(run, attempt, killed_at, victim):
    last = run.log.last_step_before(killed_at)
    record = run.wait_step(last + 2)
    if run.attempt != attempt:
        raise demo_run.DemoError(
            f"the {victim}'s death stopped training: attempt {run.attempt} after {attempt}")
    say(f"    training went on: step {record['step']} finished"
        f" {record['unix_s'] - killed_at:.1f} s after the fault, attempt {attempt} still")
