"""Derived tensors: what is captured of them, how they come back, and what is refused."""

import logging
import re

import pytest
import torch
from fake_job import assert_equal_state, registrations
from mixed_job import OF_MASTERS, OF_STATE, OF_WEIGHT, MixedJob, amax, mixed, names
from unreft.torch import derived_tensors, digest
from unreft.torch.derived import Derived

import unreft

LOW = {"model/inner.weight", "model/outer.bias"}
TABLE = "rank0/derived/digests/cpu"


# --- what is captured and restored ---


@pytest.mark.parametrize("own_masters", [True, False], ids=["masters", "optimizer state"])
def test_weights_of_masters(store, own_masters):
    rule = OF_MASTERS if own_masters else OF_STATE
    job = mixed(store, rule, OF_WEIGHT, own_masters=own_masters)
    found = names(store)
    assert not found & {*LOW, "rank0/buffer/scale"}
    assert "model/norm.weight" in found  # that has no master
    spec, _ = store.versions[0].tensors[TABLE]
    assert (spec.dtype, spec.global_shape, spec.volatile) == (unreft.Dtype.INT64, (3,), True)
    assert (job.ck.status.derived, job.ck.status.not_derived) == (3, {})

    other = MixedJob(store, rule, OF_WEIGHT, seed=1, own_masters=own_masters)
    places = {name: p.data_ptr() for name, p in other.model.named_parameters()}
    assert other.ck.restore() == 2
    assert_equal_state(other.state(), job.state())
    # In place, also where weights are tied.
    assert {name: p.data_ptr() for name, p in other.model.named_parameters()} == places
    assert other.model.outer.weight is other.model.inner.weight
    for run in (job, other):
        torch.manual_seed(5)
        run.step()
        assert run.ck.snapshot(3)
    assert_equal_state(other.state(), job.state())


def test_digests_are_those_of_the_step(store):
    job = mixed(store, OF_MASTERS)
    tables = [store.versions[0].tensors[TABLE][1]]
    assert job.ck.snapshot(3)
    tables.append(store.versions[0].tensors[TABLE][1])
    job.step()
    assert job.ck.snapshot(4)
    tables.append(store.versions[0].tensors[TABLE][1])
    assert tables[0] == tables[1] != tables[2]
    assert registrations(job) == 1


def test_state_that_appears_at_the_first_step(store, caplog):
    job = MixedJob(store, OF_STATE, own_masters=False)
    job.ck.restore()
    assert job.ck.snapshot(0)
    assert LOW <= names(store) and job.ck.status.derived == 0
    job.step()
    assert job.ck.snapshot(1)
    assert not LOW & names(store) and job.ck.status.derived == 2
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_tensors_that_move(store):
    job = mixed(store, OF_MASTERS, OF_WEIGHT)
    weight = job.model.inner.weight
    weight.data = weight.data.clone()
    job.masters["inner.weight"].data = job.masters["inner.weight"].data.clone()
    assert job.ck.snapshot(3)
    assert registrations(job) == 2 and not LOW & names(store)
    other = MixedJob(store, OF_MASTERS, OF_WEIGHT, seed=1)
    assert other.ck.restore() == 3
    assert_equal_state(other.state(), job.state())


def test_derived_of_derived_in_any_order(store):
    rules = [OF_WEIGHT, OF_MASTERS]
    job = mixed(store, *rules)
    for again in (rules, rules[::-1]):
        other = MixedJob(store, *again, seed=1)
        assert other.ck.restore() == 2
        assert_equal_state(other.state(), job.state())


def test_the_first_declaration_holds(store):
    def never(master):
        raise AssertionError

    job = mixed(store, OF_MASTERS, Derived("model/outer.bias", of="master/outer.bias", fn=never))
    assert job.ck.status.derived == 2


def test_declared_later(store):
    """A version that has the bytes gives them, whatever is declared."""
    job = mixed(store)
    other = MixedJob(store, OF_MASTERS, OF_WEIGHT, seed=1)
    assert other.ck.restore() == 2
    assert_equal_state(other.state(), job.state())
    other.step()
    assert other.ck.snapshot(3)
    assert not LOW & names(store)


