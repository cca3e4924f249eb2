"""Tensors that move between snapshots are noticed and registered again."""

import copy
import gc
import weakref

import pytest
import torch
from fake_job import Job, registrations, trained
from torch import nn


def test_one_registration_if_nothing_moves(store):
    job = Job(store)
    job.ck.restore()
    for step in range(1, 6):
        job.step()
        job.ck.snapshot(step)
    # Although the forward pass replaces a buffer.
    assert registrations(job) == job.ck.status.layout_generations == 1


def test_buffer_that_is_replaced_later(store):
    job = trained(store)
    before = registrations(job)
    for step in range(3, 6):
        job.model.norm.running_mean = torch.full((4,), float(step))
        assert job.ck.snapshot(step)
        spec, data = store.versions[0].tensors["rank0/buffer/norm.running_mean"]
        assert data == job.model.norm.running_mean.numpy().tobytes()
    assert registrations(job) == before + 1


def test_copy_of_a_buffer_holds_no_graph(store):
    """Of one that is made of parameters, as of an average that nobody detached."""
    job = trained(store)
    saved = []
    for step in range(3, 6):
        scaled = job.model.norm.weight * float(step)
        job.model.norm.running_mean = scaled * scaled
        assert job.ck.snapshot(step)
        _, data = store.versions[0].tensors["rank0/buffer/norm.running_mean"]
        assert data == job.model.norm.running_mean.detach().numpy().tobytes()
        saved.append(weakref.ref(scaled.untyped_storage()))
    del scaled
    assert saved[-1]() is not None
    job.model.norm.running_mean = torch.zeros(4)
    job.ck.fence()
    gc.collect()
    assert [storage() for storage in saved] == [None] * 3


@pytest.mark.parametrize(
    "move",
    [
        lambda job: setattr(job.model.inner.weight, "data", job.model.inner.weight.data.clone()),
        lambda job: setattr(job.model, "frozen", nn.Parameter(torch.zeros(3))),
        lambda job: setattr(job.model, "more", nn.Linear(2, 2)),
        lambda job: (
            job.model.load_state_dict(job.model.state_dict()) and job.optimizer.state.clear()
        ),
        lambda job: setattr(job.model.norm, "running_mean", torch.ones(4)),
        lambda job: job.optimizer.load_state_dict(job.optimizer.state_dict()),
        lambda job: job.optimizer.state.popitem(),
        lambda job: job.optimizer.state[job.model.norm.bias].update(exp_avg=torch.ones(4)),
        lambda job: job.model.norm.register_buffer("late", torch.zeros(1)),
    ],
)
def test_move_is_noticed(store, move):
    job = trained(store, steps=3)
    before = registrations(job)
    move(job)
    assert job.ck.snapshot(4)
    assert registrations(job) == before + 1
    live = {**dict(job.model.named_parameters()), **dict(job.model.named_buffers())}
    for spec, data in store.versions[0].tensors.values():
        _, _, name = spec.name.rpartition("model/" if "model/" in spec.name else "buffer/")
        if name in live:
            assert bytes(live[name].detach().reshape(-1).view(torch.uint8).numpy()) == data, name
    assert job.ck.snapshot(5)
    assert registrations(job) == before + 1


@pytest.mark.parametrize(
    "form",
    [lambda data: data.t(), lambda data: data[:2], lambda data: data.view(2, 8)],
    ids=["transposed", "rows", "viewed"],
)
def test_another_form_at_the_same_address_is_noticed(store, form):
    job = trained(store)
    before = registrations(job)
    weight = job.model.inner.weight
    weight.data = form(weight.data)
    assert job.ck.snapshot(3)
    assert registrations(job) == before + 1
    spec, data = store.versions[0].tensors["model/inner.weight"]
    assert spec.global_shape == tuple(weight.shape)
    order = spec.memory_order or range(weight.dim())
    assert data == weight.detach().permute(*order).contiguous().numpy().tobytes()
    assert job.ck.snapshot(4)
    assert registrations(job) == before + 1


def test_lazy_state_appears(store):
    job = Job(store)
    job.ck.restore()
    job.ck.snapshot(0)
    without = len(store.versions[0].tensors)
    job.step()
    job.ck.snapshot(1)
    assert len(store.versions[0].tensors) == without + 12


def test_copies_end_before_a_new_registration(store):
    job = trained(store)
    job.model.frozen.data = torch.zeros(3)
    job.client.calls.clear()
    job.ck.snapshot(3)
    assert [c for c in job.client.calls if c != "wait_ready"] == ["rebind", "snapshot"]
    job.client.calls.clear()
    job.model.frozen = nn.Parameter(torch.zeros(5))
    job.ck.snapshot(4)
    # Which waits for the copies of what was registered before.
    assert job.client.calls == ["register", "snapshot"]


def test_memory_is_held_until_the_fence_and_no_longer(store):
    job = trained(store)
    storage = weakref.ref(job.model.frozen.untyped_storage())
    job.model.frozen.data = torch.zeros(3)
    gc.collect()
    assert storage() is not None
    job.ck.fence()
    gc.collect()
    assert storage() is None


class StateIsAProperty(torch.optim.AdamW):
    """As wrappers of optimizers do it."""

    @property
    def state(self):
        return self._inner

    @state.setter
    def state(self, value):
        self._inner = value


def test_state_behind_a_property_is_watched(store):
    job = trained(store, steps=3, optimizer=StateIsAProperty)
    before = registrations(job)
    parameters = {id(p): p for p in job.optimizer._inner}  # not copied
    job.optimizer._inner = copy.deepcopy(job.optimizer._inner, parameters)
    assert job.ck.snapshot(4)
    assert registrations(job) == before + 1
