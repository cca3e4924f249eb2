"""Derived tensors with the real daemon: kill, restore, compare bit for bit."""

import pathlib

import pytest
from real_store import Store, states

TRAINER = pathlib.Path(__file__).with_name("derived_trainer.py")
PARAMETERS = 64 * 256 + 256 + 256 * 64 + 64  # of bf16


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def train(store, world, *args, **kwargs):
    return store.train(world, *args, script=TRAINER, **kwargs)


def found(records, key):
    return next(record[key] for record in records if key in record)


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def reference(request):
    """World size and final state per rank of a run undisturbed, which captures everything."""
    store = Store()
    try:
        ranks = train(store, request.param, "--derive", "none")
    finally:
        store.close()
    return request.param, [states(records)[-1] for records in ranks]


def test_killed_trainers_resume(store, reference):
    """And the daemon is killed, too, when the weights have to be made again from its memory."""
    world, final = reference
    before = train(store, world, "--die-after", 3, killed=True)
    store.kill()
    store.start()
    after = train(store, world)
    for rank in range(world):
        saved = states(before[rank])[-1]
        assert found(before[rank], "derived") == 5
        assert found(before[rank], "not_derived") == []
        assert after[rank][0] == {"restored": saved["step"]}
        assert states(after[rank]) == [saved, final[rank]]


def test_only_masters_and_their_state_are_captured(store):
    before = train(store, 1, "--die-after", 3, killed=True)[0]
    needed = PARAMETERS * (4 + 8)  # masters and two moments
    assert found(before, "bytes_per_snapshot") == pytest.approx(needed, rel=0.1)


@pytest.mark.parametrize(("before", "after"), [("none", "all"), ("casts", "none")])
def test_other_declarations_restore(store, before, after):
    """What was captured is there, and a cast is known without its declaration."""
    killed = train(store, 1, "--die-after", 3, "--derive", before, killed=True)[0]
    resumed = train(store, 1, "--derive", after)[0]
    assert states(resumed)[0] == states(killed)[-1]


def test_function_that_is_declared_no_longer_is_refused(store):
    saved = states(train(store, 1, "--die-after", 3, killed=True)[0])[-1]
    (record,) = train(store, 1, "--derive", "casts")[0]
    assert record["error"] == "FailedPrecondition"
    assert "'rank0/buffer/peak' was not captured" in record["message"]
    assert states(train(store, 1)[0])[0] == saved


def test_other_function_is_refused_and_nothing_is_lost(store):
    before = train(store, 1, "--die-after", 3, killed=True)[0]
    saved = states(before)[-1]
    (record,) = train(store, 1, "--peak", "half_of")[0]
    assert record["error"] == "FailedPrecondition"
    message = record["message"]
    assert f"step {saved['step']}: tensor 'rank0/buffer/peak', made by" in message
    assert "half_of of 'model/layers.0.weight'" in message
    # The function that it had gets it back.
    assert states(train(store, 1)[0])[0] == saved


def test_what_leaves_its_master_is_captured(store, reference):
    """On one rank of several, too: the others go on without its bytes."""
    world, _ = reference
    before = train(store, world, "--die-after", 3, "--break-from", 3, killed=True)
    after = train(store, world)
    for rank in range(world):
        broken = ["model/layers.0.bias"] if rank == 0 else []
        assert found(before[rank], "not_derived") == broken
        assert found(before[rank], "derived") == 5 - len(broken)
        assert states(after[rank])[0] == states(before[rank])[-1]
    if world > 1:
        saved = [states(records)[-1]["weights"] for records in before]
        assert saved[0] != saved[1]
