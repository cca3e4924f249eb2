"""What is refused by name, since it would not go on as it was."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils import data
from torchmetrics import Metric, wrappers

import unreft
from unreft.lightning.loaders import sampler_of

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
# These cannot load what their own state_dict was.
_NOT_LOADING = (callbacks.SpikeDetection,)
# These have values beside their state, or other parts than a new one.
_METRICS = (wrappers.MetricTracker, wrappers.MinMaxMetric, wrappers.Running)
# Of a checkpoint of Lightning's, which a module that saves is not given.
_ENTRIES = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "loops", "epoch",
            "global_step", "hyper_parameters", "pytorch-lightning_version")


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
    unfit = (*_CHANGING, *_NOT_LOADING)
    changing = [type(each).__name__ for each in trainer.callbacks if isinstance(each, unfit)]
    writing = [type(each).__name__ for each in trainer.callbacks if _writes(each)]
    precision = trainer.precision_plugin
    start_method = getattr(strategy, "_start_method", None)
    reasons = {
        f"its class in {type(trainer).__module__}": not isinstance(trainer, Trainer),
        f"the strategy {type(strategy).__name__}": type(strategy) not in _STRATEGIES,
        f"processes that it makes by {start_method}": start_method not in (None, "popen"),
        "a ddp_comm_state, which differs from rank to rank": (
            getattr(strategy, "_ddp_comm_state", None) is not None
        ),
        "a model_averaging_period, between which ranks differ": (
            getattr(strategy, "_model_averaging_period", None) is not None
        ),
        f"the state of the precision plugin {type(precision).__name__}": _has_state(precision),
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


def _writes(callback: Callback) -> bool:
    """A LambdaCallback has its hooks in the instance."""
    of_class = type(callback).on_save_checkpoint
    return of_class is not Callback.on_save_checkpoint or "on_save_checkpoint" in vars(callback)


def _has_state(precision: Any) -> bool:
    """Beside a scaler, which is what those of Lightning have."""
    hooks = (getattr(type(precision), name) for name in ("state_dict", "on_save_checkpoint"))
    return any(hook.__module__.partition(".")[0] != "lightning" for hook in hooks)


def check_module(module: LightningModule) -> None:
    """Of one that is complete."""
    for part in module.modules():
        if isinstance(part, _METRICS):
            raise refused(f"the metric {type(part).__name__}")
        # The first update of MeanIoU makes its state anew.
        if isinstance(part, Metric) and not getattr(part, "_is_initialized", True):
            raise refused(f"the metric {type(part).__name__} without num_classes")
    if not is_overridden("on_save_checkpoint", module):
        return
    try:
        module.on_save_checkpoint({})
    except KeyError as error:
        if error.args[0] in _ENTRIES:
            raise refused(f"an on_save_checkpoint that takes no empty dict ({error!r})") from error
    except Exception:
        pass  # what it reads is made later, in the module's own hooks, say


def check_loader(loader: Any) -> None:
    kind = type(loader)
    if not isinstance(loader, data.DataLoader) or kind.__iter__ is not data.DataLoader.__iter__:
        raise refused(f"a {kind.__name__} for a DataLoader")
    sampler, batch_sampler = sampler_of(loader), loader.batch_sampler
    if isinstance(loader.dataset, data.IterableDataset):
        raise refused("an IterableDataset, which has no position,")
    reasons = {
        "persistent_workers, whose random numbers are lost": loader.persistent_workers,
        "in_order=False": loader.num_workers > 0 and not getattr(loader, "in_order", True),
        f"the sampler {type(sampler).__name__}": type(sampler) not in _SAMPLERS,
        f"the batch sampler {type(batch_sampler).__name__}": (
            batch_sampler is not None and type(batch_sampler) is not data.BatchSampler
        ),
    }
    for name, is_so in reasons.items():
        if is_so:
            raise refused(name)
