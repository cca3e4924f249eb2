"""Unreft under accelerate: one line after `prepare`.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ck = unreft.accelerate.attach(accelerator, extras={"seen": lambda: seen})
    step = ck.restore() or 0
    ...
        ck.snapshot(step)

What the accelerator has prepared is captured, and what is registered with it for checkpoints.
docs/hugging_face.md is the page about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import accelerate

import unreft
import unreft.torch

TRIED = "1.15"

_KEPT = ("_models", "_optimizers", "_schedulers", "_custom_objects")


def attach(
    accelerator: accelerate.Accelerator,
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
      extras: as of `unreft.torch.attach`, beside these: the position in the data, say.
      options: of `unreft.torch.attach`.

    Raises `unreft.FailedPrecondition` unless one model is prepared, and what
    `unreft.torch.attach` raises.
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
    own = {f"scheduler{i}": scheduler for i, scheduler in enumerate(accelerator._schedulers)}
    own |= {f"registered{i}": value for i, value in enumerate(accelerator._custom_objects)}
    if accelerator.scaler is not None:
        own["scaler"] = accelerator.scaler
    return unreft.torch.attach(
        models[0],
        accelerator._optimizers,
        extras={**{f"accelerate/{name}": value for name, value in own.items()}, **(extras or {})},
        **options,
    )
