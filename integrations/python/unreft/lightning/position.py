"""The position in the training data."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from unreft.lightning.generators import draw_from, drawn
from unreft.lightning.loaders import batch_size_of, loaders_of, sampler_of
from unreft.lightning.refusals import TRIED
from unreft.torch import trainers


class Position:
    """Counted in batches of the epoch, with the random numbers by which they are fetched."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._begun: dict[str, Any] = {}  # before the epoch's data were iterated over
        self._first: dict[str, Any] = {}  # before its first batch
        self._fetched = 0  # batches of the epoch's data

    @property
    def loaders(self) -> list[Any]:
        return loaders_of(self._trainer.fit_loop)

    def begin(self, begun: dict[str, Any]) -> None:
        """The data are iterated over from their beginning; `begun` is `drawn` from before it."""
        self._begun, self._fetched = begun, 0

    def advance(self, batches: int) -> None:
        self._fetched += batches

    def note_first(self) -> None:
        """What the epoch's first batch is fetched by, where it comes next."""
        if self._fetched == 0:
            self._first = drawn(self.loaders)

    def state(self) -> dict[str, Any]:
        return {
            "counted_in": self._counted_in(),
            "begun": self._begun,
            "first": self._first,
            "fetched": self._fetched,
        }

    def go_to(self, stored: dict[str, Any], fetcher: Any) -> None:
        """Fetches the batches before it again, and drops them: random numbers that data draw when
        they are fetched are the same again, in workers too.

        Raises `unreft.FailedPrecondition` where a position is counted in something else.
        """
        trainers.check_counted_in(stored["counted_in"], self._counted_in())
        self._begun, self._first = stored["begun"], stored["first"]
        self._fetched = stored["fetched"]
        draw_from(self._begun, self.loaders)
        iter(fetcher)
        draw_from(self._first, self.loaders)
        for _ in range(self._fetched):
            next(fetcher.iterator)
        fetcher.fetched = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def _counted_in(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "lightning": TRIED,
            "ranks": trainer.world_size,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "batch_size": [batch_size_of(loader) for loader in self.loaders],
            "samples": [len(loader.dataset) for loader in self.loaders],
            "batches of an epoch": trainer.fit_loop.max_batches,
            "samplers": [type(sampler_of(loader)).__name__ for loader in self.loaders],
            "num_workers": [loader.num_workers for loader in self.loaders],
        }
