"""A version restored by another number of ranks that have places in a device mesh."""

import logging

import torch
from world_job import Rank, assert_same, draw, refused, restored, seed_all, stored

from unreft.torch.mesh_place import Place
from unreft.torch.rng import Rng


def mesh(dp, tp):
    """Where a rank is."""
    return lambda rank: Place(("dp", "tp"), (dp, tp), divmod(rank, tp))


# --- random streams ---


def test_streams_that_peers_in_a_mesh_share(store, caplog):
    caplog.set_level(logging.INFO, "unreft")
    stored(store, 4, streams=lambda rank: rank // 2, place=mesh(2, 2))
    refused(store, r"this rank has no place in one now: give attach\(mesh=...\)")
    drawn = []
    for seed in range(2):
        seed_all(seed)
        drawn.append(draw())
    ranks = restored(store, 6, place=mesh(3, 2))
    found = [job.drawn for job in ranks]
    assert found[:4] == [drawn[0]] * 2 + [drawn[1]] * 2
    assert found[4] == found[5] not in drawn
    (line,) = [r.getMessage() for r in caplog.records if "is restored by" in r.getMessage()]
    assert line == (
        "step 1 of 4 ranks is restored by 6; random streams by the mesh: python, torch, numpy, "
        "alike along 'tp', by the index along 'dp', begun anew at 'dp 2'"
    )


def test_what_is_known_of_peers_goes_through_worlds_of_few_ranks(store):
    """Sets that were one for a while are apart again, and peers that were one rank alike."""
    stored(store, 4, streams=lambda rank: rank // 2, place=mesh(2, 2))
    step = 1
    for dp, tp in ((1, 2), (1, 2), (3, 1), (3, 1), (2, 2), (1, 1), (2, 3)):
        ranks = [Rank(store, rank, dp * tp, place=mesh(dp, tp)) for rank in range(dp * tp)]
        states = []
        for job in ranks:
            assert job.ck.restore() == step
            states.append(Rng().state_dict())
        drawn = []
        step += 1
        for job, state in zip(ranks, states):
            Rng().load_state_dict(state)
            drawn.append(draw())
            assert job.ck.snapshot(step), job.ck.status
        assert [drawn.index(each) for each in drawn] == [r // tp * tp for r in range(dp * tp)]


def test_another_mesh_of_as_many_ranks_is_said(store, caplog):
    stored(store, 4, streams=lambda rank: rank // 2, place=mesh(2, 2))
    restored(store, 4, place=mesh(2, 2))
    restored(store, 4)
    assert "mesh" not in caplog.text
    restored(store, 4, place=mesh(1, 4))
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == (
        "step 1 of a mesh of dp 2, tp 2 is restored by as many ranks in one of dp 1, tp 4: each "
        "goes on with the random streams, and all that is its own, of its number"
    )


# --- tensors of each rank's own ---


def by_tp(job):
    """Plain parts of a whole, as of a model that does its tensor parallelism itself."""
    with torch.no_grad():
        for each in (job.model.inner.weight, job.model.norm.running_mean):
            each += job.rank % 2
        job.optimizer.state[job.model.inner.weight]["exp_avg"] -= job.rank % 2


def test_what_differs_along_a_dimension_of_the_same_size_goes_by_the_mesh(store, caplog):
    caplog.set_level(logging.INFO, "unreft")
    first = stored(store, 4, change=by_tp, ddp=False, place=mesh(2, 2))
    for job in restored(store, 6, ddp=False, place=mesh(3, 2)):
        assert_same(job.state(), first[job.rank % 2].state())
    (line,) = [r.getMessage() for r in caplog.records if "is restored by" in r.getMessage()]
    assert "; tensors of ranks' own by the mesh: 'buffer/norm.running_mean', 'model/inner" in line
    for job in restored(store, 2, ddp=False, buffers="first", place=mesh(1, 2)):
        assert_same(job.state(), first[job.rank].state())


def test_what_differs_along_a_dimension_of_another_size_is_refused(store):
    stored(store, 4, change=by_tp, ddp=False, place=mesh(2, 2))
    refusal = "tensor 'model/inner.weight' is each rank's own"
    for dp, tp in ((2, 1), (2, 3), (1, 3)):
        refused(store, refusal, world=dp * tp, ddp=False, place=mesh(dp, tp))
    refused(store, refusal, ddp=False)  # that knows no place


def test_buffers_that_differ_along_a_dimension(store):
    def change(job):
        job.model.norm.running_mean += job.rank // 2

    first = stored(store, 4, change=change, place=mesh(2, 2))
    for job in restored(store, 6, place=mesh(2, 3)):
        assert_same(job.state(), first[job.rank // 3 * 2].state())
    refused(store, "buffers: needed alike on all 4", world=6, place=mesh(3, 2))
    for job in restored(store, 6, place=mesh(3, 2), buffers="first"):
        assert_same(job.state(), first[0].state())
