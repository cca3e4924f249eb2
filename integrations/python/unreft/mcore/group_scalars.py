"""ModelScalars: what an optimizer holds beside moments: hyperparameters and the count of steps.

Megatron-Core makes the same parameter groups on all ranks, in one order, also where a rank has no
parameter of a group. It knows them by some of their values, and one count of steps for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer.optimizer import param_group_identifier_keys

from unreft.errors import FailedPrecondition
from unreft.torch.group_scalars import GroupScalars, Sharing
from unreft.torch.parts import Stepped

_WEIGHTS = "unreft/weights"  # among the hyperparameters: of which type the weights are
_ALL = "all parameters"  # whose state the count of steps is stored as
_STEP = "step"
_FUSED_ADAMS = (
    "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam",
    "apex.optimizers.fused_adam.FusedAdam",
)


def is_fused_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is Transformer Engine's or Apex's, of which Megatron-Core takes what there is."""
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}" in _FUSED_ADAMS


def scalars_of(
    optimizer: torch.optim.Optimizer, stepped: Sequence[Stepped], weights: str
) -> "ModelScalars":
    """`stepped`: all that it steps on; `weights`: the type of what the model computes with."""
    kind = FusedScalars if is_fused_adam(optimizer) else ModelScalars
    return kind(optimizer, stepped, weights)


class ModelScalars(GroupScalars):
    """Of an optimizer of torch, which has the count in the state of each that it steps on."""

    KIND_OF_COUNT: type = torch.Tensor

    def __init__(self, optimizer: torch.optim.Optimizer, stepped: Sequence[Stepped], weights: str):
        """As `scalars_of`."""
        self._weights = weights
        sharings = [Sharing(_ALL, "for all parameters", list(stepped))] if stepped else []
        names: list[list[str]] = [[] for _ in optimizer.param_groups]
        super().__init__(optimizer, names, sharings, (_WEIGHTS, weights))

    def values(self) -> dict[str, Any]:
        """Without a state that is not made yet: ranks that step on nothing have none either."""
        values = super().values()
        return {**values, "states": {k: state for k, state in values["states"].items() if state}}

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        for group in stored["groups"]:
            if group.get(_WEIGHTS) != self._weights:
                found = group.get(_WEIGHTS)
                was = f"{found} weights" if found else "by another integration than unreft.mcore"
                raise FailedPrecondition(
                    f"model: this state was stored of {was}, and this is one of {self._weights} "
                    "weights"
                )
        needed, found = map(_identified, (stored["groups"], self._optimizer.param_groups))
        if needed != found:
            raise FailedPrecondition(
                f"optimizer: the parameter groups differ from the stored ones, needed {needed}, "
                f"found {found}"
            )
        count = _count_in(stored)
        if count is not None and not isinstance(count, self.KIND_OF_COUNT):
            fused, of_torch = "FusedAdam", "Adam or AdamW of torch"
            was, now = (of_torch, fused) if self.KIND_OF_COUNT is int else (fused, of_torch)
            raise FailedPrecondition(
                f"optimizer: this state was stored of {was}, and this is {now}: restart with the "
                "packages that there were, since Megatron-Core takes FusedAdam where Transformer "
                "Engine or Apex is installed"
            )


class FusedScalars(ModelScalars):
    """Of FusedAdam, which has the count in its parameter groups: in those, that is, of which this
    rank steps on something. It is stored as if it were in the states."""

    KIND_OF_COUNT = int

    def values(self) -> dict[str, Any]:
        values = super().values()
        for group in values["groups"]:
            group.pop(_STEP, None)
        counts = self._counts()
        return {**values, "states": {_ALL: {_STEP: counts[0]}}} if counts else values

    def check_shared(self) -> None:
        super().check_shared()
        counts = self._counts()
        if len(set(counts)) > 1:
            raise FailedPrecondition(
                f"{type(self._optimizer).__name__}: needed one count of steps in all parameter "
                f"groups, found {counts}"
            )

    def load(self, stored: Mapping[str, Any]) -> None:
        super().load({**stored, "states": {}})
        count = _count_in(stored)
        for group in self._optimizer.param_groups:
            group.pop(_STEP, None)
            if count is not None:
                group[_STEP] = count

    def _counts(self) -> list[int]:
        """Of the groups that have made a step."""
        groups = self._optimizer.param_groups
        return [group[_STEP] for group in groups if group["params"] and _STEP in group]


def _count_in(stored: Mapping[str, Any]) -> Any:
    """None where it is of ranks that stepped on nothing, or had not stepped."""
    return stored["states"].get(_ALL, {}).get(_STEP)


def _identified(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What Megatron-Core tells groups apart by, as far as they have it."""
    keys = [key for key in param_group_identifier_keys if key not in ("max_lr", "min_lr")]
    return [{key: group[key] for key in keys if group.get(key) is not None} for group in groups]