def test_declared_no_longer(store):
    """A cast is known without the declaration, a function is not."""
    job = mixed(store, OF_MASTERS)
    other = MixedJob(store, seed=1)
    assert other.ck.restore() == 2
    assert_equal_state(other.state(), job.state())
    other.step()
    assert other.ck.snapshot(3)
    assert LOW <= names(store) and TABLE not in names(store)

    job = mixed(store := type(store)(), OF_MASTERS, OF_WEIGHT)
    message = (
        r"step 2: tensor 'rank0/buffer/scale' was not captured, since it was declared derived "
        r"from 'model/inner.weight' by mixed_job.amax: needed the same declaration"
    )
    with pytest.raises(unreft.FailedPrecondition, match=message):
        MixedJob(store, OF_MASTERS).ck.restore()


def test_declared_otherwise(store):
    """The digest says whether what is declared now makes the same bytes."""
    job = mixed(store, OF_MASTERS)
    rule = Derived("model/{}", of=["master/{}"], fn=lambda m: (m * 1.0).to(torch.bfloat16))
    other = MixedJob(store, rule, seed=1)
    assert other.ck.restore() == 2
    assert_equal_state(other.state(), job.state())


def test_many_pieces(store, monkeypatch):
    monkeypatch.setattr(digest, "PIECE_BYTES", 12)
    job = mixed(store, OF_MASTERS, OF_WEIGHT)
    spec, _ = store.versions[0].tensors[TABLE]
    assert spec.global_shape == (3 + 1 + 1,)  # 32, 8 and 4 bytes
    other = MixedJob(store, OF_MASTERS, OF_WEIGHT, seed=1)
    assert other.ck.restore() == 2
    assert_equal_state(other.state(), job.state())
    with torch.no_grad():
        job.model.inner.weight[3, 1] += 1
    assert job.ck.snapshot(3)
    assert "model/inner.weight" in job.ck.status.not_derived


# --- what turns out not to be derived ---


