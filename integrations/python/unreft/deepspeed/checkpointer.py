"""EngineCheckpointer: a Checkpointer that the engine's own step calls."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from deepspeed import DeepSpeedEngine

from unreft.deepspeed.setters import renew_weights
from unreft.torch.checkpointer import Checkpointer

_log = logging.getLogger("unreft")

# Of the engine, in place of which the methods of the same names with an underscore stand.
_REPLACED = ("step", "load_checkpoint", "offload_states", "reload_states")
_COPIES_WAIT_S = 60.0
_COPIES_POLL_S = 0.001


class EngineCheckpointer(Checkpointer):
    """Made by `unreft.deepspeed.attach`. Snapshots are taken by `engine.step`, and numbered as the
    engine counts its steps; where a load from files has set that count back, they go on from the
    last number.
    """

    def __init__(self, engine: DeepSpeedEngine, every: int, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._engine = engine
        self._every = every
        self._number = 0
        self._own = {name: getattr(engine, name) for name in _REPLACED}
        for name in _REPLACED:
            setattr(engine, name, getattr(self, f"_{name}"))

    def restore(self, *, at_or_before: int | None = None) -> int | None:
        """As of `unreft.torch.Checkpointer`; returns the engine's `global_steps`, as restored."""
        number = super().restore(at_or_before=at_or_before)
        if number is None:
            return None
        # Here all ranks have read theirs: they tell each other the weights.
        renew_weights(self._engine.optimizer)
        self._number = number
        return self._engine.global_steps

    @property
    def number(self) -> int:
        """Of the last snapshot, for `wait`; 0 if there was none, and none was restored."""
        return self._number

    def close(self) -> None:
        super().close()
        for name, method in self._own.items():
            if vars(self._engine).get(name) == getattr(self, f"_{name}"):
                setattr(self._engine, name, method)

    # --- in place of the engine's ---

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        engine = self._engine
        before = engine.global_steps
        if engine.is_gradient_accumulation_boundary():
            self.fence()
        result = self._own["step"](*args, **kwargs)
        if engine.global_steps != before and engine.global_steps % self._every == 0:
            self._number = max(engine.global_steps, self._number + 1)
            self.snapshot(self._number)
        return result

    def _load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        self.fence()  # copies may be reading what is loaded into
        loaded = self._own["load_checkpoint"](*args, **kwargs)
        if loaded[0] is not None and self._state.rank == 0:
            self._say_loaded(loaded[0])
        return loaded

    def _offload_states(self, *args: Any, **kwargs: Any) -> None:
        self._move("offload_states", *args, **kwargs)

    def _reload_states(self, *args: Any, **kwargs: Any) -> None:
        self._move("reload_states", *args, **kwargs)

    def _move(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Has the engine move its state, and leaves nothing that keeps the memory it was in."""
        self.fence()
        end = time.monotonic() + _COPIES_WAIT_S
        # On a device only its stream has waited; what copies read is not free.
        while self.status.copying and time.monotonic() < end:
            time.sleep(_COPIES_POLL_S)
        self._own[name](*args, **kwargs)
        with contextlib.suppress(Exception):  # closed meanwhile, by a signal's handler, say
            self._registered.forget()

    def _say_loaded(self, path: str) -> None:
        step = self._engine.global_steps
        if (restored := self.status.restored_step) is not None:
            _log.warning("load_checkpoint: step %d of %s replaces step %d, which restore() has put "
                         "in place", step, path, restored)
        if step < self._number:
            _log.info("load_checkpoint: snapshots go on with number %d, though the engine counts "
                      "its steps from %d", self._number + 1, step)
