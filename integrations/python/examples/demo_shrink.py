"""Act two of the demo: a node is lost for good, and the job goes on without it.

Four ranks on four nodes train under FSDP2 (train_fsdp.py), in one protection group of 2 + 2. A node
is destroyed with its memory and its rank, and nothing takes its place: `unreft run --nodes 3:4`
goes on with three ranks on the three nodes that are left, which restore what four ranks saved, and
the group is formed anew of these three. Then another node is destroyed. A new one takes its slot,
and three ranks restore again what is decoded from two nodes.

The reference is torch alone: four ranks train to the step that was restored by three, save it by
torch.distributed.checkpoint to files, and three ranks load these and train to the end.
"""

import time

import chaos
import demo_check
import demo_run
from demo_strike import say, show_progress, strike

STEPS = 30
NODES = RANKS = 4
LEFT = NODES - 1  # of both
STEP_S_MIN = 0.25  # such a small model would be done before anything strikes
TRAINER = "train_fsdp.py"
RESHAPED = f"{RANKS}>{LEFT}"


def describe_groups(status):
    """What `unreft status` says of the nodes and their protection."""
    lines = []
    for group in status["groups"]:
        nodes = ", ".join(str(slot) for slot in group["slots"])
        lines.append(f"nodes {nodes} in a group of {group['k']} + {group['m']}, which stands the"
                     f" loss of {group['stands']}")
    for member in status["members"]:
        state = "left out" if member.get("left_out") else "lost" if member["lost"] else None
        lines += [f"node {member['slot']} is {state}"] if state else []
    lines += [status["exposure"]] if status.get("exposure") else []
    return lines


def say_status(status):
    for line in describe_groups(status):
        say(f"    unreft status: {line}")


def check_shrunk(run, lost, start):
    """The lost node is in no group any more, and one rank less has gone on."""
    if start["world"] != LEFT:
        raise demo_run.DemoError(f"{start['world']} ranks went on; {LEFT} were to")
    status = run.wait_committed()
    left = sorted(slot for group in status["groups"] for slot in group["slots"])
    if left != sorted(set(range(NODES)) - set(lost)):
        raise demo_run.DemoError(f"the protection groups are of nodes {left}, without {lost}")


def run_shrinking(run, seed, totals):
    """Returns the step that went from four ranks to three."""
    lost, replaced = chaos.draw_losses(seed, run.steps, NODES)
    say(f"act two: {RANKS} ranks under FSDP2 on {NODES} nodes; one node is lost for good,"
        " later another one, which is replaced")
    begin = time.monotonic()
    run.log.on_step = show_progress(run)
    words = ["--steps", run.steps, "--seed", seed, "--checkpoint", "unreft"]
    words += ["--step-s-min", STEP_S_MIN]
    options = ["--nodes", f"{LEFT}:{NODES}", "--max-restarts", 2]
    with run.daemon(), run.launch(TRAINER, *words, ranks=RANKS, options=options):
        say_status(run.wait_committed())
        start = strike(run, lost, totals, lambda: say_status(run.wait_lost(*lost.nodes)))
        check_shrunk(run, lost.nodes, start)
        say(f"    {LEFT} ranks went on with what {RANKS} had saved, without node {lost.nodes[0]}")
        say_status(run.wait_committed())
        run.replaces_nodes = True
        again = strike(run, replaced, totals)
        check_shrunk(run, lost.nodes, again)
        say(f"    {LEFT} ranks went on; a new daemon, with empty memory, is node"
            f" {replaced.nodes[0]}")
        say_status(run.wait_committed())
        run.wait_end()
        run.note_status()
    say(f"  done in {time.monotonic() - begin:.0f} s, {run.attempt + 1} attempts")
    return start["restored_step"]


def run_reference(run, seed, step, directory):
    say(f"reference of torch alone: {RANKS} ranks to step {step}, files, {LEFT} ranks to step"
        f" {run.steps}")
    begin = time.monotonic()
    run.log.on_step = show_progress(run)
    files = directory / "files"
    for ranks, words in ((RANKS, ["--steps", step, "--save", files]),
                         (LEFT, ["--steps", run.steps, "--load", files])):
        with run.launch(TRAINER, "--seed", seed, *words, ranks=ranks,
                        options=["--max-restarts", 0]):
            run.wait_end()
    say(f"  done in {time.monotonic() - begin:.0f} s")


def run_act(tools, seed, directory, deadline, totals):
    """What is different from the reference, in words."""
    run = demo_run.Run(tools, directory / "fewer", STEPS, LEFT, NODES, deadline)
    step = run_shrinking(run, seed, totals)
    reference = demo_run.Run(tools, directory / "files", STEPS, LEFT, NODES, deadline)
    run_reference(reference, seed, step, directory / "files")
    return demo_check.compare(reference, run, say) + demo_check.check_samples(run, say)
