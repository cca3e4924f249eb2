"""A version that one number of ranks stored, restored by another, over the fake store."""

import dataclasses
import gc
import logging
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler
from world_job import Net, Rank, assert_same, draw, refused, restored, seed_all, stored

import unreft
from unreft.torch import Derived, Reshard, device_extras, extras, own_tensors, record
from unreft.torch.safe_pickle import Classes


def edit(store, rank, change):
    """Changes the record that a rank has stored."""
    stored = record.loads(store.versions[rank].extras, None, Classes())
    change(stored)
    store.versions[rank].extras = record.dumps(stored, None, Classes())


# --- what every rank has alike ---


@pytest.mark.parametrize("worlds", [(4, 3), (3, 4), (1, 3), (3, 1)])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_data_parallel(store, worlds, optimizer):
    source, target = worlds
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    first = stored(store, source, optimizer=optimizer, **options)
    for job in restored(store, target, optimizer=optimizer, **options):
        assert_same(job.state(), first[0].state())
        assert job.ck.status.reshaped_from == source and job.ck.status.restored_step == 1
        assert job.ck.status.last_problem == ""


def test_from_there_it_goes_on_as_any_other(store):
    stored(store, 4)
    ranks = restored(store, 3)
    for job in ranks:
        job.step()
        assert job.ck.snapshot(2)
    assert store.world == 3
    for rank in range(3):
        job = Rank(store, rank, 3, seed=9)
        assert job.ck.restore() == 2
        assert job.ck.status.reshaped_from is None
        assert_same(job.state(), ranks[0].state())
        assert "restore_extras" not in job.client.calls
    job = Rank(store, 0, 5)
    assert job.ck.restore() == 2 and job.ck.status.reshaped_from == 3


def test_hyperparameters_and_learning_rates(store):
    def change(job):
        job.optimizer.param_groups[0]["lr"] = 0.025

    stored(store, 4, change=change)
    for job in restored(store, 3):
        assert job.optimizer.param_groups[0]["lr"] == 0.025


def test_other_models_are_refused(store):
    stored(store, 4)
    refused(store, "lacks 9 of this program", model=lambda: nn.Sequential(Net(), nn.Linear(2, 2)))
    no_norm = "none that this program attaches: 'model/norm.weight'"
    refused(store, no_norm, model=lambda: nn.ModuleDict({"inner": nn.Linear(4, 6)}))
    refused(
        store,
        r"'model/inner.weight': float32\[6, 4\] was stored, found float32\[7, 4\]",
        model=lambda: nn.ModuleDict({"inner": nn.Linear(4, 7), "norm": nn.BatchNorm1d(6)}),
    )


def test_optimizers_are_compared_before_anything_is_written(store):
    stored(store, 4)

    def fewer(parameters, lr):
        parameters = list(parameters)
        groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
        return torch.optim.AdamW(groups, lr=lr)

    refused(store, "AdamW: the parameter groups differ", optimizer=fewer)
    edit(store, 2, lambda record: record["scalars"]["optimizers"][0]["groups"][0].update(lr=0.3))
    refused(store, "optimizer 0, group 0: 'lr' needs .*rank 0 has 0.1, rank 2 0.3")


# --- buffers, and others that each rank has of its own ---


def other_buffers(job):
    job.model.norm.running_mean += job.rank // 2


def test_buffers_that_differ_are_refused_by_name(store):
    stored(store, 4, change=other_buffers)
    refused(
        store,
        "buffers: needed alike on all 4 ranks that stored them, for a world of 3; 1 are not: "
        "'norm.running_mean'; 'norm.running_mean' on rank 2, 3 is not what it is on rank 0. Take "
        r"rank 0's, as DistributedDataParallel does, with attach\(buffers='first'\), .*restart",
    )


def test_buffers_of_the_first_rank(store, caplog):
    caplog.set_level(logging.INFO, "unreft")
    first = stored(store, 4, change=other_buffers)
    for job in restored(store, 3, buffers="first"):
        assert_same(job.state(), first[0].state())
    (line,) = [r.getMessage() for r in caplog.records if "is restored by" in r.getMessage()]
    assert "buffers of rank 0: 'norm.running_mean'" in line


def test_the_same_number_of_ranks_keeps_each_rank_its_buffers(store):
    first = stored(store, 4, change=other_buffers)
    for job, before in zip(restored(store, 4), first):
        assert_same(job.state(), before.state())


def test_nan_in_a_buffer_is_alike(store):
    def change(job):
        job.model.norm.running_mean[0] = float("nan")

    stored(store, 4, change=change)
    for job in restored(store, 3):
        assert job.model.norm.running_mean[0].isnan()


def test_buffers_in_different_memory_orders(store):
    class Turned(nn.Module):
        def __init__(self, turned):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            table = torch.arange(12.0).view(3, 4)
            self.register_buffer("table", table.t().contiguous().t() if turned else table)

    ranks = [Rank(store, r, 2, model=lambda r=r: Turned(r == 1), ddp=False) for r in range(2)]
    for job in ranks:
        job.ck.restore()
    for job in ranks:
        assert job.ck.snapshot(1)
    assert store.versions[1].tensors["rank1/buffer/table"][0].memory_order == (1, 0)
    for rank in range(3):
        job = Rank(store, rank, 3, model=lambda: Turned(True), ddp=False)
        job.model.table.zero_()
        assert job.ck.restore() == 1
        assert torch.equal(job.model.table, torch.arange(12.0).view(3, 4))


