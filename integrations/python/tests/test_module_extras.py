"""What modules have beside parameters and buffers: given by themselves, or kept to themselves."""

import pytest
import torch
from torch import nn

import unreft
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


class Plain(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


def job(store, block):
    model = nn.Sequential(block, nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState(model, [optimizer], Replicas(model, 0, 1))
    return model, Checkpointer(store.client(0), state, Extras({}), rng=False)


def test_a_wrapper_changes_nothing(store):
    block = Counting()
    _, ck = job(store, torch.compile(block))
    ck.restore()
    block.seen = 7
    assert ck.snapshot(1)
    for wrap in (lambda block: block, torch.compile):
        again = Counting()
        assert job(store, wrap(again))[1].restore() == 1
        assert again.seen == 7


@pytest.mark.parametrize(("stored", "found"), [(Counting, Plain), (Plain, Counting)])
def test_extra_state_on_one_side_alone_is_refused(store, stored, found):
    _, ck = job(store, stored())
    ck.restore()
    assert ck.snapshot(1)
    of = "stored of 1 modules" if stored is Counting else "lacks of 1 modules"
    with pytest.raises(unreft.FailedPrecondition, match=rf"extra state .*{of} \('0'\)"):
        job(store, found())[1].restore()


class Hoarding(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "table"] = [1, 2]


def test_what_is_saved_by_code_of_its_own_is_named_once(store, caplog):
    _, ck = job(store, Hoarding(2, 2))
    ck.restore()
    assert ck.snapshot(1) and ck.snapshot(2)
    (warning,) = caplog.records
    assert "module '0', a Hoarding, saves 'table' in its state_dict" in warning.getMessage()


class Overriding(nn.Linear):
    def state_dict(self, *args, **kwargs):
        return {**super().state_dict(*args, **kwargs), "table": [1, 2]}


def hooked(add):
    module = nn.Linear(2, 2)
    module.register_state_dict_post_hook(lambda module, saved, prefix, _: add(saved, prefix))
    return module


def add_table(saved, prefix):
    saved[prefix + "table"] = torch.ones(2)


def rename(saved, prefix):
    saved[prefix + "renamed"] = saved.pop(prefix + "weight")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Overriding(2, 2), "'table'"),
        (lambda: hooked(add_table), "'0.table'"),
        (lambda: hooked(rename), ""),
    ],
    ids=["overriding", "adding", "renaming"],
)
def test_what_a_hook_of_state_dict_adds_is_named_once(store, caplog, make, named):
    block = make()
    model = block if isinstance(block, Overriding) else nn.Sequential(block)
    state = TrainingState(model, [], Replicas(model, 0, 1))
    state.bind()
    state.bind()
    assert [f"saves {named} in" in record.getMessage() for record in caplog.records] == (
        [True] if named else []
    )


class Queue(nn.Linear):
    def __init__(self, rows=0):
        super().__init__(2, 2)
        self.register_buffer("queue", torch.zeros(rows, 2))


class Resizing(Queue):
    """As the fake quantization of torch does it."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        self.queue.resize_(state_dict[prefix + "queue"].shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


@pytest.mark.parametrize(("kind", "rows"), [(Queue, 0), (Resizing, 1)])
def test_a_buffer_that_grows_comes_back(store, kind, rows):
    model, ck = job(store, kind(rows))
    ck.restore()
    model[0].queue = torch.arange(6.0).view(3, 2)
    assert ck.snapshot(1)
    again, ck = job(store, kind(rows))
    assert ck.restore() == 1
    assert torch.equal(again[0].queue, model[0].queue)


def test_a_buffer_of_another_shape_is_refused(store):
    _, ck = job(store, Queue(3))
    ck.restore()
    assert ck.snapshot(1)
    with pytest.raises(unreft.FailedPrecondition, match=r"queue': float32\[3, 2\] was stored"):
        job(store, Queue(1))[1].restore()


def test_a_snapshot_in_inference_mode_copies_what_is_replaced(store):
    model, ck = job(store, Queue(1))
    ck.restore()
    model[0].queue = model[0].queue + 1
    with torch.inference_mode():
        assert ck.snapshot(1), ck.status
    model[0].queue = model[0].queue + 1
    assert ck.snapshot(2), ck.status
    _, data = store.versions[0].tensors["rank0/buffer/0.queue"]
    assert data == model[0].queue.numpy().tobytes()


class Lazy(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("cache", None)


def test_a_buffer_that_is_filled_later_comes_back(store):
    model, ck = job(store, Lazy())
    ck.restore()
    assert ck.snapshot(1)
    model[0].cache = torch.arange(6.0).view(2, 3)
    assert not ck.snapshot(2) or ck.snapshot(3)
    again, ck = job(store, Lazy())
    assert ck.restore() in (2, 3)
    assert torch.equal(again[0].cache, model[0].cache)
