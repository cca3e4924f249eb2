"""The PyTorch API against a fake store: names, restore in place, moved tensors, problems."""

import gc
import logging
import os
import random
import weakref

import numpy as np
import pytest
import torch
from fake_store import FakeStore
from torch import nn

import unreft
import unreft.torch
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.extras import Extras, dumps, loads
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState


class Net(nn.Module):
    """Tied parameters, buffers of three kinds, an empty parameter and a frozen one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.outer = nn.Linear(4, 4)
        self.outer.weight = self.inner.weight
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        x = self.outer(self.norm(self.inner(x)))
        self.mean = 0.9 * self.mean + x.detach().mean()  # replaced, not written in place
        self.cache = x.detach()[0, :2].clone()
        return x


class Job:
    """One rank's training, on a store."""

    def __init__(self, store, seed=0, extras=None, optimizer=torch.optim.AdamW, rank=0, **options):
        torch.manual_seed(seed)
        self.model = Net()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(trained, lr=0.1, **options)
        self.client = store.client(rank)
        state = TrainingState(self.model, [self.optimizer], Replicas(self.model, rank, 1))
        self.ck = Checkpointer(self.client, state, Extras(extras or {}), rng=True)

    def step(self):
        self.model(torch.randn(8, 4)).square().mean().backward()
        with self.ck.fence():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        names = {p: n for n, p in self.model.named_parameters()}
        optimizer = {
            f"{names[p]}/{key}": value
            for p, state in self.optimizer.state.items()
            for key, value in state.items()
        }
        return {**self.model.state_dict(), **optimizer}


def assert_equal_state(a, b):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], torch.Tensor):
            assert a[name].dtype == b[name].dtype and a[name].device == b[name].device, name
            assert torch.equal(a[name], b[name]), name
        else:
            assert a[name] == b[name], name


@pytest.fixture
def store():
    return FakeStore()


def trained(store, steps=2, **options):
    job = Job(store, **options)
    assert job.ck.restore() is None
    for step in range(1, steps + 1):
        job.step()
        assert job.ck.snapshot(step)
    return job


# --- what is captured ---


def test_names(store):
    trained(store)
    names = set(store.versions[0].tensors)
    parameters = ["frozen", "inner.weight", "norm.bias", "norm.weight", "outer.bias"]
    assert {n for n in names if n.startswith("model/")} == {f"model/{p}" for p in parameters}
    parameters.remove("frozen")
    assert {n for n in names if n.startswith("optim/")} == {
        f"optim/{p}/{key}" for p in parameters for key in ("step", "exp_avg", "exp_avg_sq")
    }
    assert {n for n in names if n.startswith("rank0/")} == {
        "rank0/buffer/mean",
        "rank0/buffer/norm.running_mean",
        "rank0/buffer/norm.running_var",
        "rank0/buffer/norm.num_batches_tracked",
    }
    assert len(names) == 5 + 12 + 4


def test_only_buffers_are_volatile(store):
    trained(store)
    for name, (spec, _) in store.versions[0].tensors.items():
        assert spec.volatile == name.startswith("rank0/buffer/")


@pytest.mark.parametrize("compiled", [False, True])
def test_names_without_wrappers(compiled):
    model = torch.compile(nn.Linear(2, 2)) if compiled else nn.Sequential(nn.Linear(2, 2))
    state = TrainingState(model, [], Replicas(model, 0, 1))
    names = {bound.spec.name for bound in state.bind()}
    assert names == ({"model/weight", "model/bias"} if compiled else {"model/0.weight", "model/0.bias"})


def test_plain_model_of_many_ranks_is_each_rank_s_own():
    model = nn.Linear(2, 2)
    state = TrainingState(model, [], Replicas(model, rank=3, world=8))
    assert {b.spec.name for b in state.bind()} == {"rank3/model/weight", "rank3/model/bias"}


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
)
def test_dtypes(store, dtype):
    job = Job(store)
    job.model.register_buffer("kind", torch.ones(3, dtype=dtype))
    job.ck.restore()
    job.step()
    assert job.ck.snapshot(1)
    other = Job(store, seed=1)
    other.model.register_buffer("kind", torch.zeros(3, dtype=dtype))
    assert other.ck.restore() == 1
    assert other.model.kind.dtype == dtype
    assert torch.equal(other.model.kind.to(torch.complex64), torch.ones(3, dtype=torch.complex64))


# --- what is refused ---


@pytest.mark.parametrize(
    "tensor, message",
    [
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), "row-major"),
        (torch.zeros(4, 4).t(), None),  # strides (1, 4)
        (torch.zeros(1).expand(4), "strides"),
        (torch.zeros(4, 4).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "conjugated"),
    ],
)
def test_refused_by_name(tensor, message):
    model = nn.Module()
    model.weight = nn.Parameter(tensor)
    with pytest.raises(unreft.InvalidArgument, match="'model/weight'.*" + (message or "")):
        TrainingState(model, [], Replicas(model, 0, 1))


