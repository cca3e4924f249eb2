"""Random streams in another world: shared ones stay shared, each rank's own go by rank."""

import random

import numpy as np
import pytest
import torch
from world_job import draw, seed_all

import unreft
from unreft.torch import streams
from unreft.torch.mesh_place import Place
from unreft.torch.rng import Rng


def state_of(seed):
    seed_all(seed)
    return Rng().state_dict()


def after(state):
    """What is drawn from it."""
    Rng().load_state_dict(state)
    return draw()


def states_of(*seeds):
    return [state_of(seed) for seed in seeds]


def test_what_all_shared_all_take():
    stored = states_of(5, 5, 5, 5)
    for rank in range(6):
        joined = streams.join(stored, streams.Now(rank))
        assert after(joined.state) == after(stored[0])
        assert joined.shared == ["python", "torch", "numpy"] and joined.by_rank == []


def test_a_stream_of_its_own_goes_by_rank():
    stored = states_of(1, 2, 3, 4)
    for rank in range(3):
        joined = streams.join(stored, streams.Now(rank))
        assert after(joined.state) == after(stored[rank])
        assert joined.by_rank == ["python", "torch", "numpy"] and joined.shared == []


def test_new_ranks_begin_new_streams():
    stored = states_of(1, 2)
    drawn = [after(streams.join(stored, streams.Now(rank)).state) for rank in range(6)]
    for part in zip(*drawn):
        assert len(set(part)) == 6
    # The same ones at another try, and others after other streams.
    assert after(streams.join(states_of(1, 2), streams.Now(5)).state) == drawn[5]
    assert after(streams.join(states_of(1, 3), streams.Now(5)).state) != drawn[5]


def test_each_generator_by_itself():
    stored = states_of(1, 1, 1)
    for rank, state in enumerate(stored):
        state["torch"] = torch.Generator().manual_seed(rank).get_state()
    joined = streams.join(stored, streams.Now(2))
    assert (joined.shared, joined.by_rank) == (["python", "numpy"], ["torch"])
    assert torch.equal(joined.state["torch"], stored[2]["torch"])


@pytest.mark.parametrize("seeds", [(1, 1, 2, 2), (1, 2, 2, 3)])
def test_streams_that_some_ranks_share_are_refused(seeds):
    shared = {(1, 1, 2, 2): "0, 1", (1, 2, 2, 3): "1, 2"}[seeds]
    refusal = (
        f"streams of 'python' are alike on rank {shared}, but not on all 4 .*tensor-parallel peers "
        r".*Restart with 4 ranks, or pass attach\(rng=False\)"
    )
    with pytest.raises(unreft.FailedPrecondition, match=refusal):
        streams.join(states_of(*seeds), streams.Now(0))


def test_what_some_ranks_lack_is_refused():
    stored = states_of(1, 1, 1)
    del stored[1]["numpy"]
    with pytest.raises(unreft.FailedPrecondition, match="'numpy' is needed of all 3.*rank 1 "):
        streams.join(stored, streams.Now(0))
    stored = states_of(1, 1)
    with pytest.raises(unreft.FailedPrecondition, match=r"'python'.*rank 1 .*attach\(rng=False\)"):
        streams.join([stored[0], None], streams.Now(0))


def test_none_was_stored():
    assert streams.join([None, None], streams.Now(0)) is None


def test_other_generators_of_numpy():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        stored = [Rng().state_dict()]
        np.random.rand()
        stored.append(Rng().state_dict())
        for state in stored:
            state["python"], state["torch"] = stored[0]["python"], stored[0]["torch"]
        drawn = [after(streams.join(stored, streams.Now(rank)).state)[1] for rank in range(4)]
        assert len(set(drawn)) == 4
    finally:
        np.random.set_bit_generator(before)


def test_the_stream_of_python_keeps_its_second_normal_number():
    random.seed(3)
    random.gauss(0, 1)
    stored = [Rng().state_dict()] * 2
    expected = random.gauss(0, 1)
    Rng().load_state_dict(streams.join(stored, streams.Now(0)).state)
    assert random.gauss(0, 1) == expected


# --- streams that peers in a device mesh share ---


