"""ModelScalars: what an optimizer of torch holds beside moments: hyperparameters and the count of
steps.

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


class ModelScalars(GroupScalars):
    def __init__(self, optimizer: torch.optim.Optimizer, stepped: Sequence[Stepped], weights: str):
        """`weights`: the type of what the model computes with."""
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


def _identified(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What Megatron-Core tells groups apart by, as far as they have it."""
    keys = [key for key in param_group_identifier_keys if key not in ("max_lr", "min_lr")]
    return [{key: group[key] for key in keys if group.get(key) is not None} for group in groups]
