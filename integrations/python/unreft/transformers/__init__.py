"""Unreft for the Trainer of Hugging Face: one line, and it goes on where it was killed.

    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    unreft.transformers.attach(trainer)
    trainer.train()

Model, optimizer, scheduler and loss scaler are captured, the position in the data, the random
generators, and what the Trainer has counted and logged; a run that was killed ends with the same
bytes as one that was not, unless its data draw random numbers when they are fetched.
docs/hugging_face.md is the page about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers

from unreft.accelerate import warn_of_dynamic_rope
from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.transformers.attachment import NEEDED, Attachment
from unreft.transformers.refusals import check

__all__ = ["attach"]


def attach(
    trainer: transformers.Trainer,
    *,
    every: int = 1,
    extras: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Has `trainer.train` save every `every`-th step in memory, and go on from the last one.

    To be called once, before `train`, on all ranks. A directory that is given to
    `train(resume_from_checkpoint=...)` is loaded when nothing is committed in memory, or an earlier
    step than the directory's.

    Args:
      trainer: a `Trainer`, or of a class derived from it.
      every: optimizer steps between two snapshots.
      extras: as of `unreft.torch.attach`, beside what the Trainer has.
      options: of `unreft.torch.attach`.

    Raises `unreft.FailedPrecondition` for what a Trainer does otherwise than this goes along with,
    by name. What only its data tell, and what `unreft.torch.attach` and `peek` raise, `train`
    raises.
    """
    if every < 1:
        raise InvalidArgument(f"every: needed a number of steps above 0, found {every}")
    check(trainer, NEEDED)
    callbacks = trainer.callback_handler.callbacks
    if any(isinstance(callback, Attachment) for callback in callbacks):
        raise FailedPrecondition("the trainer is attached already")
    warn_of_dynamic_rope(trainer.model)
    # Before others, which may count a step when it begins: what is captured is the one before.
    callbacks.insert(0, Attachment(trainer, every, dict(extras or {}), options))