def test_foreign_parameter_is_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(7))], lr=0.1)
    model = nn.Linear(2, 2)
    with pytest.raises(unreft.InvalidArgument, match=r"group 0, shape \(7,\), is not a parameter"):
        TrainingState(model, [optimizer], Replicas(model, 0, 1))


def test_refused_after_restore_is_one_warning(store, caplog):
    job = trained(store)
    job.model.frozen = nn.Parameter(torch.zeros(4, 2).t())
    for step in (3, 4, 5):
        assert not job.ck.snapshot(step)
    assert len(caplog.records) == 1
    assert "model/frozen" in caplog.text
    assert "no more snapshots" in caplog.text
    assert not job.ck.status.protecting
    assert "model/frozen" in job.ck.status.last_problem


# --- restore ---


@pytest.mark.parametrize(
    "optimizer, options",
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.Adafactor, {}),
    ],
)
def test_optimizer_state_is_made(store, optimizer, options):
    first = trained(store, optimizer=optimizer, **options)
    second = Job(store, seed=1, optimizer=optimizer, **options)
    assert second.ck.restore() == 2
    assert_equal_state(second.state(), first.state())
    # The random generators, too: both draw the same inputs.
    torch.set_rng_state(loads(store.versions[0].extras)["rng"]["torch"])
    first.step()
    second.ck.restore()
    second.step()
    assert_equal_state(second.state(), first.state())


def test_restores_twice_in_place(store):
    first = trained(store)
    pointers = {name: value.data_ptr() for name, value in first.state().items()}
    expected = {name: value.clone() for name, value in first.state().items()}
    first.step()
    assert first.ck.restore() == 2
    assert first.ck.restore() == 2
    assert_equal_state(first.state(), expected)
    moved = {name for name, value in first.state().items() if value.data_ptr() != pointers[name]}
    assert moved <= {"mean", "cache"}


def test_hyperparameters(store):
    first = trained(store)
    first.optimizer.param_groups[0]["lr"] = 0.025
    first.ck.snapshot(3)
    second = Job(store)
    assert second.ck.restore() == 3
    assert second.optimizer.param_groups[0]["lr"] == 0.025


def test_fresh_start_is_none(store):
    assert Job(store).ck.restore() is None


def test_other_model_is_refused(store):
    trained(store)
    job = Job(store)
    job.model.more = nn.Parameter(torch.zeros(1))
    with pytest.raises(unreft.FailedPrecondition, match="not in what was stored: 'model/more'"):
        job.ck.restore()
    job = Job(store)
    del job.model.frozen
    with pytest.raises(unreft.FailedPrecondition, match="not attached: 'model/frozen'"):
        job.ck.restore()
    job = Job(store)
    job.model.frozen.data = torch.zeros(5)
    with pytest.raises(unreft.FailedPrecondition, match=r"float32\[3\] was stored, found float32\[5\]"):
        job.ck.restore()


def test_errors_of_restore_are_raised(store):
    job = Job(store)
    job.client.fail["restore_begin"] = unreft.DataLoss("step 7: slot 3 does not verify")
    with pytest.raises(unreft.DataLoss, match="slot 3"):
        job.ck.restore()


# --- extras ---


def test_extras(store):
    def make():
        generator = torch.Generator().manual_seed(3)
        return {
            "generator": generator,
            "scheduler": torch.optim.lr_scheduler.StepLR(
                torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), 1
            ),
            "position": lambda: position[0],
            "note": "blue",
        }

    position = [41]
    extras = make()
    job = trained(store, extras=extras)
    torch.rand(3, generator=extras["generator"])
    extras["scheduler"].optimizer.step()
    extras["scheduler"].step()
    position[0] = 42
    assert job.ck.snapshot(3)
    expected = torch.rand(3, generator=extras["generator"])

    restored = make()
    other = Job(store, extras=restored)
    assert other.ck.restore() == 3
    assert torch.equal(torch.rand(3, generator=restored["generator"]), expected)
    assert restored["scheduler"].last_epoch == 1
    assert other.ck.extras == {"position": 42, "note": "blue"}


def test_missing_extras_are_refused(store):
    trained(store, extras={"note": 1})
    with pytest.raises(unreft.FailedPrecondition, match="sampler not in what was stored.*note"):
        Job(store, extras={"sampler": 1}).ck.restore()


def test_tensors_in_extras_are_not_pickled_by_torch():
    value = {
        "a": torch.arange(6).reshape(2, 3).t(),
        "b": torch.tensor(1.5, dtype=torch.bfloat16),
        "c": torch.zeros(0),
    }
    data = dumps(value)
    assert b"_rebuild" not in data and b"torch.storage" not in data
    for name, tensor in loads(data).items():
        assert torch.equal(tensor, value[name]) and tensor.dtype == value[name].dtype


def test_random_generators(store):
    job = trained(store)

    def draw():
        # An odd number of normal draws leaves a cached second one behind in NumPy and Python.
        return torch.rand(3).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1)

    draw()
    job.ck.snapshot(3)
    expected = draw()
    draw()
    assert Job(store).ck.restore() == 3
    assert draw() == expected


