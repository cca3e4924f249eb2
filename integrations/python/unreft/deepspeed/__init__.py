"""Unreft for DeepSpeed: a line after `initialize`, and one that says where training goes on.

    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    ck = unreft.deepspeed.attach(engine)
    step = ck.restore() or 0
    while step < last:
        ...forward, engine.backward(loss), engine.step()...
        step = engine.global_steps

What ZeRO has of the model and its optimizer on this rank is captured as it lies, after each step
of the engine, and restored in place: fp32 partitions, moments, hyperparameters, the scheduler of
the learning rate, counters, random generators. docs/deepspeed.md is the page about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepspeed import DeepSpeedEngine

import unreft
from unreft.deepspeed import refusals
from unreft.deepspeed.checkpointer import EngineCheckpointer
from unreft.deepspeed.engine_extras import extras_of
from unreft.deepspeed.zero_state import ZeroState
from unreft.torch import attaching
from unreft.torch.extras import Extras
from unreft.torch.own_tensors import EQUAL, check_mode

__all__ = ["EngineCheckpointer", "attach"]


def attach(
    engine: DeepSpeedEngine,
    *,
    extras: Mapping[str, Any] | None = None,
    extras_classes: Sequence[type] = (),
    every: int = 1,
    buffers: str = EQUAL,
    rng: bool = True,
    required: bool = True,
    unprotected_after: float | None = None,
    **options: Any,
) -> EngineCheckpointer:
    """Connects this rank to the node's daemon, and has `engine.step` take the snapshots.

    Args:
      engine: as `deepspeed.initialize` returned it, with ZeRO of stage 1, 2 or 3.
      extras: as of `unreft.torch.attach`: the state of the program's own, such as the position in
        the data, as it is when `engine.step` returns.
      every: optimizer steps between two snapshots.
      extras_classes, buffers, rng, required, unprotected_after: as of `unreft.torch.attach`.
      options: of `unreft.Client`, as there.

    All ranks attach together, once in a process; after `close` it may be called again.

    Raises `unreft.FailedPrecondition`, by name, for what was not tried of DeepSpeed, and what
    `unreft.torch.attach` raises.
    """

    def prepare(rank: int, world: int) -> tuple[ZeroState, Extras]:
        if every < 1:
            raise unreft.InvalidArgument(f"every: needed a number of steps above 0, found {every}")
        check_mode(buffers)
        refusals.check(engine, world)
        own = Extras({**extras_of(engine), **(extras or {})}, extras_classes)
        return ZeroState(engine, rank, world), own

    def make(client: Any, parts: tuple, **common: Any) -> EngineCheckpointer:
        return EngineCheckpointer(engine, every, client, *parts, rng, buffers=buffers, **common)

    return attaching.attach(
        "unreft.deepspeed.attach",
        prepare,
        make,
        required=required,
        unprotected_after=unprotected_after,
        options=options,
    )
