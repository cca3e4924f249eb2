"""Training by accelerate on fewer nodes and on all again, equal to that of one process to the bit.

That one is accelerate's alone: there is no Unreft in it, and nothing is sharded.
"""

import json
import os
import signal
import subprocess
import sys

import cli_testing
import pytest
from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes, wait_protected
from recut_testing import bring_up, lose

TRAINER = cli_testing.ROOT / "integrations/python/tests/wrapped_trainer.py"
FEWER = NODES - 1
# As large on any number of ranks; an epoch has four of them.
BATCH, EPOCH = 12, 48
# Within an epoch and at the end of one; each for the first time in an attempt of its own.
HOLDS = 2, 8


@pytest.fixture(scope="module")
def truth():
    """What the one process says of its steps: the samples of each, and the state after it."""
    words = [TRAINER, "accelerate", "--total-batch", BATCH, "--alone"]
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    steps = [line for line in map(json.loads, done.stdout.splitlines()) if "numbers" in line]
    for epoch in {line["epoch"] for line in steps}:
        samples = [n for line in steps if line["epoch"] == epoch for n in line["numbers"]]
        assert sorted(samples) == list(range(EPOCH))
    return {line["state"]["step"]: line for line in steps}


def wait_held(job, ranks, begun):
    """The step at which all ranks hold: it is committed, and they take no other."""
    def ready():
        assert job.process.poll() is None, f"the job ended: {job.output()}"
        held = [line["holds"] for line in job.lines() if line.get("holds", 0) > begun]
        return held if len(held) == ranks else None

    (step,) = set(wait_until(f"{ranks} ranks to hold", ready, PATIENCE_S))
    return step


@pytest.mark.parametrize("kind", ["accelerate", "accelerate-fsdp2"])
def test_three_of_four_nodes_and_four_again_train_what_one_process_does(cli, truth, kind):
    up_nodes(cli)
    job = cli.launch("--ranks", NODES, "--nodes", f"{FEWER}:{NODES}", "--max-restarts", 2, "--",
                     sys.executable, TRAINER, kind, "--total-batch", BATCH, "--hold-at", *HOLDS)
    first = wait_held(job, NODES, begun=0)
    wait_protected(cli, job, first)
    lose(cli, [2])  # its memory, and its rank with it
    second = wait_held(job, FEWER, begun=first)
    wait_protected(cli, job, second)
    bring_up(cli, [2])  # it is let in by the next restart
    os.kill(job.pids()[0], signal.SIGKILL)
    assert job.process.wait(PATIENCE_S) == 0, job.output()

    assert [event["ranks"] for event in job.events("attempt-start")] == [NODES, FEWER, NODES]
    lines = job.lines()
    begins = [line for line in lines if "restored" in line]
    for step, world, source in ((first, FEWER, NODES), (second, NODES, FEWER)):
        begun = [line for line in begins if line["restored"]["step"] == step]
        # What the other world said at that step, before it was saved, is the truth's as well.
        assert begun == [{"restored": truth[step]["state"], "reshaped_from": source}] * world
    # As each attempt restores where the one before it ended, a step is trained once.
    for step, true in truth.items():
        ranks = [line for line in lines if line.get("state", {}).get("step") == step]
        assert len(ranks) == (FEWER if first < step <= second else NODES)
        assert all(line["epoch"] == true["epoch"] for line in ranks)
        assert all(line["state"] == true["state"] for line in ranks), f"step {step}"
        samples = [number for line in ranks for number in line["numbers"]]
        assert sorted(samples) == sorted(true["numbers"])
    ends = [line["final"] for line in lines if "final" in line]
    assert ends == [truth[max(truth)]["state"]] * NODES
