"""Unreft under accelerate: one line after `prepare`.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ck = unreft.accelerate.attach(accelerator, model, extras={"seen": lambda: seen})
    step = ck.restore() or 0
    ...
        ck.snapshot(step)

What the accelerator has prepared is captured, and what is registered with it for checkpoints.
docs/hugging_face.md is the page about it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import accelerate
from accelerate.utils import DDPCommunicationHookType
from torch import nn

import unreft
import unreft.torch
from unreft.torch import listing, names
from unreft.torch.shards import uncompiled

TRIED = "1.15"

_log = logging.getLogger("unreft")

_KEPT = ("_models", "_optimizers", "_schedulers", "_custom_objects")
_STATEFUL_HOOKS = (
    DDPCommunicationHookType.POWER_SGD,
    DDPCommunicationHookType.BATCHED_POWER_SGD,
)


def attach(
    accelerator: accelerate.Accelerator,
    model: nn.Module,
    *,
    extras: Mapping[str, Any] | None = None,
    **options: Any,
) -> unreft.torch.Checkpointer:
    """`unreft.torch.attach` of all that `accelerator` has prepared so far.

    The model, its optimizers and their schedulers, the scaler of fp16, and the objects of
    `register_for_checkpointing` in their order. To be called once, after `prepare` and
    `register_for_checkpointing`, on all ranks.

    Args:
      accelerator: that has prepared one model.
      model: as `prepare` returned it, with the wrapper that says which ranks hold the same bytes.
      extras: as of `unreft.torch.attach`, beside these: the position in the data, say.
      options: of `unreft.torch.attach`.

    Raises `unreft.FailedPrecondition` unless `model` is the only one that is prepared, and for
    LOMO optimizers and PowerSGD, by name, and what `unreft.torch.attach` raises.
    """
    lacks = [name for name in _KEPT if not hasattr(accelerator, name)]
    if lacks:
        raise unreft.FailedPrecondition(
            f"unreft.accelerate was tried with accelerate {TRIED}, and the Accelerator of "
            f"{accelerate.__version__} lacks {', '.join(lacks)}"
        )
    models = accelerator._models
    if len(models) != 1:
        raise unreft.FailedPrecondition(
            f"needed an accelerator that has prepared one model, found {len(models)}: call "
            "attach() after prepare(), or give what several models train to unreft.torch.attach()"
        )
    _check(accelerator, model)
    _check_kept(accelerator, model)
    warn_of_dynamic_rope(model)
    own = {f"scheduler{i}": scheduler for i, scheduler in enumerate(accelerator._schedulers)}
    own |= {f"registered{i}": value for i, value in enumerate(accelerator._custom_objects)}
    if accelerator.scaler is not None:
        own["scaler"] = accelerator.scaler
    return unreft.torch.attach(
        model,
        accelerator._optimizers,
        extras={**{f"accelerate/{name}": value for name, value in own.items()}, **(extras or {})},
        **options,
    )


def _check(accelerator: accelerate.Accelerator, model: nn.Module) -> None:
    """The accelerator itself keeps what was in DistributedDataParallel before it was wrapped."""
    wrapped = isinstance(uncompiled(model), nn.parallel.DistributedDataParallel)
    kept = accelerator._models[0]
    if _unwrapped(model) is not _unwrapped(kept):
        raise unreft.FailedPrecondition(
            f"model: needed the {type(_unwrapped(kept)).__name__} that prepare() has returned, "
            f"found another {type(_unwrapped(model)).__name__}"
        )
    trains = any(parameter.requires_grad for parameter in model.parameters())
    is_replicated = accelerator.distributed_type.name.startswith("MULTI_")
    if is_replicated and trains and not wrapped and not _is_sharded(model):
        raise unreft.FailedPrecondition(
            f"model: needed as prepare() has returned it, in DistributedDataParallel, found a "
            f"{type(model).__name__} without: each rank would store all of it as its own"
        )


def _check_kept(accelerator: accelerate.Accelerator, model: nn.Module) -> None:
    """Refuses what keeps some state elsewhere than in the model and its optimizers."""
    if getattr(accelerator, "has_lomo_optimizer", False):
        raise unreft.FailedPrecondition(
            "a LOMO optimizer is not supported: it writes the weights during backward, and keeps "
            "its moments in no state. Take one that steps after backward"
        )
    # Without DistributedDataParallel, as on one rank, accelerate registers no hook.
    wrapped = isinstance(uncompiled(model), nn.parallel.DistributedDataParallel)
    hook = getattr(accelerator.ddp_handler, "comm_hook", None)
    if wrapped and hook in _STATEFUL_HOOKS:
        raise unreft.FailedPrecondition(
            "DistributedDataParallelKwargs: needed a comm_hook without state (NO, FP16, BF16), "
            f"found {hook.name}: the errors that it feeds back are not captured"
        )


def warn_of_dynamic_rope(model: nn.Module) -> None:
    """Of transformers' modules whose buffers depend on the sequences that they have seen."""
    if found := [name for name, module in model.named_modules() if _has_dynamic_rope(module)]:
        _log.warning(
            "the rope_type of %s is dynamic: its frequencies follow the longest sequence seen, and "
            "are not captured, since their buffers are not persistent. A restart begins with those "
            "of the configuration, so that shorter sequences may train otherwise than before it",
            listing.names([names.clean_module(name) for name in found]),
        )


def _has_dynamic_rope(module: nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, Mapping) else [kinds]
    return any("dynamic" in kind for kind in kinds if isinstance(kind, str))


def _unwrapped(model: nn.Module) -> nn.Module:
    inner = uncompiled(model)
    if isinstance(inner, nn.parallel.DistributedDataParallel):
        inner = uncompiled(inner.module)
    return inner


def _is_sharded(model: nn.Module) -> bool:
    return any(hasattr(parameter, "placements") for parameter in model.parameters())
