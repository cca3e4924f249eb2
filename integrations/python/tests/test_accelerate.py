"""What unreft.accelerate attaches of an accelerator, and what it refuses; no daemon is asked."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
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
    seen = [3]
    unreft.accelerate.attach(accelerator, model, extras={"seen": seen}, job="a job")
    (((found, optimizers), options),) = attached
    assert found is model and optimizers == [optimizer]
    assert options == {
        "extras": {
            "accelerate/scheduler0": scheduler,
            "accelerate/registered0": tally,
            "seen": seen,
        },
        "job": "a job",
    }


@pytest.mark.parametrize("models", [0, 2])
def test_one_model_is_needed(accelerator, attached, models):
    if models:
        prepared(accelerator, models)
    with pytest.raises(unreft.FailedPrecondition, match=f"prepared one model, found {models}"):
        unreft.accelerate.attach(accelerator, nn.Linear(2, 2))
    assert attached == []


def test_another_model_is_refused(accelerator, attached):
    prepared(accelerator)
    with pytest.raises(unreft.FailedPrecondition, match="needed the Linear .* another Conv1d"):
        unreft.accelerate.attach(accelerator, nn.Conv1d(2, 2, 1))
    assert attached == []


def test_what_the_accelerator_keeps_of_a_wrapped_model_is_refused(
    accelerator, attached, monkeypatch, tmp_path
):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        monkeypatch.setattr(accelerator.state, "distributed_type", DistributedType.MULTI_CPU)
        model = accelerator.prepare(nn.Linear(2, 2))
        assert isinstance(model, nn.parallel.DistributedDataParallel)
        with pytest.raises(unreft.FailedPrecondition, match="in DistributedDataParallel, found a"):
            unreft.accelerate.attach(accelerator, model.module)
        assert attached == []
        unreft.accelerate.attach(accelerator, model)
        assert attached[0][0][0] is model
    finally:
        torch.distributed.destroy_process_group()


def test_another_accelerate_is_refused_by_name(attached):
    with pytest.raises(unreft.FailedPrecondition, match="1.15, and .* lacks _models, _optimizers"):
        unreft.accelerate.attach(object(), nn.Linear(2, 2))
