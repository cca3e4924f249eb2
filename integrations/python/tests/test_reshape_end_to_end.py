"""Training that goes on with another number of ranks, on a real daemon."""

import pathlib

import pytest
from real_store import Store, states

SHARDED = pathlib.Path(__file__).with_name("sharded_trainer.py")


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


@pytest.mark.parametrize("source, target", [(2, 3), (3, 2), (1, 2), (2, 1)])
def test_it_goes_on_from_the_same_state(store, source, target):
    before = [
        states(records)[-1]
        for records in store.train(source, "--die-after", 3, "--buffers", "first", killed=True)
    ]
    after = store.train(target, "--buffers", "first")
    begun, ended = ([states(records)[i] for records in after] for i in (0, -1))
    for rank in range(target):
        assert after[rank][0] == {"restored": before[0]["step"]}
        for part in ("step", "weights", "buffers", "optimizer", "lr"):
            assert begun[rank][part] == before[0][part], part
        if rank < source:
            assert begun[rank]["generators"] == before[rank]["generators"]
        assert ended[rank]["step"] == 6 and ended[rank]["weights"] == ended[0]["weights"]
    if source > 1:
        assert len({repr(state["generators"]) for state in begun}) == target


def test_there_and_back(store):
    store.train(2, "--die-after", 2, killed=True)
    between = store.train(3, "--die-after", 4, "--buffers", "first", killed=True)
    after = store.train(2, "--buffers", "first")
    for rank, records in enumerate(after):
        last, begun = states(between[rank])[-1], states(records)[0]
        assert last["step"] == 4
        for part in ("step", "weights", "optimizer", "lr", "generators"):
            assert begun[part] == last[part], part


def test_buffers_that_differ_are_refused_by_all_ranks(store):
    store.train(2, "--die-after", 3, killed=True)
    refused = [record for (record,) in store.train(3)]
    errors = [record["error"] for record in refused]
    assert "FailedPrecondition" in errors and set(errors) <= {"FailedPrecondition", "Aborted"}
    said = refused[errors.index("FailedPrecondition")]["message"]
    assert "'mean' on rank 1 is not what it is on rank 0" in said
    # It is still there for as many ranks as before.
    assert store.train(2)[0][0] == {"restored": 3}


# Each is a world, and how it is cut: see sharded_trainer.py.
@pytest.mark.parametrize(
    "layouts",
    [
        ((4,), (2,), (3,)),
        (
            (4, "--tensor-parallel", 2),
            (4, "--tensor-parallel", 4),
            (3, "--tensor-parallel", 1),
        ),
        (
            (2, "--tensor-parallel", 1),
            (6, "--tensor-parallel", 2),
            (2, "--tensor-parallel", 2),
        ),
        ((3,), (4, "--replicas", 2), (3, "--replicas", 1), (2, "--replicas", 2), (2,)),
        ((2, "--tensor-parallel", 2), (8, "--tensor-parallel", 2, "--replicas", 2)),
    ],
    ids=["fsdp", "fsdp-and-tensor", "grown", "hybrid", "hybrid-and-tensor"],
)
def test_fully_sharded(store, layouts):
    before, source = None, None
    for number, (world, *layout) in enumerate(layouts, 1):
        if number < len(layouts):
            dies = ["--die-after", 2 * number, "--steps", 2 * number + 4]
            after = store.train(world, *dies, *layout, script=SHARDED, killed=True)
        else:
            after = store.train(world, "--steps", 2 * number, *layout, script=SHARDED)
            for ended in (records[-1] for records in after):
                # A snapshot may be skipped while the daemon frees memory, but not all of them.
                assert ended["step"] == 2 * number and ended["committed"] > before["step"], ended
        for records in after if before else ():
            reshaped_from = source if source != world else None
            assert records[0] == {"restored": before["step"], "reshaped_from": reshaped_from}
            assert records[1] == before
        before, source = after[0][-1], world


def test_tensor_parallel_peers_go_on_drawing_alike(store):
    """Two sets of peers, then one, then three: a set has one stream, and no two have the same."""
    peers = ["--tensor-parallel", 2, "--seed-by-set"]

    def drawn(world, step, *, killed=True):
        ends = ["--steps", step + 4, "--die-after", step] if killed else ["--steps", step]
        records = store.train(world, *ends, *peers, script=SHARDED, killed=killed)
        by_rank = [[record["next"] for record in of if "next" in record] for of in records]
        return list(zip(*by_rank))

    _, first = drawn(4, 2)
    assert first[0] == first[1] != first[2] == first[3]
    begun, second = drawn(2, 4)
    assert begun == first[:2]
    assert second[0] == second[1]
    (third,) = drawn(6, 6, killed=False)
    assert third[:2] == second
    assert third[2] == third[3] and third[4] == third[5]
    assert all(len({repr(set_[part]) for set_ in third[::2]}) == 3 for part in range(2))
