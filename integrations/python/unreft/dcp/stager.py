"""Stager: copies a state dict into the daemon's memory for `dcp.async_save`."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.staging import AsyncStager

import unreft
from unreft.dcp import catalogue, checkpoint_id, pieces, session


class Stager(AsyncStager):
    """An `AsyncStager`. A `Writer` that knows its step is one by itself, and needs none.

        stager = unreft.dcp.Stager()
        ...
        stager.step = step
        response = dcp.async_save(
            state_dict, storage_writer=unreft.dcp.Writer(step), async_stager=stager)

    Args:
      step: of what is staged next, or an id that names it. torch does not tell a stager for which
        checkpoint it stages, and the daemon's memory has no place for a copy of unknown step.
      overlap: `stage` returns a Future at once, which ends when the tensors may change. False: it
        returns when they may.
      fresh: as of `Writer`.
      options: of `unreft.Client`, as of `Writer`.

    With a process group all ranks make it together, and stage together.
    """

    should_synchronize_after_execute = False

    def __init__(self, step: Any = None, *, overlap: bool = False, fresh: bool = False, **options):
        self.step = step
        self._overlap = overlap
        self._fresh = fresh
        self._session = session.join(options)
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    def stage(self, state_dict: dict[str, Any]) -> Any:
        """Begins to copy; what it returns is for the writer, whose planner reads no tensor of it.

        `Aborted` when memory for another copy does not become free.
        """
        if self.step is None:
            raise unreft.InvalidArgument(
                "stage: the step must be known before anything is copied: make the writer with it, "
                "unreft.dcp.Writer(step), or set Stager.step"
            )
        step = checkpoint_id.step_of(self.step)
        own = self._session
        own.check_may_save(step, self._fresh)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state_dict, is_coordinator=own.rank == 0)
        plan = planner.create_local_plan()
        items, shared = own.share.of(plan)
        captured = pieces.of_items(items, planner.resolve_data)
        extras = catalogue.RankExtras(captured.values, shared)
        own.capture(step, captured, extras)
        own.staged[step] = session.Staged(step, {pieces.kind_of(item) for item in plan.items})
        structure = _structure(state_dict)
        if not self._overlap:
            own.fence()
            return structure
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "unreft-stager")
        stream = session.current_stream()
        return self._thread.submit(lambda: (own.fence(stream), structure)[1])

    def synchronize_staging(self) -> None:
        """Returns when the tensors that were staged may change."""
        self._session.fence()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _structure(value: Any) -> Any:
    """The same with containers of its own, so that the program may change its."""
    if isinstance(value, dict):
        return {key: _structure(of) for key, of in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_structure(of) for of in value)
    return value
