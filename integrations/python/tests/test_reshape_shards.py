"""Sharded models, restored by another number of ranks, over the fake store.

Each rank is a process of its own: torch remembers per process where it is in a mesh.
"""

import pytest
import torch
import torch.distributed as dist
from fake_store import FakeStore
from real_store import FORK_SERVER
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed import fake_pg

import unreft
from unreft.torch import checkpointer
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState

SHAPES = {"weight": (8, 6), "uneven": (5, 3), "small": (2,)}


def whole(name, add=0):
    count = torch.Size(SHAPES[name]).numel()
    return torch.arange(count, dtype=torch.float32).view(SHAPES[name]) + add


def sharded(tensor, mesh, placements):
    """This rank's part, without the communication that distributing it would take."""
    shape = tuple(tensor.shape)
    extent, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    local = tensor[tuple(slice(o, o + e) for o, e in zip(offset, extent))].clone()
    size = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(local, mesh, placements, run_check=False, **size)


def placed(name, layout):
    """Mesh and placements of a parameter on all ranks."""
    world = dist.get_world_size()
    if layout == "rows":
        return (world,), [Shard(0)]
    if layout == "columns":
        return (world,), [Shard(0 if name == "small" else 1)]
    return (2, world // 2), [Replicate(), Shard(0)]  # hybrid


class Job:
    """A rank whose parameters and optimizer state are DTensors; begun with zeros."""

    def __init__(self, store, rank, world, layout, values):
        self.model, mesh = nn.Module(), None
        for name in SHAPES:
            shape, placements = placed(name, layout)
            mesh = mesh or init_device_mesh("cpu", shape)
            value = whole(name) if values else torch.zeros(SHAPES[name])
            setattr(self.model, name, nn.Parameter(sharded(value, mesh, placements)))
        self.model.register_buffer("scale", torch.full((2,), 3.0 if values else 0.0))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        for name, parameter in self.model.named_parameters():
            if values:
                moments = [whole(name, add) for add in (100, 200)]
                shape, placements = placed(name, layout)
                first, second = (sharded(value, mesh, placements) for value in moments)
                state = {"step": torch.tensor(5.0), "exp_avg": first, "exp_avg_sq": second}
                self.optimizer.state[parameter] = state
        state = TrainingState(self.model, [self.optimizer], Replicas(self.model, rank, world))
        self.ck = Checkpointer(store.client(rank, world, True), state, Extras({}), rng=True)
        # There is nobody to agree with.
        checkpointer.of_all_ranks = lambda outcome: [outcome]


def job(store, rank, world, layout, values):
    dist.init_process_group("fake", rank=rank, world_size=world, store=fake_pg.FakeStore())
    return Job(store, rank, world, layout, values)


def save(rank, world, layout):
    store = FakeStore()
    saving = job(store, rank, world, layout, values=True)
    saving.ck.restore()
    torch.manual_seed(5)
    assert saving.ck.snapshot(1), saving.ck.status
    return store.versions[rank]


def load(store, rank, world, layout):
    """What is wrong after a restore, by name."""
    loading = job(store, rank, world, layout, values=False)
    assert loading.ck.restore() == 1
    wrong = []
    for name, parameter in loading.model.named_parameters():
        state = loading.optimizer.state[parameter]
        pairs = [(parameter, 0), (state["exp_avg"], 100), (state["exp_avg_sq"], 200)]
        for tensor, add in pairs:
            expected = sharded(whole(name, add), tensor.device_mesh, tensor.placements)
            if not torch.equal(tensor._local_tensor, expected._local_tensor):
                wrong.append((name, add))
        if state["step"].item() != 5.0:
            wrong.append((name, "step"))
    if not torch.equal(loading.model.scale, torch.full((2,), 3.0)):
        wrong.append("scale")
    assert loading.ck.snapshot(2), loading.ck.status
    return wrong, loading.ck.status.reshaped_from


@pytest.fixture(scope="module")
def ranks():
    with FORK_SERVER.Pool(2, maxtasksperchild=1) as pool:
        yield lambda function, arguments: pool.starmap(function, arguments, chunksize=1)


@pytest.mark.parametrize(
    "source, target",
    [
        ((4, "rows"), (3, "rows")),
        ((3, "rows"), (5, "rows")),
        ((4, "hybrid"), (3, "columns")),
        ((1, "rows"), (4, "hybrid")),
        ((4, "columns"), (1, "rows")),
    ],
    ids=str,
)
def test_shards_are_cut_anew(ranks, source, target):
    store = FakeStore()
    store.world = source[0]
    saved = ranks(save, [(rank, *source) for rank in range(source[0])])
    store.versions = dict(enumerate(saved))
    found = ranks(load, [(store, rank, *target) for rank in range(target[0])])
    assert found == [([], source[0])] * target[0]


def test_a_hole_is_a_loss(ranks):
    store = FakeStore()
    store.world = 2
    store.versions = dict(enumerate(ranks(save, [(rank, 2, "rows") for rank in range(2)])))
    del store.versions[1].tensors["model/weight"]
    with pytest.raises(unreft.DataLoss, match="'model/weight': not all of its box is stored"):
        ranks(load, [(store, 2, 3, "rows")])
