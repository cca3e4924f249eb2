"""Training by DeepSpeed's ZeRO on several nodes: trainers, daemons and nodes are lost, and it ends
with the same bytes."""

import functools
import itertools
import os
import pathlib

import fault_matrix
import pytest
from real_store import FORK_SERVER

pytest.importorskip("deepspeed", reason="deepspeed is not installed")

SCRIPT = pathlib.Path(__file__).with_name("deepspeed_trainer.py")
# Before the server starts, which is that of all tests.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ["PYTHONPATH"]])
FORK_SERVER.set_forkserver_preload(["preloaded", "deepspeed_preloaded"])


def words_of(stage):
    return ["--stage", stage, "--steps", 7]


@functools.cache
def undisturbed(stage, ranks):
    return states_of(fault_matrix.undisturbed(SCRIPT, words_of(stage), ranks))


def states_of(records):
    """What each rank says, without what it finds in the way of its last snapshot."""
    return [[{name: value for name, value in record.items() if name != "problem"}
             for record in of_rank] for of_rank in records.ranks]


def case(stage, ranks, fault):
    is_short = (stage, ranks) == (3, 2) and fault != "daemon"
    marks = [pytest.mark.short] if is_short else []
    return pytest.param(stage, ranks, fault, marks=marks, id=f"stage {stage}-dp {ranks}-{fault}")


@pytest.mark.parametrize(
    "stage, ranks, fault",
    [case(*each) for each in itertools.product((1, 2, 3), (2, 4), fault_matrix.FAULTS)],
)
def test_it_ends_with_the_same_bytes(stage, ranks, fault):
    found = fault_matrix.disturbed(SCRIPT, words_of(stage), ranks, fault, victim=stage % ranks)
    assert found.after.each("restored") == [found.step] * ranks
    expected, after = undisturbed(stage, ranks), states_of(found.after)
    for was, held, now in zip(expected, found.before, after, strict=True):
        begun, state, *rest = now
        assert begun["reshaped_from"] is None
        assert state == {name: held[name] for name in ("state", "own")}
        # Losses, learning rates, and all that the end has.
        assert rest == was[-len(rest):]
        assert 1 < len(rest) < len(was) - 1
        assert rest[-1]["final"]["counts"] == [7, 0]


def test_it_goes_on_with_fewer_ranks_where_a_node_is_lost_for_good():
    words = words_of(2)
    found = fault_matrix.disturbed_for_good(SCRIPT, words, ranks=4, victim=1)
    planned = fault_matrix.resized(SCRIPT, words, ranks=4, fewer=3)
    assert found.after.each("restored") == [found.step] * 3
    after = states_of(found.after)
    assert after == states_of(planned)
    for held, now in zip(found.before, after):
        assert now[0]["reshaped_from"] == 4
        # Whole tensors, as four ranks had them.
        assert now[1]["state"] == held["state"]
        assert now[-1]["final"]["counts"] == [7, 0]
