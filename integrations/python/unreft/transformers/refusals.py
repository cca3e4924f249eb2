"""What is refused by name, since it would not go on as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SeedableRandomSampler
from torch.utils import data
from transformers.trainer_utils import has_length
from transformers.training_args import OptimizerNames

from unreft.errors import FailedPrecondition

TRIED = "5.23"

_LOADERS = (data.DataLoader, DataLoaderShard)
_SAMPLERS = (data.SequentialSampler, SeedableRandomSampler)
_BATCH_SAMPLERS = (data.BatchSampler, BatchSamplerShard)
# They write the weights during backward, and their moments are in no state of an optimizer.
_LOMO = (OptimizerNames.LOMO, OptimizerNames.ADALOMO)


def check(trainer: transformers.Trainer, needed: tuple[str, ...]) -> None:
    """`needed`: the attributes of the Trainer that the attachment uses."""
    if lacks := [name for name in needed if not hasattr(trainer, name)]:
        raise FailedPrecondition(
            f"unreft.transformers was tried with transformers {TRIED}, and the Trainer of "
            f"{transformers.__version__} lacks {', '.join(lacks)}"
        )
    args, dataset = trainer.args, trainer.train_dataset
    sampling = getattr(args, "train_sampling_strategy", "random")
    _check_none(
        {
            "DeepSpeed": getattr(trainer, "is_deepspeed_enabled", False),
            "auto_find_batch_size": args.auto_find_batch_size,
            "eval_on_start": args.eval_on_start,
            "ignore_data_skip": args.ignore_data_skip,
            "model_init": trainer.model_init is not None,
            f"train_sampling_strategy={sampling!r}": sampling not in ("random", "sequential"),
            "use_seedable_sampler=False": not args.accelerator_config.use_seedable_sampler,
            "dispatch_batches": args.accelerator_config.dispatch_batches,
            # Their seed is drawn once for all epochs, and after a restart once more.
            "dataloader_persistent_workers": args.dataloader_persistent_workers,
            **{f"optim={each.value!r}": args.optim == each for each in _LOMO},
            # Where there is none a derived class loads its own: `check_loader` sees it.
            "a dataset without a length": dataset is not None and not has_length(dataset),
            "an IterableDataset": isinstance(dataset, data.IterableDataset),
        }
    )


def check_optimizer(trainer: transformers.Trainer) -> None:
    """Of the one that is prepared, which a program may have made itself."""
    _check_none({"a LOMO optimizer": getattr(trainer.accelerator, "has_lomo_optimizer", False)})


def check_loader(loader: Any) -> None:
    """Of the data that are trained with, which a derived class may load in a way of its own."""
    for each in (loader, getattr(loader, "base_dataloader", loader)):
        _check_none({f"a {type(each).__name__} for a DataLoader": type(each) not in _LOADERS})
    *batches, sampler = _samplers_of(loader)
    _check_none(
        {
            f"the sampler {type(sampler).__name__}": type(sampler) not in _SAMPLERS,
            **{
                f"the batch sampler {type(each).__name__}": type(each) not in _BATCH_SAMPLERS
                for each in batches
            },
            "an IterableDataset": isinstance(loader.dataset, data.IterableDataset),
            "in_order=False": loader.num_workers > 0 and not getattr(loader, "in_order", True),
            "persistent_workers": loader.persistent_workers,
        }
    )


def position_in(trainer: transformers.Trainer, loader: Any) -> dict[str, Any]:
    """What a position in the data is counted in."""
    args, config = trainer.args, trainer.args.accelerator_config
    sampler = _samplers_of(loader)[-1]
    return {
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "ranks": args.world_size,
        "GPUs of a rank": max(1, args.n_gpu),
        "split_batches": config.split_batches,
        "even_batches": config.even_batches,
        "samples": len(sampler),
        "batches of an epoch": len(loader),
        "sampler": type(sampler).__name__,
        "seed of the sampler": getattr(sampler, "initial_seed", None),
    }


def _check_none(reasons: Mapping[str, Any]) -> None:
    for name, is_so in reasons.items():
        if is_so:
            raise FailedPrecondition(
                f"a Trainer with {name} is not supported: it would not go on as it was"
            )


def _samplers_of(loader: Any) -> list[Any]:
    """What orders the samples, the last one, and before it what makes batches of that."""
    batches = loader.batch_sampler
    found = [loader.sampler if batches is None else batches]
    while True:
        inner = getattr(found[-1], "batch_sampler", None)
        inner = getattr(found[-1], "sampler", None) if inner is None else inner
        if inner is None:
            return found
        found.append(inner)
