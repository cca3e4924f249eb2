"""attach and peek: what they refuse, how the ranks agree, one connection for a process."""

import pytest
import torch
from torch import nn

import unreft
import unreft.torch
from unreft.torch import agreement, attempt, ranks
from unreft.torch.extras import Extras


@pytest.fixture
def daemon(store, monkeypatch):
    """Every client that is opened is of the fake store."""
    opened = []

    def client(**options):
        opened.append(store.client(options["rank"], options["world"], options["any_world"]))
        return opened[-1]

    monkeypatch.setattr(unreft, "Client", client)
    monkeypatch.setenv("UNREFT_SOCKET", "/nonexistent/unreftd.sock")
    monkeypatch.setattr(attempt, "_peeked", None)
    attempt._attached.clear()
    return opened


def attach(**options):
    model = nn.Linear(2, 2)
    return unreft.torch.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


# --- what is refused ---


@pytest.mark.parametrize("constant", [7, 0.5, "blue", b"x", None, (1, 2), True])
def test_a_constant_extra_is_refused(daemon, constant):
    with pytest.raises(unreft.InvalidArgument, match="'note'.*for ever. Pass a callable"):
        attach(extras={"note": constant})
    assert daemon == []


def test_what_changes_is_an_extra(daemon):
    ck = attach(extras={"list": [1], "call": lambda: 1, "dict": {}, "tensor": torch.zeros(1)})
    ck.close()


def test_extras_that_are_too_large_skip_their_snapshot_alone(daemon, store, caplog):
    notes = []
    ck = attach(extras={"notes": notes})
    ck.restore()
    assert ck.snapshot(1)
    notes.append(b"x" * (25 << 20))
    assert not ck.snapshot(2)
    assert "the largest is 'notes' with 262144" in caplog.text
    notes.clear()
    assert ck.snapshot(3)
    assert store.versions[0].step == 3


class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_what_is_no_optimizer_is_refused_by_its_class(daemon):
    model = nn.Linear(2, 2)
    for wrong in (Wrapper(None), [Wrapper(None)], 3):
        with pytest.raises(unreft.InvalidArgument, match="needed torch.optim.Optimizer objects"):
            unreft.torch.attach(model, wrong)


def deepspeed_class(name, *bases):
    return type(name, bases, {"__module__": "deepspeed.runtime"})


def test_deepspeed_is_refused(daemon):
    model = nn.Linear(2, 2)
    with pytest.raises(unreft.InvalidArgument, match="DeepSpeedZeroOptimizer is DeepSpeed's"):
        unreft.torch.attach(model, deepspeed_class("DeepSpeedZeroOptimizer", object)())
    engine = deepspeed_class("DeepSpeedEngine", nn.Module)()
    with pytest.raises(unreft.InvalidArgument, match="DeepSpeedEngine is an engine"):
        unreft.torch.attach(engine)
    for attribute, what in (("ds_id", "ZeRO-3"), ("_hp_mapping", "ZeRO-1 or 2")):
        model = nn.Linear(2, 2)
        setattr(model.weight, attribute, 1)
        with pytest.raises(unreft.InvalidArgument, match=f"'weight'.*{what}.*deepspeed.attach"):
            unreft.torch.attach(model)


def test_fsdp1_is_refused(daemon):
    FullyShardedDataParallel = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})
    model = torch.nn.Sequential(FullyShardedDataParallel(torch.nn.Linear(2, 2)))
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(unreft.InvalidArgument, match=r"\(FSDP1\) .* fsdp_version=2"):
        unreft.torch.attach(model, optimizer)


def test_an_inference_tensor_is_refused(daemon):
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        model.scale = nn.Parameter(torch.ones(2), requires_grad=False)
    with pytest.raises(unreft.InvalidArgument, match="'model/scale'.*inference tensor"):
        unreft.torch.attach(model)


def test_state_of_a_tensor_in_no_group_is_refused_before_anything_is_captured(daemon, caplog):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[torch.zeros(5)]["exp_avg"] = torch.zeros(5)
    refusal = r"shape \(5,\) that is in none of its parameter groups"
    with pytest.raises(unreft.InvalidArgument, match=refusal):
        unreft.torch.attach(model, optimizer)
    # Also where it shows only later, and before anything is captured.
    optimizer.state.clear()
    ck = unreft.torch.attach(model, optimizer)
    ck.restore()
    optimizer.state[torch.zeros(5)]["exp_avg"] = torch.zeros(5)
    assert not ck.snapshot(1)
    assert "that is in none of its parameter groups" in caplog.text
    assert "register" not in daemon[0].calls


