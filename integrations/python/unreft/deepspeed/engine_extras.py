"""What an engine has beside tensors and its optimizer's groups, as extras of a snapshot."""

from __future__ import annotations

from typing import Any

from deepspeed import DeepSpeedEngine

_COUNTS = ("global_steps", "global_samples", "skipped_steps")
_NUMBERS = (bool, int, float, type(None))


def extras_of(engine: DeepSpeedEngine) -> dict[str, Any]:
    found = {"counters": Counters(engine), "loss_scaler": LossScaler(engine)}
    if engine.lr_scheduler is not None:
        found["lr_scheduler"] = engine.lr_scheduler
    return {f"deepspeed/{name}": extra for name, extra in found.items()}


class Counters:
    """Of steps and samples."""

    def __init__(self, engine: DeepSpeedEngine):
        self._engine = engine

    def state_dict(self) -> dict[str, int]:
        return {name: getattr(self._engine, name) for name in _COUNTS}

    def load_state_dict(self, state: dict[str, int]) -> None:
        for name in _COUNTS:
            setattr(self._engine, name, state[name])
        # A snapshot is taken where gradients are accumulated no more: the next micro-batch is the
        # first of its round, however many a round has by then.
        self._engine.micro_steps = 0


class LossScaler:
    """The numbers of the one that the ZeRO optimizer has now; a load from files replaces it."""

    def __init__(self, engine: DeepSpeedEngine):
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        scaler = self._engine.optimizer.loss_scaler
        return {name: value for name, value in vars(scaler).items() if type(value) in _NUMBERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self._engine.optimizer.loss_scaler, name, value)
