"""An optimizer that steps on `to_local()`, and keeps plain tensors of sharded parameters.

Each rank is a process of its own: torch remembers per process where it is in a mesh.
"""

import pytest
import torch
import torch.distributed as dist
from fake_store import FakeStore
from real_store import FORK_SERVER
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed import fake_pg

import unreft
from unreft.torch import checkpointer
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState


SHAPE = torch.Size((5, 3))


def sharded(whole):
    """This rank's rows, without the communication that distributing them would take."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    (rows, _), (begin, _) = compute_local_shape_and_global_offset(SHAPE, mesh, [Shard(0)])
    local = whole[begin : begin + rows].clone()
    size = {"shape": SHAPE, "stride": whole.stride()}
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, **size)


class LocalMomentum(torch.optim.Optimizer):
    """`with_norm`: keeps a scalar of this rank's part, too."""

    def __init__(self, parameters, with_norm):
        super().__init__(parameters, {"lr": 0.5})
        self._with_norm = with_norm

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            local, grad = parameter.to_local(), parameter.grad.to_local()
            state = self.state[parameter]
            if not state:
                state["m"] = torch.zeros_like(local)
                state["step"] = torch.zeros(())
                if self._with_norm:
                    state["norm"] = torch.zeros(())
            state["step"] += 1
            state["m"].mul_(0.5).add_(grad)
            if self._with_norm:
                state["norm"].copy_(grad.norm())
            local.add_(state["m"], alpha=-0.5)


class Job:
    """Of one rank, whose part of a weight of 5 rows may be empty."""

    def __init__(self, store, rank, world, with_norm):
        dist.init_process_group("fake", rank=rank, world_size=world, store=fake_pg.FakeStore())
        self.model = nn.Module()
        self.model.weight = nn.Parameter(sharded(torch.zeros(SHAPE)))
        self.optimizer = LocalMomentum(self.model.parameters(), with_norm)
        state = TrainingState(self.model, [self.optimizer], Replicas(self.model, rank, world))
        self.ck = Checkpointer(store.client(rank, world, True), state, Extras({}), rng=False)
        # There is nobody to agree with.
        checkpointer.of_all_ranks = lambda outcome: [outcome]

    def step(self):
        """Each element's gradient is its number in the whole."""
        self.model.weight.grad = sharded(torch.arange(15.0).view(SHAPE))
        self.optimizer.step()


def save(rank, world, with_norm):
    store = FakeStore()
    job = Job(store, rank, world, with_norm)
    job.ck.restore()
    job.step()
    assert job.ck.snapshot(1), job.ck.status
    return store.versions[rank]


def load(store, rank, world, with_norm):
    """This rank's part of the weight and of what the optimizer keeps, after another step."""
    job = Job(store, rank, world, with_norm)
    assert job.ck.restore() == 1
    restored = dict(job.optimizer.state[job.model.weight])
    assert {type(value) for value in restored.values()} <= {torch.Tensor}
    assert list(restored) or not job.model.weight._local_tensor.numel()
    job.step()
    assert job.ck.snapshot(2), job.ck.status
    state = job.optimizer.state[job.model.weight]
    return job.model.weight._local_tensor.tolist(), state["m"].tolist(), float(state["step"])


@pytest.fixture(scope="module")
def ranks():
    with FORK_SERVER.Pool(2, maxtasksperchild=1) as pool:
        yield lambda function, arguments: pool.starmap(function, arguments, chunksize=1)


def stored(ranks, world, with_norm):
    store = FakeStore()
    store.world = world
    saved = ranks(save, [(rank, world, with_norm) for rank in range(world)])
    store.versions = dict(enumerate(saved))
    return store


@pytest.mark.parametrize(
    "source, target, with_norm", [(2, 2, True), (2, 2, False), (2, 4, False), (4, 3, False)]
)
def test_it_is_restored_as_parts_of_the_whole(ranks, source, target, with_norm):
    store = stored(ranks, source, with_norm)
    found = ranks(load, [(store, rank, target, with_norm) for rank in range(target)])
    whole = torch.arange(15.0).view(SHAPE)
    momentum = 0.5 * whole + whole
    assert [row for weight, _, _ in found for row in weight] == (-0.5 * (whole + momentum)).tolist()
    assert [row for _, m, _ in found for row in m] == momentum.tolist()
    assert {step for *_, step in found} == {2.0}


def test_what_has_no_part_s_shape_is_the_rank_s_own(ranks):
    store = stored(ranks, 2, True)
    for rank, version in store.versions.items():
        assert version.tensors.keys() == {
            "model/weight", "optim/weight/m", "optim/weight/step", f"rank{rank}/optim/weight/norm"
        }
        spec, _ = version.tensors["optim/weight/m"]
        assert (spec.global_shape, spec.offset[0]) == ((5, 3), 3 * rank)
        spec, _ = version.tensors["optim/weight/step"]
        assert (spec.replica_index, spec.replica_count) == (rank, 2)
    with pytest.raises(unreft.FailedPrecondition, match="'optim/weight/norm' is each rank's own"):
        ranks(load, [(store, 0, 3, True)])
