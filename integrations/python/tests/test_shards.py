"""Boxes, replica sets and names of sharded models, rank by rank on an idle process group."""

import functools

import pytest
import torch
import torch.distributed as dist
from real_store import FORK_SERVER
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import unreft
from unreft.torch import safe_pickle
from unreft.torch.shards import Replicas, bind
from unreft.torch.state import TrainingState


def on_rank(make, rank, world):
    """Name to spec of what `make(rank)` returns, a TrainingState."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    return {bound.spec.name: bound.spec for bound in make(rank).bind()}


@pytest.fixture(scope="module")
def processes():
    # A new one for every rank: torch remembers per process where it is in a mesh.
    with FORK_SERVER.Pool(1, maxtasksperchild=1) as pool:
        yield lambda make, world: pool.starmap(
            on_rank, [(make, rank, world) for rank in range(world)], chunksize=1
        )


def module_of(tensor):
    module = nn.Module()
    module.weight = nn.Parameter(tensor)
    return module


def sharded_tensor(mesh_shape, placements, shape):
    """Of zeros, without the communication that distributing it would take."""
    mesh = init_device_mesh("cpu", mesh_shape)
    local, _ = compute_local_shape_and_global_offset(shape, mesh, placements)
    return DTensor.from_local(
        torch.zeros(local),
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape).stride(),
    )


def sharded(rank, mesh_shape, placements, shape):
    """The state of a weight."""
    model = module_of(sharded_tensor(mesh_shape, placements, shape))
    return TrainingState(model, [], Replicas(model, rank, dist.get_world_size()))


def boxes(specs, name):
    return [(s[name].offset, s[name].extent) for s in specs]


def replicas(specs, name):
    return [(s[name].replica_index, s[name].replica_count) for s in specs]


def rows(rank):
    return sharded(rank, (4,), [Shard(0)], (8, 3))


def test_sharded_rows(processes):
    specs = processes(rows, 4)
    assert boxes(specs, "model/weight") == [((2 * r, 0), (2, 3)) for r in range(4)]
    assert replicas(specs, "model/weight") == [(0, 1)] * 4
    assert {s["model/weight"].global_shape for s in specs} == {(8, 3)}


def uneven_rows(rank):
    return sharded(rank, (4,), [Shard(0)], (5, 3))


def test_uneven_shards_cover_and_may_be_empty(processes):
    specs = processes(uneven_rows, 4)
    assert [s["model/weight"].extent[0] for s in specs] == [2, 2, 1, 0]
    assert [s["model/weight"].offset[0] for s in specs][:3] == [0, 2, 4]


def test_rank_with_an_empty_shard_restores():
    dist.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
    try:
        whole = {"global_shape": (5, 3), "offset": (0, 0), "extent": (2, 3)}
        stored = [unreft.Tensor("model/weight", unreft.Dtype.FLOAT32, **whole)]
        (bound,) = uneven_rows(3).bind_for_restore(stored)
        assert bound.spec.extent == (0, 3)
        stored[0].dtype = unreft.Dtype.BFLOAT16
        with pytest.raises(unreft.FailedPrecondition, match="bfloat16.*stored, found float32"):
            uneven_rows(3).bind_for_restore(stored)
    finally:
        dist.destroy_process_group()


def hybrid(rank):
    return sharded(rank, (2, 2), [Replicate(), Shard(1)], (4, 6))


def test_hybrid_sharding_has_replicas(processes):
    specs = processes(hybrid, 4)
    assert boxes(specs, "model/weight") == [((0, 0), (4, 3)), ((0, 3), (4, 3))] * 2
    assert replicas(specs, "model/weight") == [(0, 2), (0, 2), (1, 2), (1, 2)]


def both_dimensions(rank):
    return sharded(rank, (2, 2), [Shard(0), Shard(1)], (4, 6))


def test_two_sharded_dimensions(processes):
    specs = processes(both_dimensions, 4)
    assert boxes(specs, "model/weight") == [
        ((0, 0), (2, 3)),
        ((0, 3), (2, 3)),
        ((2, 0), (2, 3)),
        ((2, 3), (2, 3)),
    ]


def tensor_parallel(rank, rows):
    """FSDP2 over two ranks for each of two parts of tensor parallelism."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(4, rows), nn.Linear(rows, 4))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    return TrainingState(model, [], Replicas(model, rank, 4))