# --- moving tensors ---


def registrations(job):
    return job.client.calls.count("register")


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


@pytest.mark.parametrize(
    "move",
    [
        lambda job: setattr(job.model.inner.weight, "data", job.model.inner.weight.data.clone()),
        lambda job: setattr(job.model, "frozen", nn.Parameter(torch.zeros(3))),
        lambda job: setattr(job.model, "more", nn.Linear(2, 2)),
        lambda job: job.model.load_state_dict(job.model.state_dict()) and job.optimizer.state.clear(),
        lambda job: setattr(job.model.norm, "running_mean", torch.ones(4)),
        lambda job: job.optimizer.load_state_dict(job.optimizer.state_dict()),
        lambda job: job.optimizer.state.popitem(),
        lambda job: job.optimizer.state[job.model.norm.bias].update(exp_avg=torch.ones(4)),
        lambda job: setattr(job.model.frozen, "data", job.model.frozen.data.view(3, 1)),
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
    assert job.client.calls == ["fence", "register", "snapshot"]


def test_memory_is_held_until_the_fence_and_no_longer(store):
    job = trained(store)
    storage = weakref.ref(job.model.frozen.untyped_storage())
    job.model.frozen.data = torch.zeros(3)
    gc.collect()
    assert storage() is not None
    job.ck.fence()
    gc.collect()
    assert storage() is None


# --- never raises after restore ---


@pytest.mark.parametrize("method", ["snapshot", "register", "fence", "wait_committed", "close"])
def test_problem_is_one_warning(store, caplog, method):
    job = Job(store)
    job.ck.restore()
    job.client.fail[method] = unreft.Unavailable("node 0: no daemon")
    for step in (1, 2, 3):
        job.step()
        job.ck.snapshot(step)
        job.ck.wait(step)
    job.ck.close()
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "no daemon" in warnings[0].getMessage()


def test_failing_extra_is_one_warning(store, caplog):
    def broken():
        raise RuntimeError("no position")

    job = Job(store, extras={"position": broken})
    job.ck.restore()
    assert not job.ck.snapshot(1) and not job.ck.snapshot(2)
    assert len(caplog.records) == 1
    assert "no position" in job.ck.status.last_problem


def test_registration_is_tried_again_but_not_at_once(store, monkeypatch):
    job = Job(store)
    job.ck.restore()
    now = [100.0]
    monkeypatch.setattr("unreft.torch.checkpointer.time.monotonic", lambda: now[0])
    job.client.fail["register"] = unreft.Unavailable("node 0: no daemon")
    assert not job.ck.snapshot(1)
    assert not job.ck.snapshot(2)
    assert registrations(job) == 1
    job.client.fail.clear()
    now[0] += 1.5
    assert job.ck.snapshot(3)
    assert registrations(job) == 2
    assert job.ck.status.skipped == 1


def test_many_skips_are_one_warning(store, caplog):
    job = trained(store)
    job.client.skip = "no free slot"
    for step in range(3, 60):
        assert not job.ck.snapshot(step)
    assert len(caplog.records) == 1 and "no free slot" in caplog.text
    assert job.ck.status.skipped == 57


def test_snapshot_needs_restore(store, caplog):
    job = Job(store)
    assert not job.ck.snapshot(1)
    assert "needs restore()" in caplog.text


def test_status(store):
    job = trained(store)
    status = job.ck.status
    assert status.connected and status.protecting
    assert status.last_committed_step == 2 and status.started == 2
    assert status.last_problem == ""
    other = Job(store)
    other.ck.restore()
    assert other.ck.status.restored_step == 2
    assert not other.ck.status.protecting


def test_closed_is_inert(store):
    job = trained(store)
    job.ck.close()
    job.ck.close()
    job.client.calls.clear()
    with job.ck.fence():
        pass
    assert not job.ck.snapshot(3)
    assert job.client.calls == []


def test_forked_child_is_inert(store):
    job = trained(store)
    job.client.calls.clear()
    child = os.fork()
    if child == 0:
        with job.ck.fence():
            inert = not job.ck.snapshot(3) and not job.ck.wait(3) and not job.ck.status.connected
        job.ck.close()
        os._exit(0 if inert and not job.client.calls else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert job.ck.snapshot(3)


def test_not_required(monkeypatch, caplog):
    monkeypatch.setenv("UNREFT_SOCKET", "/nonexistent/unreftd.sock")
    model = nn.Linear(2, 2)
    with pytest.raises(unreft.Unavailable):
        unreft.torch.attach(model, connect_timeout_s=0.1)
    ck = unreft.torch.attach(model, required=False, connect_timeout_s=0.1)
    assert "unprotected" in caplog.text
    assert ck.restore() is None
    with ck.fence():
        assert not ck.snapshot(1)
    assert not ck.status.connected
    ck.close()
