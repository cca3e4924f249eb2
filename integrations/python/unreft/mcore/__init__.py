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
from unreft.torch import attaching
from unreft.torch.extras import Extras

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
      model_chunks: what megatron.training's `get_model` returns: a list of the parts of the model
        that this rank has, one for each virtual pipeline stage, in Megatron-Core's
        DistributedDataParallel.
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

    def prepare(rank: int, world: int) -> tuple[ModelState, Extras]:
        refusals.check(model_chunks, optimizer, world)
        place = place_of()
        own = extras_of(opt_param_scheduler, place, rng)
        state = ModelState(model_chunks, optimizer, rank, world, place)
        return state, Extras({**(extras or {}), **own}, extras_classes)

    def make(client: Any, parts: tuple, **common: Any) -> ModelCheckpointer:
        state, own_extras = parts
        state.learn_names()
        # The generators are among the extras.
        return ModelCheckpointer(
            model_chunks, optimizer, client, state, own_extras, False, **common
        )

    return attaching.attach(
        "unreft.mcore.attach",
        prepare,
        make,
        required=required,
        unprotected_after=unprotected_after,
        options=options,
    )
