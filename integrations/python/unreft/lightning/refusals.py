"""What is refused by name, since it would not go on as it was."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.utils import data

import unreft

TRIED = "2.6"

_STRATEGIES = (SingleDeviceStrategy, DDPStrategy)
_SAMPLERS = (
    data.SequentialSampler,
    data.RandomSampler,
    data.SubsetRandomSampler,
    data.WeightedRandomSampler,
    data.DistributedSampler,
)
# What these change of the model or the Trainer, they do not bring back in the middle of an epoch.
_CHANGING = (
    callbacks.BaseFinetuning,
    callbacks.BatchSizeFinder,
    callbacks.GradientAccumulationScheduler,
    callbacks.LearningRateFinder,
    callbacks.ModelPruning,
    callbacks.StochasticWeightAveraging,
    callbacks.WeightAveraging,
)


def refused(name: str) -> unreft.FailedPrecondition:
    return unreft.FailedPrecondition(
        f"a Trainer with {name} is not supported: it would not go on as it was"
    )


def check(trainer: Trainer, module: LightningModule) -> None:
    if lightning.__version__.split(".")[:2] != TRIED.split("."):
        raise unreft.FailedPrecondition(
            f"unreft.lightning was tried with lightning {TRIED}, whose loops it stands in for, "
            f"and this is {lightning.__version__}"
        )
    strategy = trainer.strategy
    changing = [type(each).__name__ for each in trainer.callbacks if isinstance(each, _CHANGING)]
    writing = [
        type(each).__name__
        for each in trainer.callbacks
        if type(each).on_save_checkpoint is not Callback.on_save_checkpoint
    ]
    start_method = getattr(strategy, "_start_method", None)
    reasons = {
        f"its class in {type(trainer).__module__}": not isinstance(trainer, Trainer),
        f"the strategy {type(strategy).__name__}": type(strategy) not in _STRATEGIES,
        f"processes that it makes by {start_method}": start_method not in (None, "popen"),
        "manual optimization": not module.automatic_optimization,
        "fast_dev_run": trainer.fast_dev_run,
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs,
        "a val_check_interval of time": trainer._val_check_time_interval is not None,
        f"the callbacks {', '.join(changing)}": changing,
        f"the on_save_checkpoint of {', '.join(writing)}": writing,
    }
    for name, is_so in reasons.items():
        if is_so:
            raise refused(name)


def check_loader(loader: Any) -> None:
    kind = type(loader)
    if not isinstance(loader, data.DataLoader) or kind.__iter__ is not data.DataLoader.__iter__:
        raise refused(f"a {kind.__name__} for a DataLoader")
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    if isinstance(loader.dataset, data.IterableDataset):
        raise refused("an IterableDataset, which has no position,")
    reasons = {
        "persistent_workers, whose random numbers are lost": loader.persistent_workers,
        f"the sampler {type(sampler).__name__}": type(sampler) not in _SAMPLERS,
        f"the batch sampler {type(batch_sampler).__name__}": (
            batch_sampler is not None and type(batch_sampler) is not data.BatchSampler
        ),
    }
    for name, is_so in reasons.items():
        if is_so:
            raise refused(name)


def check_position(stored: dict[str, Any], found: dict[str, Any]) -> None:
    for name, needed in stored.items():
        if found[name] != needed:
            raise unreft.FailedPrecondition(
                f"{name}: what is committed was trained with {needed}, found {found[name]}: the "
                f"data would go on at another place. Restart with {needed}, or give the state up "
                "with 'unreft fresh-start'"
            )
