"""Unreft for Megatron-Core: one call after the optimizer is made, and one after each step.

    chunks = get_model(...)
    optimizer = get_megatron_optimizer(config, chunks)
    ck = unreft.mcore.attach(chunks, optimizer, opt_param_scheduler=scheduler)
    iteration = ck.restore() or 0
    while iteration < last:
        ...forward and backward, optimizer.step(), scheduler.step(increment)...
        iteration += 1
        ck.snapshot(iteration)

What this rank's optimizer steps on is captured as it lies, as parts of whole tensors, and restored
in place, also under another tensor-, pipeline- and data-parallel size. docs/mcore.md is the page
about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unreft.mcore import refusals
from unreft.mcore.checkpointer import ModelCheckpointer
from unreft.mcore.model_state import ModelState
from unreft.mcore.place import place_of
from unreft.mcore.training_extras import extras_of
from unreft.torch import attempt, ranks
from unreft.torch.extras import Extras
from unreft.torch.patience import Patience

__all__ = ["ModelCheckpointer", "attach"]


def attach(
    model_chunks: Sequence[Any],
    optimizer: Any,
    *,
    opt_param_scheduler: Any = None,
    extras: Mapping[str, Any] | None = None,
    extras_classes: Sequence[type] = (),
    rng: bool = True,
    required: bool = True,
    unprotected_after: float | None = None,
    **options: Any,
) -> ModelCheckpointer:
    """Connects this rank to the node's daemon.

    Args:
      model_chunks: what megatron.training's `get_model` returns: a list of the one part of the
        model that this rank has, in Megatron-Core's DistributedDataParallel.
      optimizer: as `get_megatron_optimizer` returned it for them.
      opt_param_scheduler: the OptimizerParamScheduler, if there is one.
      extras: as of `unreft.torch.attach`: the state of the program's own, such as the number of
        samples consumed.
      rng: whether the generators, with those of Megatron-Core's tracker, are captured and restored.
      extras_classes, required, unprotected_after: as of `unreft.torch.attach`.
      options: of `unreft.Client`, as there.

    All ranks attach together, once in a process; after `close` it may be called again.

    Raises `unreft.FailedPrecondition`, by name, for what was not tried of Megatron-Core, and what
    `unreft.torch.attach` raises.
    """
    rank, world = ranks.rank_and_world(options.get("rank"), options.get("world"))
    parts: dict[str, Any] = {}

    def prepare() -> None:
        refusals.check(model_chunks, optimizer, world)
        parts["state"] = ModelState(model_chunks, optimizer, rank, world, place_of())
        own = extras_of(opt_param_scheduler, place_of(), rng)
        parts["extras"] = Extras({**(extras or {}), **own}, extras_classes)
        parts["patience"] = None if unprotected_after is None else Patience(unprotected_after)

    given = {**options, "rank": rank, "world": world}
    joined = attempt.take("unreft.mcore.attach", prepare, required, given)
    parts["state"].learn_names()
    checkpointer = ModelCheckpointer(
        model_chunks,
        optimizer,
        joined.client,
        parts["state"],
        parts["extras"],
        False,  # the generators are among the extras
        decision=joined.decision,
        rank=rank,
        patience=parts["patience"],
    )
    attempt.keep(joined, checkpointer, "unreft.mcore.attach")
    return checkpointer
