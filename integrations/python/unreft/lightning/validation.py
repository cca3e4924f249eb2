"""The loaders of the validation, which a restart makes as the first attempt did."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from unreft.lightning.generators import draw_from, drawn
from unreft.lightning.loaders import loaders_of


class Validation:
    """Has two methods of Lightning's make them by the random numbers of the first time.

    A `val_dataloader` may split data by them. Lightning calls it in the check of the validation
    before a run, which a restart passes over, or later, when it is about to validate.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._loop = trainer.fit_loop.epoch_loop.val_loop
        self._set_up = self._loop.setup_data
        self._check = trainer._run_sanity_check
        self._made: dict[str, Any] | None = None  # generators as they were before
        self._in_check = False
        self._resumes = False  # until `go_on`
        self._seen: dict[int, int] = {}  # batches of each loader

    @property
    def loaders(self) -> list[Any]:
        return loaders_of(self._loop)

    def resume(self, stored: dict[str, Any] | None) -> None:
        """Before the loops run, with what `state` was."""
        self._resumes = True
        if stored is not None:
            self._made, self._in_check = stored["made"], stored["in_check"]
            self._seen = stored["seen"]

    def go_on(self) -> None:
        if self._made is not None:
            self._set_up_at_rest()
            self._loop._seen_batches_per_dataloader.update(self._seen)
        self._resumes = False

    def state(self) -> dict[str, Any] | None:
        """None before the loaders are made."""
        if self._loop._combined_loader is None:
            return None
        return {
            "made": self._made,
            "in_check": self._in_check,
            "seen": dict(self._loop._seen_batches_per_dataloader),
        }

    def set_up(self) -> None:
        """Of the validation's loop: has it make its loaders, unless they are there."""
        if self._loop._combined_loader is None:
            if not self._resumes:
                self._made, self._in_check = drawn([]), self._trainer.sanity_checking
            elif self._made is None:
                return  # it is too early yet
            else:
                draw_from(self._made, [])
        self._set_up()

    def check(self) -> None:
        """Of the Trainer: the check before a run, after which it sets back the generators."""
        if self._resumes and self._in_check:
            # It may be what splits the data to train with, too, which are asked for next.
            self._set_up_at_rest()
        else:
            self._check()

    def _set_up_at_rest(self) -> None:
        stage = self._trainer.state.stage
        self._trainer.validating = True
        self.set_up()
        self._trainer.state.stage = stage
