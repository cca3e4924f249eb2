"""What unreft.accelerate attaches of an accelerator, and what it refuses; no daemon is asked."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    DistributedType,
)
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


@pytest.fixture
def replicated(accelerator, monkeypatch, tmp_path):
    """An accelerator that wraps models in DistributedDataParallel, on one rank."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    monkeypatch.setattr(accelerator.state, "distributed_type", DistributedType.MULTI_CPU)
    yield accelerator
    torch.distributed.destroy_process_group()


def test_what_the_accelerator_keeps_of_a_wrapped_model_is_refused(replicated, attached):
    model = replicated.prepare(nn.Linear(2, 2))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    with pytest.raises(unreft.FailedPrecondition, match="in DistributedDataParallel, found a"):
        unreft.accelerate.attach(replicated, model.module)
    assert attached == []
    unreft.accelerate.attach(replicated, model)
    assert attached[0][0][0] is model


@pytest.mark.parametrize(
    "hook, is_refused",
    [
        (DDPCommunicationHookType.POWER_SGD, True),
        (DDPCommunicationHookType.BATCHED_POWER_SGD, True),
        (DDPCommunicationHookType.FP16, False),
    ],
)
def test_a_hook_that_keeps_errors_is_refused_by_name(replicated, attached, hook, is_refused):
    replicated.ddp_handler = DistributedDataParallelKwargs(comm_hook=hook)
    model = replicated.prepare(nn.Linear(2, 2))
    if is_refused:
        with pytest.raises(unreft.FailedPrecondition, match=f"without state .* {hook.name}: "):
            unreft.accelerate.attach(replicated, model)
    else:
        unreft.accelerate.attach(replicated, model)
    assert bool(attached) != is_refused


def test_a_hook_that_is_not_registered_is_no_matter(accelerator, attached):
    hook = DDPCommunicationHookType.POWER_SGD
    accelerator.ddp_handler = DistributedDataParallelKwargs(comm_hook=hook)
    unreft.accelerate.attach(accelerator, prepared(accelerator)[0])
    assert attached


def test_an_optimizer_that_writes_in_backward_is_refused_by_name(accelerator, attached):
    model, *_ = prepared(accelerator)
    accelerator.has_lomo_optimizer = True
    with pytest.raises(unreft.FailedPrecondition, match="a LOMO optimizer is not supported"):
        unreft.accelerate.attach(accelerator, model)
    assert attached == []


def test_frequencies_that_follow_the_longest_sequence_are_warned_of(accelerator, attached, caplog):
    model = accelerator.prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    unreft.accelerate.attach(accelerator, model)
    assert "rope_type" not in caplog.text
    model[1].rope_type = "dynamic"
    unreft.accelerate.attach(accelerator, model)
    assert "the rope_type of '1' is dynamic" in caplog.text


def test_another_accelerate_is_refused_by_name(attached):
    with pytest.raises(unreft.FailedPrecondition, match="1.15, and .* lacks _models, _optimizers"):
        unreft.accelerate.attach(object(), nn.Linear(2, 2))
