#!/usr/bin/env python3
"""The demo: a training job is killed again and again, and ends as if nothing had happened.

    make demo            or: demo.py [--seed N] [--nodes 4 [--destroy-nodes]] [--act 2|3]

First a reference run, left alone and without Unreft. Then the same run with a snapshot every step,
while faults drawn by the seed strike (chaos.py): trainers are SIGKILLed, among others during
capture, the daemon is, and both at once. At the end weights, optimizer, generators and loss curve
must equal the reference bit for bit, and no fault may have cost more than two steps.

With --nodes 4 the job has four nodes with a daemon each and a meta store, all on this machine, in
one protection group of 2 + 2. Then the meta store is killed, too, and with --destroy-nodes nodes
are: one, and two at once, with their memory; new ones take their slots. Then act two follows, in
which none takes the slot of a lost node, and the job goes on without it (demo_shrink.py), and act
three, in which all nodes are lost, and it goes on from storage (demo_storage.py).

With --device cuda each rank trains on a GPU of its own, with deterministic kernels.

Everything is real: `unreft up --supervise` keeps the daemon, `unreft run` the training job
(train_gpt.py), and what the demo knows it reads from the job's log and from `unreft status`.
"""

import argparse
import contextlib
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import chaos
import demo_check
import demo_run
import demo_shrink
import demo_storage
from demo_strike import Totals, say, show_progress, strike

TRAINER = "train_gpt.py"


def launch(run, args, *words, options):
    words = ["--steps", run.steps, "--seed", args.seed, *words]
    words += ["--size", args.size, "--device", args.device]
    return run.launch(TRAINER, *words, ranks=run.ranks, options=options)


def run_reference(run, args):
    say(f"reference run: {run.steps} steps, {run.ranks} ranks, nothing saved, nobody killed")
    begin = time.monotonic()
    run.log.on_step = show_progress(run)
    with launch(run, args, options=["--max-restarts", 0]):
        run.wait_end()
    say(f"  done in {time.monotonic() - begin:.0f} s")


def run_under_faults(run, args, plan, totals):
    say(f"run under faults: a snapshot every step, {len(plan)} faults")
    begin = time.monotonic()
    run.log.on_step = show_progress(run)
    words = ["--checkpoint", "unreft", "--step-s-min", args.step_s_min]
    options = ["--max-restarts", len(plan)] + (["--replace-nodes"] if run.nodes > 1 else [])
    with run.daemon(), launch(run, args, *words, options=options):
        for fault in plan:
            strike(run, fault, totals)
        run.wait_end()
        run.note_status()
    say(f"  done in {time.monotonic() - begin:.0f} s, {run.attempt + 1} attempts;"
        f" {run.abandoned_versions} snapshots were given up before all ranks had them")
    say(f"  snapshots skipped by a rank: {run.skipped_snapshots}"
        + (f", the last because: {run.last_skip}" if run.last_skip else ""))


def run_act_one(tools, args, directory, deadline, totals):
    """What is different from the reference, in words."""
    plan = chaos.draw_plan(args.seed, args.steps, args.ranks, args.faults, args.nodes,
                           args.destroy_nodes)
    shape = args.steps, args.ranks, args.nodes
    reference = demo_run.Run(tools, directory / "reference", *shape, deadline)
    run_reference(reference, args)
    run = demo_run.Run(tools, directory / "faults", *shape, deadline)
    run_under_faults(run, args, plan, totals)
    return demo_check.compare(reference, run, say)


def run_demo(args, directory):
    deadline = demo_run.Deadline(args.timeout_s)
    tools, totals = demo_run.Tools.find(), Totals()
    differences = []
    if 1 in args.acts:
        differences += run_act_one(tools, args, directory, deadline, totals)
    if 2 in args.acts and not differences:
        differences += demo_shrink.run_act(tools, args.seed, directory, deadline, totals)
    if 3 in args.acts and not differences:
        differences += demo_storage.run_act(tools, args.seed, directory, deadline, totals)
    if differences:
        raise demo_run.DemoError("not bit-exact: " + "; ".join(differences))
    return totals


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="draws victims and moments")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, help="at least one of each kind; 6, or as many")
    parser.add_argument("--nodes", type=int, default=1, help="4 or more, or 1")
    parser.add_argument("--destroy-nodes", action="store_true",
                        help="with their memory; acts two and three")
    parser.add_argument("--act", type=int, choices=[1, 2, 3],
                        help="this one alone; two and three are of four nodes, on CPUs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu",
                        help="cuda: a GPU for each rank")
    parser.add_argument("--size", choices=["demo", "gpu", "tiny"], default="demo",
                        help="of the model")
    parser.add_argument("--step-s-min", type=float, default=0,
                        help="under faults, where a job would end before they strike")
    parser.add_argument("--timeout-s", type=float, default=1200, help="limit of the whole demo")
    parser.add_argument("--keep", metavar="DIR", help="leave logs and results in DIR")
    args = parser.parse_args()
    if args.nodes in (2, 3) or args.nodes < 1:
        parser.error("--nodes must be 1, or at least the 4 of a group of 2 + 2")
    if args.destroy_nodes and args.nodes == 1:
        parser.error("--destroy-nodes needs --nodes 4")
    args.acts = [args.act] if args.act else [1, 2, 3] if args.destroy_nodes else [1]
    if args.faults is None:
        args.faults = max(6, len(chaos.kinds_of(args.nodes, args.destroy_nodes)))
    return args


def stop_on_sigterm(number, _):
    raise KeyboardInterrupt(f"signal {number}")


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, stop_on_sigterm)
    directory = pathlib.Path(args.keep or tempfile.mkdtemp(prefix="unreft-demo-")).resolve()
    begin = time.monotonic()
    say(f"demo: seed {args.seed}, logs in {directory}")
    try:
        totals = run_demo(args, directory)
    except (demo_run.DemoError, OSError, ValueError) as error:
        say(f"DEMO FAILED seed={args.seed}: {error} (logs: {directory})")
        return 1
    except KeyboardInterrupt:
        say(f"DEMO FAILED interrupted (logs: {directory})")
        return 130
    if not args.keep:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
    say(f"total {time.monotonic() - begin:.0f} s")
    steps = sum({1: args.steps, 2: demo_shrink.STEPS, 3: demo_storage.STEPS}[act]
                for act in args.acts)
    say(f"DEMO OK steps={steps} faults={totals.faults}"
        f" steps_lost_max={totals.steps_lost_max} recovery_s={totals.recovery_s_max:.1f}"
        " bit_exact=yes" + (f" reshaped={demo_shrink.RESHAPED}" if 2 in args.acts else "")
        + (" from_storage=yes" if 3 in args.acts else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
