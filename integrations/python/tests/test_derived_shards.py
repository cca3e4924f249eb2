"""Derived tensors of sharded models: each rank's part follows from its part of the sources."""

import dataclasses
import functools

import pytest
import torch
import torch.distributed as dist
from mixed_job import OF_MASTERS
from test_shards import module_of, processes, sharded_tensor  # noqa: F401: a fixture
from torch.distributed.tensor import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import unreft
from unreft.torch.derived_restore import StoredDerived
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState

SHAPE = (5, 3)


class Captured:
    """The state of a bf16 weight with a master; what is captured of it has come back already."""

    def __init__(self, rank, mesh_shape, placements, master_placements=None):
        weight = sharded_tensor(mesh_shape, placements, SHAPE).to(torch.bfloat16)
        master = sharded_tensor(mesh_shape, master_placements or placements, SHAPE)
        master.to_local().copy_(torch.arange(master.to_local().numel()).view_as(master.to_local()))
        weight.to_local().copy_(master.to_local() if master_placements is None else 0)
        model = module_of(weight)
        replicas = Replicas(model, rank, dist.get_world_size())
        self._state = TrainingState(model, [], replicas, {"weight": master})
        self._derived = DerivedTensors([OF_MASTERS], self._state)

    def bind(self):
        bounds = self._state.bind()
        captured = self._derived.plan(bounds)
        assert self._derived.compute() and not self._derived.captured()
        self._restore(bounds, captured)
        return captured

    def _restore(self, bounds, captured):
        stored = StoredDerived(self._derived.record, 1, self._state.own)
        names = {tensor.name for tensor in stored.logical([bound.spec for bound in captured])}
        assert names == {bound.spec.name for bound in bounds}
        locals_ = {bound.spec.name: bound.local for bound in captured}
        for bound in stored.to_read(bounds):
            bound.local.copy_(locals_[bound.spec.name])
        weight = next(bound.local for bound in bounds if "model/" in bound.spec.name)
        expected = weight.clone()
        weight.zero_()
        stored.derive(bounds, [])
        assert torch.equal(weight, expected)
        if weight.numel():
            self._refuses_another_box(stored, bounds)

    def _refuses_another_box(self, stored, bounds):
        bound = next(bound for bound in bounds if bound.spec.name == "model/weight")
        moved = dataclasses.replace(bound.spec, offset=(9, 9))
        try:  # not pytest.raises: what that raises would end the worker, not the test
            stored.to_read([dataclasses.replace(bound, spec=moved)])
            raise AssertionError("taken")
        except unreft.FailedPrecondition as error:
            assert f"known of offset {bound.spec.offset}" in str(error), error


@pytest.mark.parametrize(
    ("mesh", "placements", "count"),
    [((4,), [Shard(0)], 1), ((2, 2), [Replicate(), Shard(1)], 2), ((4,), [Replicate()], 4)],
)
def test_shards_and_replicas(processes, mesh, placements, count):  # noqa: F811
    make = functools.partial(Captured, mesh_shape=mesh, placements=placements)
    for rank, specs in enumerate(processes(make, 4)):
        tables = {name for name in specs if name.startswith(f"rank{rank}/derived/digests/")}
        # The last rank's shard of five rows is empty: nothing is derived of it.
        assert len(tables) == (specs["master/weight"].extent[0] > 0)
        assert specs["master/weight"].replica_count == count
        empty = {"model/weight"} if not tables else set()
        assert specs.keys() == {"master/weight", *tables, *empty}


def test_master_that_is_sharded_otherwise_is_refused():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(unreft.InvalidArgument, match=r"extent \(5, 2\) of \(5, 3\), needed"):
            Captured(0, (2,), [Shard(0)], [Shard(1)])
    finally:
        dist.destroy_process_group()
