"""All ranks of a job of any number of ranks, one after the other in this process, on a fake store.

The process group is there only while a rank is made: its model asks it who holds what.
"""

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fake_job import state_of
from torch import nn
from torch.testing._internal.distributed import fake_pg

import unreft
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState


def seed_all(seed):
    """Of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw():
    return random.random(), np.random.rand(), torch.rand(()).item()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.inner(x))


class Rank:
    """One rank's training: the model under DDP, unless `ddp` says that each has its own.

    `place`: where a rank is in a device mesh.
    """

    def __init__(
        self,
        store,
        rank,
        world,
        *,
        ddp=True,
        seed=0,
        model=Net,
        optimizer=torch.optim.AdamW,
        extras=None,
        derived=(),
        rng=True,
        buffers="equal",
        place=None,
        **options,
    ):
        torch.manual_seed(seed)
        self.rank, self.world = rank, world
        self.model = model()
        wrapped = self.model
        dist.init_process_group("fake", rank=rank, world_size=world, store=fake_pg.FakeStore())
        try:
            if ddp:
                wrapped = nn.parallel.DistributedDataParallel(self.model)
            replicas = Replicas(wrapped, rank, world)
            replicas.place = place(rank) if place else replicas.place
        finally:
            dist.destroy_process_group()
        self.optimizer = optimizer(self.model.parameters(), lr=0.1, **options)
        self.client = store.client(rank, world, any_world=True)
        self.training_state = TrainingState(wrapped, [self.optimizer], replicas)
        self.ck = Checkpointer(
            self.client,
            self.training_state,
            Extras(extras(rank) if callable(extras) else extras or {}),
            rng,
            DerivedTensors(derived, self.training_state),
            buffers=buffers,
        )

    def step(self, inputs=None):
        x = torch.linspace(-1, 1, 32).view(8, 4) if inputs is None else inputs
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        """Copies of all tensors."""
        state = state_of(self.model, self.optimizer)
        return {name: value.clone() for name, value in state.items()}


def stored(store, world, *, change=None, streams=lambda rank: 100, **options):
    """Ranks that have committed step 1.

    `change` is called with each before its snapshot; `streams` is the seed of a rank's generators.
    """
    ranks = [Rank(store, rank, world, **options) for rank in range(world)]
    for each in ranks:
        assert each.ck.restore() is None
    for each in ranks:
        each.step()
        if change:
            change(each)
        seed_all(streams(each.rank))
        assert each.ck.snapshot(1), each.ck.status
    return ranks


def restored(store, world, **options):
    """Ranks of another world, begun with other values."""
    ranks = [Rank(store, rank, world, seed=7, **options) for rank in range(world)]
    for each in ranks:
        seed_all(999)
        assert each.ck.restore() == 1
        each.drawn = draw()
    return ranks


def assert_same(a, b, without=()):
    a, b = ({n: v for n, v in state.items() if n not in without} for state in (a, b))
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


def refused(store, match, error=unreft.FailedPrecondition, world=3, **options):
    """A restore on `world` ranks is refused by all, before it has changed anything."""
    for rank in range(world):
        job = Rank(store, rank, world, seed=7, **options)
        before = {name: value.clone() for name, value in job.model.state_dict().items()}
        with pytest.raises(error, match=match):
            job.ck.restore()
        assert_same(job.model.state_dict(), before)
        assert job.ck.status.reshaped_from is None
