"""What the PyTorch API captures, under which names, and what it refuses."""

import pytest
import torch
from fake_job import Job, registrations, trained
from torch import nn

import unreft
from unreft.torch import refusals
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState


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
    prefix = "model/" if compiled else "model/0."
    assert names == {prefix + "weight", prefix + "bias"}


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
        (torch.zeros(4, 8)[:, ::2], "dense"),
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
    job.model.frozen = nn.Parameter(torch.zeros(4, 2)[:, :1])
    for step in (3, 4, 5):
        assert not job.ck.snapshot(step)
    assert len(caplog.records) == 1
    assert "model/frozen" in caplog.text
    assert "model/frozen" in job.ck.status.last_problem


def test_what_is_refused_once_may_be_captured_later(store, monkeypatch):
    job = trained(store)
    now = [100.0]
    monkeypatch.setattr("unreft.torch.registered_tensors.time.monotonic", lambda: now[0])
    job.model.frozen = nn.Parameter(torch.zeros(4, 2)[:, :1])
    assert not job.ck.snapshot(3)
    job.model.frozen = nn.Parameter(torch.zeros(4, 2))
    now[0] += 1.5
    assert job.ck.snapshot(4)
    assert store.versions[0].step == 4


def test_state_that_is_no_parameters_is_refused_by_name(store, caplog):
    job = trained(store)
    job.optimizer.state["rounds"] = 0
    for step in (3, 4, 5):
        assert not job.ck.snapshot(step)
    assert "state under 'rounds'" in caplog.text
    assert len(caplog.records) == 1
    assert registrations(job) == 1


def test_sharded_state_of_another_shape_is_refused(monkeypatch):
    class Sharded(torch.Tensor):
        pass

    monkeypatch.setattr(refusals, "DTensor", Sharded)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    rows = torch.zeros(2, 1).as_subclass(Sharded)
    optimizer.state[model.weight] = {"exp_avg": torch.zeros(2, 3).as_subclass(Sharded)}
    refusals.check_state(optimizer)
    optimizer.state[model.weight]["rows"] = rows
    said = r"Adam: the state 'rows' of a parameter of shape \(2, 3\) is a DTensor of shape \(2, 1\)"
    with pytest.raises(unreft.InvalidArgument, match=said):
        refusals.check_state(optimizer)


def test_state_under_a_number_is_refused():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.weight] = {0: torch.zeros(2, 3)}
    with pytest.raises(unreft.InvalidArgument, match="SGD: state .* under 0, a int: needed keys"):
        TrainingState(model, [optimizer], Replicas(model, 0, 1))


def test_a_count_that_parameters_share_is_refused():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    count = torch.zeros(())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": count}
    with pytest.raises(unreft.InvalidArgument, match="SGD: its state 'step' is one tensor for sev"):
        TrainingState(model, [optimizer], Replicas(model, 0, 1))
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": count.clone()}
    TrainingState(model, [optimizer], Replicas(model, 0, 1))


@pytest.mark.parametrize("what", ["a parameter itself", "in several places one tensor"])
def test_state_that_comes_back_as_copies_is_named_once(caplog, what):
    refusals._warn_of_copies.cache_clear()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    table = torch.arange(4)
    for parameter in model.parameters():
        own = parameter if what == "a parameter itself" else table
        optimizer.state[parameter] = {"table": own}
    TrainingState(model, [optimizer], Replicas(model, 0, 1)).bind()
    (warning,) = caplog.records
    assert f"SGD: its state 'table' is {what}" in warning.getMessage()


def test_torchscript_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(unreft.InvalidArgument, match=r"RecursiveScriptModule \(Linear\).*compile"):
        TrainingState(model, [], Replicas(model, 0, 1))


@pytest.mark.parametrize("lazy", [nn.LazyLinear(2), nn.LazyBatchNorm1d(affine=False)])
def test_a_lazy_module_is_refused_until_it_has_run(lazy):
    model = nn.Sequential(lazy)
    with pytest.raises(unreft.InvalidArgument, match="model: '0.* run one forward pass before"):
        TrainingState(model, [], Replicas(model, 0, 1))
    model(torch.ones(3, 2))
    TrainingState(model, [], Replicas(model, 0, 1)).bind()


# --- what is not tensors ---


class Tallying(torch.optim.SGD):
    """Keeps a count of its own, which only its `state_dict` tells."""

    rounds = 0

    def state_dict(self):
        return {**super().state_dict(), "rounds": self.rounds}


class Delegating(torch.optim.SGD):
    """As wrappers do it."""

    def state_dict(self):
        return super().state_dict()


@pytest.mark.parametrize(("kind", "warnings"), [(Tallying, 1), (Delegating, 0)])
def test_what_an_optimizer_adds_to_its_state_dict_is_named(store, caplog, kind, warnings):
    trained(store, optimizer=kind)
    assert len(caplog.records) == warnings
    assert ("Tallying: it adds 'rounds' to its state_dict" in caplog.text) == bool(warnings)




class Counting(torch.optim.SGD):
    """Keeps a plain number for every parameter."""

    def step(self):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["steps"] = state.get("steps", 0) + 1


def stored_scalars(store):
    (optimizer,) = Extras({}).loads(store.versions[0].extras)["scalars"]["optimizers"]
    return optimizer


def test_scalars_are_those_of_each_snapshot(store):
    job = trained(store, steps=3, optimizer=Counting)
    assert stored_scalars(store)["states"]["norm.bias"] == {"steps": 3}
    before = registrations(job)
    job.optimizer.param_groups[0]["lr"] = 0.5
    job.optimizer.state[job.model.norm.bias]["steps"] = 7
    assert job.ck.snapshot(4)
    assert stored_scalars(store)["states"]["norm.bias"] == {"steps": 7}
    assert stored_scalars(store)["states"]["norm.weight"] == {"steps": 3}
    assert stored_scalars(store)["groups"][0]["lr"] == 0.5
    assert registrations(job) == before


def test_a_group_that_is_added_later_is_stored(store):
    job = trained(store)
    before = registrations(job)
    assert len(stored_scalars(store)["groups"]) == 1
    job.optimizer.add_param_group({"params": [job.model.frozen], "lr": 0.25})
    assert job.ck.snapshot(3)
    assert stored_scalars(store)["groups"][1]["params"] == ["frozen"]
    assert stored_scalars(store)["groups"][1]["lr"] == 0.25
    assert registrations(job) == before, "it has no tensors yet"


def test_parameters_that_change_places_are_stored_in_their_new_ones(store):
    job = trained(store)
    names = stored_scalars(store)["groups"][0]["params"]
    job.optimizer.param_groups[0]["params"].reverse()
    assert job.ck.snapshot(3)
    assert stored_scalars(store)["groups"][0]["params"] == names[::-1]


def test_an_optimizer_that_steps_on_a_new_parameter_is_captured_again(store):
    job = trained(store)
    job.model.frozen = nn.Parameter(torch.zeros(3))
    job.optimizer.add_param_group({"params": [job.model.frozen]})
    assert job.ck.snapshot(3)
    assert stored_scalars(store)["groups"][1]["params"] == ["frozen"]
