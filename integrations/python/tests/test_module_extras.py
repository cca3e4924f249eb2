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