# The ranks of a part have its rows, the first ones first.
@pytest.mark.parametrize(
    "rows, expected",
    [(10, [(0, 3), (5, 3), (3, 2), (8, 2)]), (7, [(0, 2), (4, 2), (2, 2), (6, 1)])],
)
def test_sharding_on_top_of_tensor_parallelism(processes, rows, expected):
    specs = processes(functools.partial(tensor_parallel, rows=rows), 4)
    assert boxes(specs, "model/0.weight") == [
        ((begin, 0), (count, 4)) for begin, count in expected
    ]
    assert boxes(specs, "model/0.bias") == [((begin,), (count,)) for begin, count in expected]
    assert replicas(specs, "model/0.weight") == [(0, 1)] * 4
    assert replicas(specs, "model/1.bias") == [(0, 2), (1, 2)] * 2


@pytest.mark.parametrize(
    "placement", [Partial(), _StridedShard(0, split_factor=2)], ids=["partial", "strided"]
)
def test_other_placements_are_refused_by_name(placement):
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        tensor = DTensor.from_local(
            torch.zeros(4), mesh, [placement], run_check=False, shape=(8,), stride=(1,)
        )
        refusal = "'model/weight'.*(placement|_StridedShard)"
        with pytest.raises(unreft.InvalidArgument, match=refusal):
            bind("model/weight", tensor, Replicas(nn.Module(), 0, 2).own())
    finally:
        dist.destroy_process_group()


def with_optimizer(rank):
    mesh = init_device_mesh("cpu", (2,))
    model = module_of(DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)], run_check=False))
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    return TrainingState(model, [optimizer], Replicas(model, rank, 2))


def test_state_of_sharded_parameters(processes):
    specs = processes(with_optimizer, 2)
    assert boxes(specs, "optim/weight/exp_avg") == [((0, 0), (2, 3)), ((2, 0), (2, 3))]
    # The step count is no shard: all ranks of the mesh have the same.
    assert replicas(specs, "optim/weight/step") == [(0, 2), (1, 2)]


@pytest.fixture
def one_of_two():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "move",
    [
        lambda weight: setattr(weight, "_local_tensor", weight._local_tensor.clone()),
        lambda weight: setattr(weight._local_tensor, "data", torch.ones(2, 3)),
        lambda weight: torch.utils.swap_tensors(weight, nn.Parameter(weight.detach().clone())),
    ],
    ids=["part", "memory", "conversion"],
)
def test_a_part_that_moves_is_noticed(one_of_two, move):
    state = with_optimizer(0)
    bounds = state.bind()
    watch = state.watch(bounds)
    assert watch.unchanged()
    weight = state._model.weight
    move(weight)
    assert not watch.unchanged()
    live = {bound.spec.name: bound.spec.data for bound in state.bind()}
    assert live["model/weight"] == weight._local_tensor.data_ptr()


def test_a_dry_run_asks_for_all_state_of_a_part(one_of_two):
    places = [bound.spec.name for bound in with_optimizer(0).places_of_optimizer_state()]
    assert places == ["optim/weight/*", "rank0/optim/weight/*"]


def test_gathered_parameters_are_a_matter_of_time(one_of_two):
    state = with_optimizer(0)
    part = state._model.weight
    state._model.weight = nn.Parameter(torch.zeros(4, 3))
    with pytest.raises(unreft.FailedPrecondition, match="not a parameter.*now: FSDP2"):
        state.bind()
    state._model.weight = part
    assert len(state.bind()) == 4


def test_extras_with_a_sharded_tensor_are_refused(one_of_two):
    norm = sharded_tensor((2,), [Replicate()], (1,))
    with pytest.raises(unreft.InvalidArgument, match=r"extras: a DTensor of shape \(1,\)"):
        safe_pickle.dumps({"norm": norm})


def compiled_data_parallel(rank):
    model = torch.compile(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))
    return TrainingState(model, [], Replicas(model, rank, 2))


def test_compiled_data_parallel_replicas(processes):
    specs = processes(compiled_data_parallel, 2)
    assert replicas(specs, "model/weight") == [(0, 2), (1, 2)]


def data_parallel(rank, mode="auto"):
    model = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(4))
    return TrainingState(model, [], Replicas(model, rank, 3, mode))