def test_parameters_of_each_rank_are_taken_if_they_are_alike(store):
    first = stored(store, 4, ddp=False)
    assert "rank3/model/inner.weight" in store.versions[3].tensors
    for job in restored(store, 3, ddp=False):
        assert_same(job.state(), first[0].state())


def test_parameters_of_each_rank_that_differ_are_refused_also_with_first(store):
    def change(job):
        with torch.no_grad():
            job.model.inner.bias[2] += job.rank == 3

    stored(store, 4, change=change, ddp=False)
    refusal = (
        "tensor 'model/inner.bias' is each rank's own: needed alike on all 4 ranks .* a world of 3,"
        " but on rank 3 it is not what it is on rank 0. Restart with 4 ranks, or .*DTensors"
    )
    refused(store, refusal, ddp=False)
    refused(store, refusal, ddp=False, buffers="first")


def test_states_of_each_rank_that_differ_are_refused(store):
    def change(job):
        job.optimizer.state[job.model.inner.weight]["exp_avg"][0, 0] += job.rank == 1

    stored(store, 4, change=change, ddp=False)
    refused(store, "tensor 'optim/inner.weight/exp_avg' is each rank's own.*on rank 1 ", ddp=False)


def test_own_tensors_that_some_ranks_lack_are_refused(store):
    stored(store, 4)
    del store.versions[2].tensors["rank2/buffer/norm.running_var"]
    refused(store, "1 were not stored by all 4 ranks: 'buffer/norm.running_var'.*by rank 0, 1, 3")


def test_own_tensors_of_two_kinds_are_refused(store):
    def change(job):
        if job.rank == 3:
            job.model.norm.running_var = torch.zeros(5)

    stored(store, 4, change=change)
    refused(store, r"'buffer/norm.running_var': needed .*float32\[6\] on rank 0 .*\[5\] on rank 3")


def test_own_tensors_that_nothing_attaches_are_refused(store):
    stored(store, 4, model=lambda: with_buffer(Net()))
    refused(store, "none that this program attaches: 'rank.*/buffer/more'")
    store.versions.clear()
    stored(store, 4)
    lacking = "lacks 1 of this program: 'rank.*/buffer/more'"
    refused(store, lacking, model=lambda: with_buffer(Net()))


def with_buffer(model):
    model.register_buffer("more", torch.ones(2))
    return model


def test_few_are_held_at_a_time(store, monkeypatch):
    """Two copies of an own tensor, however many ranks stored it."""
    alive, most = [], []
    read_whole = own_tensors.read_whole

    def counted(client, tensor):
        most.append(sum(1 for reference in alive if reference() is not None) + 1)
        read = read_whole(client, tensor)
        alive.append(weakref.ref(read))
        return read

    stored(store, 6, ddp=False)
    monkeypatch.setattr(own_tensors, "read_whole", counted)
    gc.disable()
    try:
        restored(store, 2, ddp=False)
    finally:
        gc.enable()
    assert max(most) == 2 and len(most) > 12


# --- sets of ranks ---


def test_sets_of_ranks_are_refused_on_either_side(store):
    stored(store, 4)
    for version in store.versions.values():
        spec, data = version.tensors.pop("model/inner.bias")
        spec = dataclasses.replace(spec, name="group0/model/inner.bias")
        version.tensors[spec.name] = spec, data
    refusal = (
        "of the stored tensors, 1 are those of a set of ranks that are not all: "
        "'group0/model/inner.bias'.*pipeline.*restart with 4 ranks, or .*fresh-start"
    )
    refused(store, refusal)

    store.versions.clear()
    stored(store, 4)
    job = Rank(store, 1, 3, seed=7)
    job.training_state._replicas._plain = job.training_state._replicas._of([1, 2])
    with pytest.raises(unreft.FailedPrecondition, match="of the live tensors, 4 are .*'group1/mod"):
        job.ck.restore()


# --- the record of each rank ---


def test_a_rank_without_extras_is_a_loss(store):
    stored(store, 4)
    store.versions[2].extras = None
    refused(store, "step 1: nothing but tensors is stored of rank 2 of 4", unreft.DataLoss)


def test_another_format_on_any_rank_is_refused(store):
    stored(store, 4)
    data = bytearray(store.versions[3].extras)
    data[8:12] = (99).to_bytes(2, "little") * 2
    store.versions[3].extras = bytes(data)
    refused(store, "extras have format 99: this release reads formats 4 to 5")


