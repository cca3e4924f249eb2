"""Where a rank is in a device mesh: found, stored and read."""

import pytest
import torch
import torch.distributed as dist
from real_store import FORK_SERVER
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed import fake_pg

import unreft
from unreft.torch import mesh_place
from unreft.torch.mesh_place import ALONE, Place, same_place, stored_places

NAMES = ("dp", "tp")
DP_TP = [Place(NAMES, (2, 2), divmod(rank, 2)) for rank in range(4)]


def model_on(*meshes):
    model = nn.Module()
    for number, mesh in enumerate(meshes):
        placements = [Replicate()] * mesh.ndim
        tensor = DTensor.from_local(torch.zeros(2), mesh, placements, run_check=False)
        model.register_parameter(f"weight{number}", nn.Parameter(tensor))
    return model


def found_by(rank):
    """What rank `rank` of 4 finds, or the message of the refusal, by what was given."""
    dist.init_process_group("fake", rank=rank, world_size=4, store=fake_pg.FakeStore())
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES)
    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("data",))
    unnamed = init_device_mesh("cpu", (2, 2))
    found = {
        "model": mesh_place.find(model_on(whole), None, 4),
        "model and a part": mesh_place.find(model_on(whole, whole["tp"]), None, 4),
        "two meshes": mesh_place.find(model_on(whole, flat), None, 4),
        "unnamed": mesh_place.find(model_on(unnamed), None, 4),
        "given": mesh_place.find(model_on(flat), whole, 4),
        "plain": mesh_place.find(nn.Linear(2, 2), None, 4),
        "one rank": mesh_place.find(nn.Linear(2, 2), None, 1),
    }
    for name, mesh in (("given unnamed", unnamed), ("given a part", whole["tp"])):
        try:
            mesh_place.find(nn.Linear(2, 2), mesh, 4)
        except unreft.InvalidArgument as error:
            found[name] = error.message
    return found


def test_it_is_found_in_the_mesh_of_the_model_or_in_the_one_given():
    with FORK_SERVER.Pool(1, maxtasksperchild=1) as pool:
        ranks = pool.map(found_by, range(4), chunksize=1)
    for rank, found in enumerate(ranks):
        for name in ("model", "model and a part", "given"):
            assert found[name] == DP_TP[rank], name
        assert found["two meshes"] is found["unnamed"] is found["plain"] is None
        assert found["one rank"] == ALONE
        needed = "mesh: needed a torch DeviceMesh over all 4 ranks whose dimensions have names"
        for name in ("given unnamed", "given a part"):
            assert needed in found[name], name


def test_another_thing_than_a_mesh_is_refused():
    with pytest.raises(unreft.InvalidArgument, match="mesh: needed a torch DeviceMesh.* a object "):
        mesh_place.find(nn.Linear(2, 2), object(), 4)


def test_places_are_stored_and_read():
    assert stored_places([place.record() for place in DP_TP]) == DP_TP
    assert stored_places([None]) == [ALONE]
    found = stored_places([None, DP_TP[1].record()])
    assert found == "rank 0 stored no place in a device mesh"


def test_places_of_different_meshes_are_none():
    records = [place.record() for place in DP_TP]
    other = Place(NAMES[::-1], (2, 2), (1, 1)).record()
    assert "rank 3 in one of tp 2, dp 2" in stored_places([*records[:3], other])
    assert "3 ranks stored places that are not those of" in stored_places(records[:3])
    assert "not those of a mesh of dp 2, tp 2" in stored_places([*records[:3], records[0]])


@pytest.mark.parametrize(
    "record",
    [
        5,
        {},
        {"names": ("dp",), "sizes": (2,)},
        {"names": ("dp",), "sizes": (2,), "at": (0,), "more": ()},
        {"names": ("dp",), "sizes": (2,), "at": (2,)},
        {"names": ("dp",), "sizes": (2,), "at": (-1,)},
        {"names": ("dp",), "sizes": (2, 1), "at": (0, 0)},
        {"names": ("dp", "dp"), "sizes": (2, 1), "at": (0, 0)},
        {"names": (5,), "sizes": (2,), "at": (0,)},
        {"names": ([],), "sizes": (2,), "at": (0,)},
        {"names": ("dp",), "sizes": (True,), "at": (False,)},
        {"names": ("dp",), "sizes": 2, "at": (0,)},
    ],
    ids=repr,
)
def test_hostile_places_are_refused(record):
    with pytest.raises(unreft.DataLoss, match="place of a rank in a device mesh"):
        stored_places([record, record])


# --- what differs along dimensions ---


def now(dp, tp):
    return [Place(NAMES, (dp, tp), divmod(rank, tp)) for rank in range(dp * tp)]


def taken(digests, of_now, places=DP_TP):
    return [same_place([letter.encode() for letter in digests], places, p) for p in of_now]


def test_a_dimension_of_the_same_size_keeps_what_it_had():
    assert taken("abab", now(3, 2)) == [0, 1] * 3
    assert taken("abab", now(1, 2)) == [0, 1]
    assert taken("aabb", now(2, 3)) == [0] * 3 + [2] * 3
    assert taken("abcd", now(2, 2)[::-1]) == [3, 2, 1, 0]


def test_what_would_be_left_out_or_missing_is_not_taken():
    assert taken("abab", now(2, 1)) == [None] * 2
    assert taken("abab", now(2, 3)) == [None] * 6
    assert taken("abab", [ALONE]) == [None]
    assert taken("abcd", now(1, 4)) == [None] * 4


def test_what_is_not_known_by_the_mesh_is_not_taken():
    assert taken("abba", now(3, 2)) == [None] * 6
    assert taken("abab", [None] * 6) == [None] * 6
    assert taken("abab", now(3, 2), "rank 0 stored no place") == [None] * 6
    other = [Place(("tp", "cp"), (2, 3), divmod(rank, 3)) for rank in range(6)]
    assert taken("abab", other) == [None] * 6