@pytest.mark.parametrize(
    "fn, reason",
    [
        (lambda m: (m + 1).to(torch.bfloat16), "it is not what .* makes of 'master/inner.weight'"),
        (lambda m: m.to(torch.bfloat16) * next(iter([])), "StopIteration"),
        (lambda m: m, r"returns float32\[4, 4\] on cpu, needed bfloat16"),
        (lambda m: (m + 0 * torch.rand(())).to(torch.bfloat16), "draws random numbers"),
        (lambda m: m.mul_(2).to(torch.bfloat16), "writes to its source 'master/inner.weight'"),
    ],
)
def test_function_that_is_wrong_is_captured(store, caplog, fn, reason, monkeypatch):
    # As if it were right when it was attached.
    monkeypatch.setattr(derived_tensors.DerivedTensors, "_check", lambda *_: None)
    rule = Derived("model/inner.weight", of="master/inner.weight", fn=fn)
    job = MixedJob(store, rule)
    job.ck.restore()
    job.step()
    expected = job.state()
    generator = torch.get_rng_state()
    assert job.ck.snapshot(1)  # calls it, on copies
    assert torch.equal(torch.get_rng_state(), generator)
    assert_equal_state(job.state(), expected)
    status = job.ck.status
    assert status.derived == 0 and list(status.not_derived) == ["model/inner.weight"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    named = f"declared derived, but captured: 'model/inner.weight': .*{reason}"
    assert len(warnings) == 1 and re.search(named, warnings[0]), warnings
    found = names(store)
    assert "rank0/derived/model/inner.weight" in found and TABLE not in found

    job.step()
    assert job.ck.snapshot(2)
    assert registrations(job) == 1
    for again in ([rule], []):
        other = MixedJob(store, *again, seed=1)
        assert other.ck.restore() == 2
        assert_equal_state(other.state(), job.state())


def test_captured_from_the_snapshot_at_which_it_differs(store, caplog):
    job = mixed(store, OF_MASTERS)
    with torch.no_grad():
        job.model.outer.bias.fill_(7)  # its master is not told
    assert job.ck.snapshot(3)
    assert "at a snapshot it was no longer what cast makes of 'master/outer.bias'" in caplog.text
    assert registrations(job) == 2 and job.ck.status.derived == 1
    other = MixedJob(store, OF_MASTERS, seed=1)
    assert other.ck.restore() == 3
    assert_equal_state(other.state(), job.state())
    assert other.model.outer.bias.tolist() == [7] * 4


def test_function_that_fails_later_is_captured(store, caplog):
    broken = []

    def cast(master):
        if broken:
            raise RuntimeError("no more")
        return master.to(torch.bfloat16)

    rule = Derived("model/{}", of="master/{}", fn=cast)
    job = mixed(store, rule)
    broken.append(True)
    assert job.ck.snapshot(3)
    assert "no more" in caplog.text and job.ck.status.derived == 0
    other = MixedJob(store, seed=1)
    assert other.ck.restore() == 3
    assert_equal_state(other.state(), job.state())


def test_replicas_capture_their_own(store):
    """What one rank captures must not depend on what another has found."""
    job = mixed(store, OF_MASTERS, rank=1, world=2)
    with torch.no_grad():
        job.model.outer.bias.fill_(7)
    assert job.ck.snapshot(3)
    spec, _ = store.versions[1].tensors["rank1/derived/rank1/model/outer.bias"]
    assert (spec.replica_count, spec.global_shape) == (1, (4,))


def test_nan_is_equal_to_itself(store):
    job = MixedJob(store, OF_MASTERS)
    job.ck.restore()
    with torch.no_grad():
        job.masters["outer.bias"][:] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
        job.model.outer.bias.copy_(job.masters["outer.bias"])
    assert job.ck.snapshot(1) and job.ck.status.derived == 2


# --- a device answers later ---


def test_what_a_device_answers_later(store, monkeypatch):
    pending = []

    def later(tensor):
        pending.append(tensor.clone())
        answers = []
        monkeypatch.setattr(later, "answers", answers, raising=False)
        return lambda: answers[0] if answers else None

    monkeypatch.setattr(derived_tensors, "later", later)
    job = mixed(store, OF_MASTERS)
    with torch.no_grad():
        job.model.outer.bias.fill_(7)
    assert job.ck.snapshot(3)
    # No answer: nothing is asked for meanwhile, and nothing waits.
    assert len(pending) == 1 and job.ck.status.derived == 2
    with torch.no_grad():
        job.model.outer.bias.copy_(job.masters["outer.bias"])
    later.answers.append(pending[0])
    assert job.ck.snapshot(4)
    # What differed at step 3 has not been forgotten.
    assert len(pending) == 2
    later.answers.append(pending[1])
    assert job.ck.snapshot(5)
    assert list(job.ck.status.not_derived) == ["model/outer.bias"]


def test_a_version_that_was_captured_before_the_answer_is_refused(store, monkeypatch):
    monkeypatch.setattr(derived_tensors, "later", lambda tensor: lambda: None)
    job = mixed(store, OF_MASTERS)
    with torch.no_grad():
        job.model.outer.bias.fill_(7)
    assert job.ck.snapshot(3)
    message = (
        r"step 3: tensor 'model/outer.bias', made by cast of 'master/outer.bias': elements 0 to 3 "
        r"have digest [0-9a-f]{16}, needed [0-9a-f]{16}, .*accept_mismatch=True"
    )
    with pytest.raises(unreft.FailedPrecondition, match=message):
        MixedJob(store, OF_MASTERS, seed=1).ck.restore()


def test_no_snapshot_while_a_graph_is_captured(store, monkeypatch, caplog):
    job = mixed(store, OF_MASTERS)
    monkeypatch.setattr(derived_tensors, "capturing", lambda device: True)
    monkeypatch.setattr(derived_tensors.torch, "stack", None)  # nothing is enqueued
    assert not job.ck.snapshot(3)
    assert "while a graph is captured" in caplog.text
    monkeypatch.undo()
    assert job.ck.snapshot(4) and job.ck.status.derived == 2


# --- a restore that does not verify ---


def test_other_function_is_refused(store, caplog):
    mixed(store, OF_MASTERS, OF_WEIGHT)

    def half(weight):
        return amax(weight) / 2

    for accept in (False, True):
        rule = Derived("buffer/scale", of="model/inner.weight", fn=half, accept_mismatch=accept)
        job = MixedJob(store, OF_MASTERS, rule, seed=1)
        if accept:
            assert job.ck.restore() == 2
            assert torch.equal(job.model.scale, half(job.model.inner.weight))
            assert "accepted, as declared" in caplog.text
        else:
            before = job.model.scale.clone()
            message = "'rank0/buffer/scale', made by .*half"
            with pytest.raises(unreft.FailedPrecondition, match=message):
                job.ck.restore()
            assert torch.equal(job.model.scale, before)


def test_function_that_fails_at_the_restore(store):
    mixed(store, OF_MASTERS, OF_WEIGHT)
    fails = []

    def fail(weight):
        if fails:
            raise RuntimeError("no kernel")
        return amax(weight)

    job = MixedJob(store, OF_MASTERS, Derived("buffer/scale", of="model/inner.weight", fn=fail))
    fails.append(True)
    message = "'rank0/buffer/scale', made by .*no kernel"
    with pytest.raises(unreft.FailedPrecondition, match=message):
        job.ck.restore()


# --- what is refused before training ---


@pytest.mark.parametrize(
    "rules, message",
    [
        (
            [Derived("model/inner.wait", of="master/inner.weight")],
            "derived 'model/inner.wait': no captured tensor has that name",
        ),
        (
            [Derived("model/outer.weight", of="master/inner.weight")],
            "no captured tensor has that name .of tied ones the first name counts",
        ),
        (
            [Derived("model/inner.weight", of="mastr/inner.weight")],
            "derived 'model/inner.weight': its source 'mastr/inner.weight' is not captured state",
        ),
        (
            [Derived("model/{}", of="optim/{}.master")],
            "derived 'model/{}': its source 'optim/inner.weight.master' is not captured state",
        ),
        (
            [
                Derived("model/inner.weight", of="master/inner.weight"),
                Derived("master/inner.weight", of="model/inner.weight"),
            ],
            "derived tensors are each other's sources: 'm.*/inner.weight', 'm",
        ),
        (
            [Derived("model/inner.weight", of="master/outer.bias")],
            r"'model/inner.weight': 'master/outer.bias' has .*extent \(4,\) of \(4,\), needed",
        ),
        (
            [Derived("model/inner.weight", of="master/inner.weight", fn=lambda m: m)],
            r"returns float32\[4, 4\] on cpu, needed bfloat16\[4, 4\] on cpu",
        ),
        (
            [Derived("model/inner.weight", of="master/inner.weight", fn=lambda m: 1)],
            "its function returns a int, not a tensor",
        ),
        (
            [Derived("model/inner.weight", of="master/inner.weight", fn=lambda a, b: a)],
            "'model/inner.weight': .*missing 1 required positional argument",
        ),
        (
            [Derived("model/{}", of="master/{}", fn=lambda m: m.zero_().to(torch.bfloat16))],
            "writes to its source 'master/inner.weight'",
        ),
    ],
)
def test_refused_when_attached(store, rules, message):
    with pytest.raises(unreft.InvalidArgument, match=message):
        MixedJob(store, *rules)


@pytest.mark.parametrize(
    "target, of, message",
    [
        ("model/w", [], "needs a source, found 0"),
        ("model/w", ["a", "b"], "needs one source, or a function, found 2"),
        ("model/{}/{}", "a", "one {} at most"),
        ("model/w", "master/{}", "in a source and not in the target"),
        ("model/w", "model/w", "it is its own source"),
        ("model/w", [torch.zeros(1)], "needs names"),
    ],
)
def test_declaration_is_checked(target, of, message):
    with pytest.raises(unreft.InvalidArgument, match=message):
        Derived(target, of)


# --- masters ---


def test_masters_are_checked():
    from torch import nn
    from unreft.torch.shards import Replicas
    from unreft.torch.state import TrainingState

    model = nn.Linear(2, 2)

    def state(masters, *stepped):
        optimizer = [torch.optim.SGD(stepped, lr=0.1)] if stepped else []
        return TrainingState(model, optimizer, Replicas(model, 0, 1), masters)

    with pytest.raises(unreft.InvalidArgument, match="masters: 'wait' is not a parameter"):
        state({"wait": torch.zeros(2, 2)})
    with pytest.raises(unreft.InvalidArgument, match="that of 'bias' is the parameter 'weight'"):
        state({"bias": model.weight})
    master = torch.zeros(2, 2)
    with pytest.raises(unreft.InvalidArgument, match="is 'weight', of which `masters` has a copy"):
        state({"weight": master}, model.weight)
    names = [bound.spec.name for bound in state({"weight": master}, master, model.bias).bind()]
    assert names == ["model/weight", "model/bias", "master/weight"]