@pytest.mark.parametrize("given", [lambda o: o, lambda o: unreft.torch.Reshard(o, dict)])
def test_lbfgs_is_refused_with_what_to_do(daemon, caplog, given):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2)).square().sum()
        loss.backward()
        return loss

    ck = unreft.torch.attach(model, optimizer)
    ck.restore()
    optimizer.step(closure)
    assert not ck.snapshot(1)
    assert "LBFGS: its state" in caplog.text and "extras={'optimizer'" in caplog.text
    ck.close()
    ck = unreft.torch.attach(model, extras={"optimizer": given(optimizer)})
    ck.restore()
    assert ck.snapshot(1)
    # It steps on captured tensors, so its steps wait all the same.
    daemon[-1].calls.clear()
    optimizer.step(closure)
    assert "fence" in daemon[-1].calls
    assert ck.snapshot(2), ck.status
    ck.close()
    again = nn.Linear(2, 2)
    other = torch.optim.LBFGS(again.parameters())
    ck = unreft.torch.attach(again, extras={"optimizer": given(other)})
    assert ck.restore() == 2
    assert torch.equal(again.weight, model.weight)
    found, expected = other.state[again.weight], optimizer.state[model.weight]
    assert found["n_iter"] == expected["n_iter"] > 0
    for a, b in zip(found["old_dirs"], expected["old_dirs"], strict=True):
        assert torch.equal(a, b)


def test_volatile_names(daemon, store):
    with pytest.raises(unreft.InvalidArgument, match="nothing is called 'wait'; names are such as"):
        attach(volatile=["wait"])
    for name in ("weight", "model/weight", "model/w*"):
        ck = attach(volatile=name)
        ck.restore()
        ck.snapshot(1)
        tensors = {t.name: t.volatile for t in daemon[-1].tensors}
        assert tensors == {"model/weight": True, "model/bias": False}
        ck.close()


# --- masters ---