def test_data_parallel_replicas(processes):
    specs = processes(data_parallel, 3)
    assert replicas(specs, "model/weight") == [(0, 3), (1, 3), (2, 3)]
    for rank, own in enumerate(specs):
        assert own[f"rank{rank}/buffer/running_mean"].replica_count == 1


def test_data_parallel_without_sharing(processes):
    specs = processes(functools.partial(data_parallel, mode="none"), 3)
    assert [s[f"rank{rank}/model/weight"].replica_count for rank, s in enumerate(specs)] == [1] * 3


def data_parallel_in_groups(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=groups[rank // 2])
    return TrainingState(model, [], Replicas(model, rank, 4))


def test_data_parallel_in_groups(processes):
    """As with tensor parallelism by hand: the two groups hold different parameters."""
    for rank, own in enumerate(processes(data_parallel_in_groups, 4)):
        spec = own[f"group{rank // 2 * 2}/model/weight"]
        assert (spec.replica_index, spec.replica_count) == (rank % 2, 2)


# How others wrap modules within one that is wrapped, and how DistributedDataParallel is told.
@pytest.mark.parametrize("wrap", ["compiled", "checkpointed"])
def test_ignored_parameters_of_wrapped_modules_are_each_rank_s_own(one_of_two, wrap):
    inner = checkpoint_wrapper(nn.Linear(2, 2)) if wrap == "checkpointed" else nn.Linear(2, 2)
    model = nn.Sequential(nn.Linear(2, 2), inner)
    if wrap == "compiled":
        model = torch.compile(model)
    ignored = [name for name, _ in model.named_parameters() if "1." in name]
    ddp = nn.parallel.DistributedDataParallel
    ddp._set_params_and_buffers_to_ignore_for_model(model, ignored)
    model = ddp(model)
    specs = [bound.spec for bound in TrainingState(model, [], Replicas(model, 0, 2)).bind()]
    assert {spec.name: spec.replica_count for spec in specs} == {
        "model/0.weight": 2,
        "model/0.bias": 2,
        "rank0/model/1.weight": 1,
        "rank0/model/1.bias": 1,
    }


def test_ranks_that_average_now_and_then_are_no_replicas(one_of_two, caplog):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    alike = TrainingState(model, [], Replicas(model, 0, 2))
    apart = TrainingState(model, [], Replicas(model, 0, 2, "none"))
    alike.bind()
    model.register_comm_hook(PostLocalSGDState(None, None, 2), post_localSGD_hook)
    for refused in (alike.bind, lambda: TrainingState(model, [], Replicas(model, 0, 2))):
        with pytest.raises(unreft.InvalidArgument, match="PostLocalSGDState.*replicas='none'"):
            refused()
    assert caplog.records == []
    assert {bound.spec.replica_count for bound in apart.bind()} == {1}


def test_the_state_of_a_communication_hook_is_named_once(one_of_two, caplog):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    model.register_comm_hook(PowerSGDState(None), powerSGD_hook)
    state = TrainingState(model, [], Replicas(model, 0, 2))
    state.bind()
    (warning,) = caplog.records
    assert "hook keeps in a PowerSGDState is not captured" in warning.getMessage()


def test_a_hook_without_state_is_no_matter(one_of_two, caplog):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    TrainingState(model, [], Replicas(model, 0, 2)).bind()
    assert caplog.records == []


def test_buffers_that_were_distributed_are_each_rank_s_own(one_of_two):
    model = distribute_module(nn.BatchNorm1d(4, affine=False), init_device_mesh("cpu", (2,)))
    mean = model.running_mean
    assert isinstance(mean, DTensor)
    state = TrainingState(model, [], Replicas(model, 0, 2))
    bounds = state.bind()
    specs = {bound.spec.name: bound.spec for bound in bounds}
    spec = specs["rank0/buffer/running_mean"]
    assert (spec.replica_count, spec.data) == (1, mean._local_tensor.data_ptr())
    watch = state.watch(bounds)
    assert watch.unchanged()
    mean._local_tensor = mean._local_tensor.clone()
    assert not watch.unchanged()


def test_mode_is_checked():
    with pytest.raises(unreft.InvalidArgument, match="'auto' or 'none', found 'all'"):
        Replicas(nn.Module(), 0, 1, "all")
