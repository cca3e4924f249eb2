"""What unreft.accelerate attaches of an accelerator, and what it refuses; no daemon is asked."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn

import unreft
import unreft.accelerate
import unreft.torch


class Tally:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.fixture
def accelerator():
    made = Accelerator(cpu=True)
    yield made
    made.free_memory()


@pytest.fixture
def attached(monkeypatch):
    """What is handed on to unreft.torch.attach."""
    calls = []
    monkeypatch.setattr(
        unreft.torch, "attach", lambda *args, **kwargs: calls.append((args, kwargs))
    )
    return calls


def prepared(accelerator, models=1):
    made = [nn.Linear(2, 2) for _ in range(models)]
    optimizer = torch.optim.SGD(made[0].parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return accelerator.prepare(*made, optimizer, scheduler)


def test_all_that_is_prepared_and_registered_is_attached(accelerator, attached):
    model, optimizer, scheduler = prepared(accelerator)
    tally = Tally()
    accelerator.register_for_checkpointing(tally)
    unreft.accelerate.attach(accelerator, extras={"seen": 3}, job="a job")
    (((found, optimizers), options),) = attached
    assert found is model and optimizers == [optimizer]
    assert options == {
        "extras": {"accelerate/scheduler0": scheduler, "accelerate/registered0": tally, "seen": 3},
        "job": "a job",
    }


@pytest.mark.parametrize("models", [0, 2])
def test_one_model_is_needed(accelerator, attached, models):
    if models:
        prepared(accelerator, models)
    with pytest.raises(unreft.FailedPrecondition, match=f"prepared one model, found {models}"):
        unreft.accelerate.attach(accelerator)
    assert attached == []


def test_another_accelerate_is_refused_by_name(attached):
    with pytest.raises(unreft.FailedPrecondition, match="1.15, and .* lacks _models, _optimizers"):
        unreft.accelerate.attach(object())
