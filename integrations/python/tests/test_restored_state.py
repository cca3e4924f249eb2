"""What the PyTorch API restores: optimizers, generators, extras, and what it refuses."""

import random

import numpy as np
import pytest
import torch
from fake_job import Job, assert_equal_state, trained
from torch import nn

import unreft
from unreft.torch.extras import Extras


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
    torch.set_rng_state(Extras({}).loads(store.versions[0].extras)["rng"]["torch"])
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


def test_options_of_a_group_by_any_name(store):
    first = trained(store)
    first.optimizer.param_groups[0]["names"] = ["a", "b"]
    first.ck.snapshot(3)
    second = Job(store)
    assert second.ck.restore() == 3
    assert second.optimizer.param_groups[0]["names"] == ["a", "b"]


def test_fresh_start_is_none(store):
    assert Job(store).ck.restore() is None


def test_other_model_is_refused(store):
    trained(store)
    job = Job(store)
    job.model.more = nn.Parameter(torch.zeros(1))
    with pytest.raises(unreft.FailedPrecondition, match="lacks 1 of this program: 'model/more'"):
        job.ck.restore()
    job = Job(store)
    del job.model.frozen
    unknown = "none that this program attaches: 'model/frozen'"
    with pytest.raises(unreft.FailedPrecondition, match=unknown):
        job.ck.restore()
    job = Job(store)
    job.model.frozen.data = torch.zeros(5)
    other_shape = r"float32\[3\] was stored, found float32\[5\]"
    with pytest.raises(unreft.FailedPrecondition, match=other_shape):
        job.ck.restore()


def test_errors_of_restore_are_raised(store):
    job = Job(store)
    job.client.fail["restore_begin"] = unreft.DataLoss("step 7: slot 3 does not verify")
    with pytest.raises(unreft.DataLoss, match="slot 3"):
        job.ck.restore()


# --- dense tensors in other orders ---


def conv_job(store, memory_format, seed=0):
    """A weight of (64, 3, 3, 3), whose sizes are the same in both orders."""
    job = Job(store, seed=seed)
    torch.manual_seed(seed)
    job.model.conv = nn.Conv2d(3, 64, 3).to(memory_format=memory_format)
    job.model.turned = nn.Parameter(torch.rand(4, 6).t())
    job.optimizer.add_param_group({"params": [*job.model.conv.parameters(), job.model.turned]})
    return job


@pytest.mark.parametrize("stored", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("live", [torch.channels_last, torch.contiguous_format])
def test_a_restore_to_other_strides_permutes(store, stored, live):
    job = conv_job(store, stored)
    job.ck.restore()
    for parameter in (job.model.conv.weight, job.model.conv.bias, job.model.turned):
        parameter.grad = torch.rand_like(parameter)
    job.step()
    assert job.ck.snapshot(1)
    other = conv_job(store, live, seed=1)
    assert other.ck.restore() == 1
    assert_equal_state(other.state(), job.state())
    strides = torch.empty(64, 3, 3, 3).to(memory_format=live).stride()
    assert other.model.conv.weight.stride() == strides


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
            "notes": ["blue"],
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
    assert other.ck.extras == {"position": 42, "notes": ["blue"]}


def test_missing_extras_are_refused(store):
    trained(store, extras={"note": lambda: 1})
    with pytest.raises(unreft.FailedPrecondition, match="sampler not in what was stored.*note"):
        Job(store, extras={"sampler": lambda: 1}).ck.restore()


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
