"""What unreft.mcore stores beside tensors, on stand-ins for what a CPU does not have."""

from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402

import unreft  # noqa: E402
from unreft.mcore.model_state import type_of_weights  # noqa: E402
from unreft.mcore.training_extras import Generators, Scheduler  # noqa: E402
from unreft.torch.mesh_place import Place  # noqa: E402
from unreft.torch.rng import Rng  # noqa: E402

pytestmark = pytest.mark.short


# --- generators, where a process sees the devices of all ranks of its node ---


def stream(number):
    return torch.tensor([number], dtype=torch.uint8)


def generators(pp, dp, of, streams=None, device=0, monkeypatch=None):
    """Of the rank at stage pp[0] of pp[1] and replica dp[0] of dp[1], as the names are."""
    sizes, indices = zip((of[0], pp), (of[1], dp), (1, 0))
    found = Generators(Place(("pp", "dp", "tp"), sizes, indices))
    if streams is not None:
        rng = {"torch": stream(0), "cuda": list(map(stream, streams)), "cuda_device": device}
        monkeypatch.setattr(Rng, "state_dict", lambda _: dict(rng))
        return found.state_dict()
    return found


def loaded(state, monkeypatch):
    """The stream that the device of this process gets."""
    set_on_device = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_rng_state", set_on_device.append)
    monkeypatch.setattr(Rng, "load_state_dict", lambda _, rng: None)
    generators(0, 0, (1, 1)).load_state_dict(state)
    return [int(found) for found in set_on_device]


def test_a_rank_takes_the_stream_of_its_place_to_another_device(monkeypatch):
    # Devices 0 to 3 of one node; the ones that a rank does not draw from are as they were seeded.
    stored = [
        generators(pp, dp, (2, 2), [50 + rank if d == rank else 9 for d in range(4)], rank,
                   monkeypatch)
        for rank, (pp, dp) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)])
    ]
    # Of two ranks now, the second stage's is on device 1, and was on device 2.
    taken = generators(1, 0, (2, 1)).of_others(stored, 1, 2)
    assert loaded(taken, monkeypatch) == [52]


def test_a_new_replica_takes_what_all_drew_alike_from_different_devices(monkeypatch):
    alike = [
        generators(0, dp, (1, 2), [7 if d == dp else 9 for d in range(2)], dp, monkeypatch)
        for dp in range(2)
    ]
    taken = generators(0, 2, (1, 3)).of_others(alike, 2, 3)
    assert loaded(taken, monkeypatch) == [7]
    apart = [
        generators(0, dp, (1, 2), [dp, dp], dp, monkeypatch) for dp in range(2)
    ]
    assert generators(0, 2, (1, 3)).of_others(apart, 2, 3) is None


def test_what_an_earlier_release_stored_has_the_streams_of_all_devices(monkeypatch):
    state = generators(0, 0, (1, 1), [4, 5], 1, monkeypatch)
    state["rng"] = {"torch": stream(0), "cuda": [stream(4), stream(5)], "cuda_device": 1}
    assert loaded(state, monkeypatch) == [5]


def test_a_process_without_a_device_says_so(monkeypatch):
    state = generators(0, 0, (1, 1), [4], 0, monkeypatch)
    with pytest.raises(unreft.FailedPrecondition, match="this process has none"):
        generators(0, 0, (1, 1)).load_state_dict(state)


# --- the scheduler ---


class Optimizer:
    def __init__(self, max_lr):
        self.param_groups = [
            {"params": [], "max_lr": max_lr, "min_lr": 0.0, "lr_mult": 1.0, "wd_mult": 1.0}
        ]


def scheduler_of(max_lr, **words):
    optimizer = Optimizer(max_lr)
    return OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=max_lr, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=100,
        lr_decay_style="constant", start_wd=0.1, end_wd=0.1, wd_incr_steps=100,
        wd_incr_style="constant", **words,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words, trained_with",
    [
        ({"override_opt_param_scheduler": True}, 1e-4),
        ({"use_checkpoint_opt_param_scheduler": True}, 3e-4),
    ],
    ids=["override", "use_checkpoint"],
)
def test_a_scheduler_goes_on_with_the_rate_that_it_is_told_to(words, trained_with):
    before = scheduler_of(3e-4, use_checkpoint_opt_param_scheduler=False)
    now = scheduler_of(1e-4, **{"use_checkpoint_opt_param_scheduler": False, **words})
    extra = Scheduler(now)
    now.optimizer.param_groups[0].update(before.optimizer.param_groups[0])  # as a restore does
    extra.load_state_dict(Scheduler(before).state_dict())
    assert now.optimizer.param_groups[0]["lr"] == trained_with


def test_other_bounds_of_a_group_are_refused_unless_it_is_told():
    def attached(second):
        scheduler = scheduler_of(3e-4, use_checkpoint_opt_param_scheduler=False)
        groups = scheduler.optimizer.param_groups
        groups.append({**groups[0], "max_lr": second})  # as --decoupled-lr has it
        return scheduler, Scheduler(scheduler)

    before, stored = attached(1e-4)
    for second, error in ((1e-4, None), (2e-4, "max_lr of parameter group 1 .* 0.0001, found 0")):
        now, extra = attached(second)
        for group, of in zip(now.optimizer.param_groups, before.optimizer.param_groups):
            group.update(of)  # as a restore does
        with pytest.raises(unreft.FailedPrecondition, match=error) if error else nullcontext():
            extra.load_state_dict(stored.state_dict())


# --- the type of the weights ---


@pytest.mark.parametrize(
    "trained, frozen, found",
    [
        ([torch.bfloat16], [torch.float32], "bfloat16"),
        ([torch.float32], [torch.bfloat16], "float32"),
        ([], [torch.bfloat16], "bfloat16"),  # of a stage of which nothing is trained
        ([torch.float32, torch.bfloat16], [], "bfloat16"),
        ([], [], "float16"),  # of a stage without parameters, as it is configured
    ],
)
def test_the_type_of_the_weights_is_that_of_the_trained_ones(trained, frozen, found):
    parameters = [torch.nn.Parameter(torch.zeros(1, dtype=dtype)) for dtype in trained]
    parameters += [torch.zeros(1, dtype=dtype) for dtype in frozen]
    assert type_of_weights(parameters, torch.float16) == found