def mesh(dp, tp):
    return [Place(("dp", "tp"), (dp, tp), (rank // tp, rank % tp)) for rank in range(dp * tp)]


def by_mesh(stored, places, of_now):
    return [
        streams.join(stored, streams.Now(rank, place=place), places)
        for rank, place in enumerate(of_now)
    ]


def test_peers_share_and_sets_that_are_new_begin_anew():
    stored = states_of(1, 1, 2, 2)
    joined = by_mesh(stored, mesh(2, 2), mesh(3, 2))
    drawn = [after(each.state) for each in joined]
    assert drawn[:4] == [after(state) for state in stored]
    assert drawn[4] == drawn[5]
    for part in zip(*drawn):
        assert len(set(part)) == 3
    said = "alike along 'tp', by the index along 'dp', begun anew at 'dp 2'"
    for each in joined:
        assert each.by_mesh == {said: ["python", "torch", "numpy"]}
        assert each.shared == each.by_rank == []


def test_what_was_found_out_is_stored_with_the_streams():
    (joined,) = by_mesh(states_of(1, 1, 2, 2), mesh(2, 2), mesh(1, 1))
    rng = Rng()
    assert "apart" not in rng.state_dict()
    rng.load_state_dict(joined.state)
    stored = rng.state_dict()
    assert stored["apart"] == {
        part: {"dp": True, "tp": False} for part in ("python", "torch", "numpy")
    }
    drawn = [after(each.state) for each in by_mesh([stored], mesh(1, 1), mesh(2, 2))]
    assert drawn[0] == drawn[1] == after(stored) and drawn[2] == drawn[3] != drawn[0]
    # The same number of ranks knows it too, and a state of before says nothing of it.
    Rng().load_state_dict(stored)
    rng.load_state_dict(states_of(1)[0])
    assert "apart" not in rng.state_dict()


def test_notes_that_differ_or_say_nothing_are_refused():
    stored = states_of(1, 1)
    stored[1]["apart"] = {"torch": {"dp": True}}
    with pytest.raises(unreft.FailedPrecondition, match="streams of 'torch'.* on rank 1"):
        streams.join(stored, streams.Now(0))
    for note in (5, {"torch": 5}, {"torch": {"dp": 1}}, {"torch": {5: True}}):
        stored[1]["apart"] = note
        with pytest.raises(unreft.DataLoss, match="who shares the streams of"):
            streams.join(stored, streams.Now(0))


# --- CUDA devices, of which a rank knows all and draws from one ---


def cuda(device, *streams_):
    """What a rank of that device stores; the streams are named by numbers."""
    stored = {"cuda": [torch.tensor([s], dtype=torch.uint8) for s in streams_]}
    return stored if device is None else {**stored, "cuda_device": device}


@pytest.fixture
def new_cuda(monkeypatch):
    def new(seed):
        return torch.tensor([seed % 100 + 100], dtype=torch.uint8)

    monkeypatch.setattr(streams, "_new_cuda", new)


def taken(stored, rank, device):
    joined = streams.join(stored, streams.Now(rank, device))
    return [int(s) for s in joined.state["cuda"]], joined.shared == ["cuda"]


def test_one_device_of_each_rank(new_cuda):
    assert taken([cuda(0, 1), cuda(0, 1)], 3, 0) == ([1], True)
    assert taken([cuda(0, 1), cuda(0, 2)], 1, 0) == ([2], False)
    (new,), shared = taken([cuda(0, 1), cuda(0, 2)], 2, 0)
    assert new >= 100 and not shared
    assert taken([cuda(None, 1), cuda(None, 2)], 1, 0) == ([2], False)


def test_ranks_that_draw_alike_from_different_devices(new_cuda):
    """All began with stream 5 on all devices of the node, and are at 6 on their own."""
    stored = [cuda(0, 6, 5, 5), cuda(1, 5, 6, 5)]
    for rank in range(3):
        streams_, shared = taken(stored, rank, rank)
        assert streams_[rank] == 6 and shared
        assert streams_ == [6 if device == rank else 5 for device in range(3)]


def test_a_rank_on_another_device_than_before(new_cuda):
    stored = [cuda(0, 11, 10), cuda(1, 20, 21)]
    assert taken(stored, 1, 0) == ([21, 20], False)
    streams_, _ = taken(stored, 2, 0)
    assert min(streams_) >= 100


def test_ranks_of_one_node_that_share_a_stream_are_refused(new_cuda):
    stored = [cuda(0, 6, 5), cuda(1, 5, 6), cuda(0, 7, 5)]
    with pytest.raises(unreft.FailedPrecondition, match="'cuda' are alike on rank 0, 1"):
        taken(stored, 0, 0)


def test_devices_that_say_nothing_are_refused(new_cuda):
    with pytest.raises(unreft.FailedPrecondition, match="as many CUDA devices.*1, 2. by rank"):
        taken([cuda(0, 1), cuda(0, 2, 3)], 0, 0)
    with pytest.raises(unreft.FailedPrecondition, match="rank 0 stored that of 2 CUDA devices"):
        taken([cuda(None, 1, 2), cuda(None, 2, 1)], 0, 0)
    with pytest.raises(unreft.FailedPrecondition, match="rank 1 has drawn from another than its d"):
        taken([cuda(0, 2, 1, 1), cuda(0, 1, 2, 1)], 0, 0)


def test_devices_of_peers_in_a_mesh(new_cuda):
    """Two nodes of two ranks: each is a set of peers, and draws from the device of its own."""
    stored = [cuda(0, 11, 10), cuda(1, 10, 11), cuda(0, 21, 20), cuda(1, 20, 21)]
    of_now = mesh(3, 2)
    lists = []
    for rank, place in enumerate(of_now):
        joined = streams.join(stored, streams.Now(rank, rank % 2, place), mesh(2, 2))
        lists.append([int(s) for s in joined.state["cuda"]])
    assert lists[:4] == [[11, 10], [10, 11], [21, 20], [20, 21]]
    assert lists[4] == lists[5] and min(lists[4]) >= 100


def test_one_list_of_devices_is_apart_again(new_cuda):
    stored = [{**cuda(0, 1), "apart": {"cuda": {"dp": True}}}]
    joined = by_mesh(stored, mesh(1, 1), mesh(2, 1))
    (first,), (second,) = [[int(s) for s in each.state["cuda"]] for each in joined]
    assert first == 1 and second >= 100