def test_a_master_that_is_replaced_is_followed(daemon, store, caplog):
    model = nn.Linear(2, 2).bfloat16()
    masters = {name: p.detach().float() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(list(masters.values()), lr=0.1)
    ck = unreft.torch.attach(model, optimizer, masters=masters)
    ck.restore()
    assert ck.snapshot(1)
    params = optimizer.param_groups[0]["params"]
    params[0] = torch.full_like(params[0], 5.0)
    assert ck.snapshot(2)
    _, data = store.versions[0].tensors["master/weight"]
    assert data == params[0].numpy().tobytes()
    params[1] = torch.zeros(7)
    assert not ck.snapshot(3)
    assert "masters: that of 'bias' was replaced by another kind" in caplog.text


# --- one connection for a process ---


def test_a_second_attach_is_refused_while_the_first_is_open(daemon):
    ck = attach()
    with pytest.raises(unreft.FailedPrecondition, match="attached in this process already"):
        attach()
    ck.close()
    other = attach()
    other.close()
    attach()  # and one that was forgotten is none


def test_peek_takes_the_decision_that_restore_follows(daemon, store):
    assert unreft.torch.peek() is None
    ck = attach()
    assert ck.restore() is None
    assert daemon[0].calls.count("restore_begin") == 1 and len(daemon) == 1
    assert ck.snapshot(5)
    ck.close()
    assert unreft.torch.peek() == 5
    assert unreft.torch.peek() == 5
    ck = attach()
    assert ck.restore() == 5
    assert daemon[1].calls.count("restore_begin") == 1 and len(daemon) == 2


def test_the_newest_step_to_restore_is_asked_for(daemon, store):
    ck = attach()
    ck.restore(at_or_before=7)
    assert daemon[0].asked_at_or_before == 7
    ck.restore()  # of another decision
    assert daemon[0].asked_at_or_before is None


def test_peek_takes_the_newest_step_to_restore(daemon, store):
    first = attach()
    first.restore()
    assert first.snapshot(5)
    first.close()
    assert unreft.torch.peek(at_or_before=6) == 5
    assert daemon[1].asked_at_or_before == 6
    with pytest.raises(unreft.FailedPrecondition, match="at_or_before: .* with 6 .* found 4"):
        unreft.torch.peek(at_or_before=4)
    ck = attach()
    with pytest.raises(unreft.FailedPrecondition, match=r"step 4 .* step 5: call peek\(at_or"):
        ck.restore(at_or_before=4)
    ck.close()


def test_peek_and_attach_must_mean_the_same(daemon):
    unreft.torch.peek()
    with pytest.raises(unreft.FailedPrecondition, match="job.*peek.. was called with"):
        attach(job="another")


def test_peek_with_several_agents_needs_the_group(daemon, monkeypatch):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.raises(unreft.FailedPrecondition, match="before peek"):
        unreft.torch.peek()


# What launchers count comes again, with each torchrun and each srun.
def test_the_group_names_the_attempt(monkeypatch):
    assert ranks.common_attempt() is None
    monkeypatch.setattr(ranks, "connected", lambda: True)
    monkeypatch.setattr(ranks, "gather", lambda values: [[1], values, [2**62]])
    assert ranks.common_attempt() == 2**62
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert ranks.common_attempt() == 2**62
    monkeypatch.setenv("UNREFT_ATTEMPT", "3")
    assert ranks.common_attempt() is None


# --- another number of ranks ---


def test_attach_and_peek_accept_versions_of_any_world(daemon, store):
    ck = attach(rank=0, world=1)
    ck.restore()
    assert ck.snapshot(5)
    ck.close()
    options = {"rank": 1, "world": 2, "replicas": "none"}
    model = nn.Linear(2, 2)
    assert unreft.torch.peek(rank=1, world=2) == 5
    with pytest.raises(unreft.FailedPrecondition, match="lacks 2 of this.*'rank1/model/weight'"):
        unreft.torch.attach(model, **options).restore()


class Mesh:
    """What is asked of a DeviceMesh, of one rank."""

    mesh = torch.zeros((1, 1), dtype=torch.int64)

    def __init__(self, *names):
        self.mesh_dim_names = names
        self.shape = (1, 1)

    def get_coordinate(self):
        return [0, 0]


def test_a_mesh_is_stored_with_each_snapshot(daemon, store):
    with attach(mesh=Mesh("dp", "tp")) as ck:
        ck.restore()
        assert ck.snapshot(1), ck.status
    stored = Extras({}).loads(store.versions[0].extras)["mesh"]
    assert stored == {"names": ("dp", "tp"), "sizes": (1, 1), "at": (0, 0)}


def test_a_mesh_without_names_is_refused(daemon):
    with pytest.raises(unreft.InvalidArgument, match=r"mesh: needed .* names .*shape \(1, 1\)"):
        attach(mesh=Mesh())
    assert daemon == []



def test_what_buffers_may_be(daemon):
    with pytest.raises(unreft.InvalidArgument, match="buffers: needs 'equal' or 'first', found 'a"):
        attach(buffers="any")
    assert daemon == []

    def attached(rank, world, mean, **options):
        model = nn.BatchNorm1d(2, affine=False)
        model.running_mean.fill_(mean)
        return model, unreft.torch.attach(model, rank=rank, world=world, **options)

    stored = [attached(rank, 2, mean=rank + 5) for rank in range(2)]
    for _, ck in stored:
        ck.restore()
    for _, ck in stored:
        assert ck.snapshot(1)
        ck.close()
    model, ck = attached(0, 3, mean=0, buffers="first")
    assert ck.restore() == 1 and ck.status.reshaped_from == 2
    assert model.running_mean.tolist() == [5, 5]
    _, ck = attached(1, 3, mean=0)
    with pytest.raises(unreft.FailedPrecondition, match=r"'running_mean'.*buffers='first'"):
        ck.restore()


def test_who_restores_is_told_of_a_durable_copy(daemon, store, caplog):
    ck = attach()
    ck.restore()
    assert ck.snapshot(3)
    ck.close()
    again = attach()
    assert again.restore() == 3 and again.status.restored_from is None
    again.close()
    store.durable_copy = "/mnt/ckpt/step-3"
    from_copy = attach()
    assert from_copy.restore() == 3 and from_copy.status.restored_from == "/mnt/ckpt/step-3"
    assert "step 3 is restored from the durable copy /mnt/ckpt/step-3" in caplog.text


# --- what the ranks agree on ---


class Group:
    """The other ranks' part in what rank 0 gathers."""

    def __init__(self, monkeypatch, kinds, texts=(), answers=()):
        self.rows = [[[kind] for kind in kinds], [[answer] for answer in answers]]
        self.texts = list(texts)
        monkeypatch.setattr(agreement.ranks, "connected", lambda: True)
        monkeypatch.setattr(agreement.ranks, "gather", self.gather)
        monkeypatch.setattr(agreement.ranks, "gather_texts", lambda own: [own, *self.texts])

    def gather(self, values):
        return [list(values), *self.rows.pop(0)]


REACHED, NO_DAEMON, FAILED = 0, 1, 2
NEVER, EVER, UNKNOWN = 0, 1, 2


def no_daemon():
    raise unreft.Unavailable("/run/a.sock: no daemon answers")


def join(connect, required, world=2):
    return agreement.join(connect, required, 0, world, "/run/0.sock")


def test_all_ranks_raise_if_one_reaches_no_daemon(store, monkeypatch):
    Group(monkeypatch, [NO_DAEMON], ["/run/b.sock: no daemon answers"])
    client = store.client()
    with pytest.raises(unreft.Unavailable, match="1 of 2 ranks.*rank 1: /run/b.sock.*unreft up"):
        join(lambda: client, required=True)
    assert client.calls == ["close"]


def test_no_rank_reaches_a_daemon(monkeypatch, caplog):
    Group(monkeypatch, [NO_DAEMON], ["other"])
    assert join(no_daemon, required=False) is None
    assert "unprotected: no rank reaches a daemon: /run/a.sock" in caplog.text
    Group(monkeypatch, [NO_DAEMON], ["other"])
    with pytest.raises(unreft.Unavailable, match="no rank reaches a daemon"):
        join(no_daemon, required=True)


@pytest.mark.parametrize("answer, goes_on", [(NEVER, True), (EVER, False), (UNKNOWN, False)])
def test_some_ranks_reach_a_daemon(monkeypatch, caplog, answer, goes_on):
    Group(monkeypatch, [REACHED], ["/run/1.sock"], [answer])
    if goes_on:
        assert join(no_daemon, required=False) is None
        assert "1 of 2 ranks reach no daemon (rank 0)" in caplog.text
        return
    with pytest.raises(unreft.Unavailable, match="silently start from the beginning"):
        join(no_daemon, required=False)


def test_those_that_reached_one_are_asked(store, monkeypatch):
    Group(monkeypatch, [NO_DAEMON], ["none"], [UNKNOWN])
    client = store.client()
    assert join(lambda: client, required=False) is None
    assert client.calls == ["ever_committed", "close"]


def test_what_is_wrong_on_one_rank_is_raised_on_all(store, monkeypatch):
    Group(monkeypatch, [FAILED], ["tensor 'x' is on meta"])
    with pytest.raises(unreft.Aborted, match="rank 1 could not attach: tensor 'x'"):
        join(lambda: store.client(), required=True)

    def wrong():
        raise unreft.InvalidArgument("mine")

    Group(monkeypatch, [REACHED], ["fine"])
    with pytest.raises(unreft.InvalidArgument, match="mine"):
        join(wrong, required=True)


def test_without_a_group_the_other_ranks_cannot_be_asked(caplog):
    with pytest.raises(unreft.Unavailable):
        join(no_daemon, required=False, world=4)
    assert "required=False has no effect on one of 4 ranks" in caplog.text
    assert join(no_daemon, required=False, world=1) is None


# --- the process's settings ---


@pytest.mark.parametrize("setting", ["device", "dtype", "deterministic"])
def test_settings_of_torch_do_not_matter(daemon, store, setting):
    def make():
        torch.manual_seed(0)
        # A learning rate that is a tensor is among the extras, as is a generator's state.
        model = nn.Linear(2, 2)
        lr = torch.tensor(0.1, dtype=torch.float64)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, capturable=False, foreach=False)
        return model, optimizer

    model, optimizer = make()
    ck = unreft.torch.attach(model, optimizer, extras={"tensor": lambda: torch.arange(3)})
    ck.restore()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    assert ck.snapshot(1)
    ck.close()
    other_model, other_optimizer = make()
    before = torch.get_default_dtype()
    try:
        if setting == "device":
            torch.set_default_device("meta")
        elif setting == "dtype":
            torch.set_default_dtype(torch.bfloat16)
        else:
            torch.use_deterministic_algorithms(True)
        ck = unreft.torch.attach(other_model, other_optimizer, extras={"tensor": lambda: 0})
        assert ck.restore() == 1
        assert ck.snapshot(2)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)
        torch.use_deterministic_algorithms(False)
    assert torch.equal(other_model.weight, model.weight)
    assert ck.extras["tensor"].tolist() == [0, 1, 2]
    assert other_optimizer.param_groups[0]["lr"].item() == 0.1
    for p, q in zip(model.parameters(), other_model.parameters()):
        for key, value in optimizer.state[p].items():
            assert torch.equal(value, other_optimizer.state[q][key]), key
            assert value.dtype == other_optimizer.state[q][key].dtype
