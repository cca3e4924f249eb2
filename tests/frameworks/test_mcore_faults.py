"""Training by Megatron-Core on several nodes: trainers, daemons and nodes are lost, and it ends
with the same bytes."""

import functools
import itertools
import os
import pathlib
import sys

import fault_matrix
import pytest
from real_store import FORK_SERVER

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

SCRIPT = pathlib.Path(__file__).with_name("mcore_trainer.py")
# Before the server starts, which is that of all tests: also of others that were asked for.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ["PYTHONPATH"]])
FORK_SERVER.set_forkserver_preload(
    ["preloaded",
     *(["deepspeed_preloaded"] if {"test_deepspeed", "test_deepspeed_faults"} & set(sys.modules)
       else []),
     "mcore_preloaded"]
)
SIZES = [(2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2)]  # of tensor, pipeline and data parallelism


def words_of(tp, pp):
    return ["--tp", tp, "--pp", pp, "--steps", 7]


@functools.cache
def undisturbed(tp, pp, dp):
    return states_of(fault_matrix.undisturbed(SCRIPT, words_of(tp, pp), tp * pp * dp))


def states_of(records):
    """What each rank says, without what it finds in the way of its last snapshot."""
    return [[{name: value for name, value in record.items() if name != "problem"}
             for record in of_rank] for of_rank in records.ranks]


@pytest.mark.parametrize(
    "sizes, fault",
    [pytest.param(sizes, fault, id="tp {}-pp {}-dp {}-{}".format(*sizes, fault))
     for sizes, fault in itertools.product(SIZES, fault_matrix.FAULTS)],
)
def test_it_ends_with_the_same_bytes(sizes, fault):
    tp, pp, dp = sizes
    ranks = tp * pp * dp
    # With two stages it is of the first or, where there are two replicas, of the last.
    found = fault_matrix.disturbed(SCRIPT, words_of(tp, pp), ranks, fault, victim=pp % ranks)
    assert found.after.each("restored") == [found.step] * ranks
    expected, after = undisturbed(*sizes), states_of(found.after)
    for was, held, now in zip(expected, found.before, after, strict=True):
        begun, state, *rest = now
        assert begun == {"restored": found.step, "reshaped_from": None, "log": []}
        assert state == {name: held[name] for name in ("state", "own")}
        # Losses, learning rates, and all that the end has.
        assert rest == was[-len(rest):]
        assert 1 < len(rest) < len(was) - 1
        assert rest[-1]["final"]["adam_steps"] == [7]


@pytest.mark.parametrize("tp, pp", [(2, 1), (1, 2)], ids=["tp 2", "pp 2"])
def test_it_goes_on_with_one_replica_where_a_node_is_lost_for_good(tp, pp):
    # Three nodes are left, and a third rank would be a part of a replica.
    words = words_of(tp, pp)
    found = fault_matrix.disturbed_for_good(SCRIPT, words, ranks=4, victim=pp, multiple=tp * pp)
    planned = fault_matrix.resized(SCRIPT, words, ranks=4, fewer=2)
    assert found.after.each("restored") == [found.step] * 2
    after = states_of(found.after)
    assert after == states_of(planned)
    # Ranks of tensor parallelism come first, then replicas, then stages.
    first_replica = found.before[:2] if tp == 2 else found.before[::2]
    for held, now in zip(first_replica, after, strict=True):
        assert now[0] == {"restored": found.step, "reshaped_from": 4, "log": []}
        # Whole tensors, as four ranks had them, and the random streams of its place.
        assert now[1] == {name: held[name] for name in ("state", "own")}
        assert now[-1]["final"]["adam_steps"] == [7]