def test_derived_tensors_are_refused(store):
    declared = Derived("buffer/low", of="model/inner.weight", fn=lambda w: w.detach().half())

    class Lowered(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("low", self.inner.weight.detach().half())

    def change(job):
        job.model.low.copy_(job.model.inner.weight.detach())

    stored(store, 4, change=change, model=Lowered, derived=[declared])
    refusal = (
        "step 1: 1 tensors were declared derived on rank 0 of 4: 'rank0/buffer/low'. .*Restart "
        "with 4 ranks; for another number, have them take one snapshot without the declaration"
    )
    refused(store, refusal, model=Lowered, derived=[declared])


def test_extras(store):
    def attached(rank):
        return {"epoch": lambda: 7, "position": Reshard(lambda: 10 + rank, total)}

    def total(states, rank, world):
        return sum(states), rank, world

    stored(store, 4, extras=attached)
    for rank, job in enumerate(restored(store, 3, extras=attached)):
        assert job.ck.extras == {"epoch": 7, "position": (46, rank, 3)}
    for rank, job in enumerate(restored(store, 4, extras=attached)):
        assert job.ck.extras == {"epoch": 7, "position": 10 + rank}


def test_extras_that_differ_are_refused(store):
    stored(store, 4, extras=lambda rank: {"note": lambda: rank == 2})
    refused(store, "'note' needs .* on rank 2 it is not .*Reshard", extras={"note": lambda: 0})


def test_samplers_need_a_rule(store):
    class Sampler(DistributedSampler):
        position = 6

        def state_dict(self):
            return {"position": self.position}

        def load_state_dict(self, state):
            self.position = state["position"]

    def make(world):
        return lambda rank: {"sampler": Sampler(range(24), world, rank)}

    stored(store, 4, extras=make(4))
    refused(store, "'sampler' counts the samples of one of 4 ranks", extras=make(3))

    def load(states, rank, world):
        return {"position": sum(state["position"] for state in states) // world}

    samplers = [Sampler(range(24), 3, rank) for rank in range(3)]
    restored(store, 3, extras=lambda rank: {"sampler": Reshard(samplers[rank], load)})
    assert [sampler.position for sampler in samplers] == [8, 8, 8]


def test_extras_that_were_on_a_device(store, monkeypatch):
    """Here tensors of float64 count as on one."""
    for module in (device_extras, extras):
        monkeypatch.setattr(module, "is_on_device", lambda t: t.dtype == torch.float64)

    def value(rank, shared):
        return {"scale": torch.tensor([8.0, 0.0 if shared else rank], dtype=torch.float64)}

    stored(store, 4, extras=lambda rank: {"scaler": lambda: value(rank, True)})
    assert "rank3/extras/device" in store.versions[3].tensors
    for job in restored(store, 3, extras={"scaler": lambda: None}):
        assert torch.equal(job.ck.extras["scaler"]["scale"], value(0, True)["scale"])
    store.versions.clear()
    stored(store, 4, extras=lambda rank: {"scaler": lambda: value(rank, False)})
    refused(store, "'scaler' needs .*on rank 1, 2, 3 ", extras={"scaler": lambda: None})


# --- random streams ---


def test_streams_go_by_rank_and_new_ranks_begin_new_ones(store, caplog):
    caplog.set_level(logging.INFO, "unreft")
    expected = []
    for rank in range(2):
        seed_all(rank)
        expected.append(draw())
    stored(store, 2, streams=lambda rank: rank)
    drawn = [job.drawn for job in restored(store, 4)]
    assert drawn[:2] == expected and len(set(drawn)) == 4
    assert [job.drawn for job in restored(store, 4)] == drawn
    lines = [r.getMessage() for r in caplog.records if "is restored by" in r.getMessage()]
    assert lines == [
        "step 1 of 2 ranks is restored by 4; random streams by rank: python, torch, numpy, begun "
        "anew on rank 2, 3"
    ] * 2


def test_a_stream_that_all_share(store, caplog):
    caplog.set_level(logging.INFO, "unreft")
    stored(store, 2)
    seed_all(100)
    expected = draw()
    assert {job.drawn for job in restored(store, 3)} == {expected}
    assert "restored by 3; random streams that all ranks share: python, torch, numpy" in caplog.text


def test_streams_that_some_share_are_refused_unless_left_out(store):
    stored(store, 4, streams=lambda rank: rank // 2)
    refused(store, r"streams of 'python' are alike on rank 0, 1, .*attach\(rng=False\)")
    seed_all(999)
    expected = draw()
    assert {job.drawn for job in restored(store, 3, rng=False)} == {expected}


def test_streams_were_not_stored(store):
    stored(store, 4, rng=False)
    seed_all(999)
    expected = draw()
    assert {job.drawn for job in restored(store, 3)} == {expected}


# --- what is said ---


def test_one_line_says_what_was_done(store, caplog):
    caplog.set_level(logging.INFO, "unreft")

    def attached(rank):
        return {"position": Reshard(lambda: rank, lambda states, rank, world: states[0])}

    stored(store, 4, change=other_buffers, extras=attached)
    restored(store, 3, extras=attached, buffers="first")
    lines = [r.getMessage() for r in caplog.records if "is restored by" in r.getMessage()]
    assert lines == [
        "step 1 of 4 ranks is restored by 3; random streams that all ranks share: python, torch, "
        "numpy; buffers of rank 0: 'norm.running_mean'; extras by their functions: 'position'"
    ]
