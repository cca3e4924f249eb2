"""GroupScalars: what an optimizer of torch holds beside moments: hyperparameters and the count of
steps.

Megatron-Core makes the same parameter groups on all ranks, in one order, also where a rank has no
parameter of a group. It knows them by some of their values, and one count of steps for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer.optimizer import param_group_identifier_keys

from unreft.errors import FailedPrecondition
from unreft.mcore.main_parameters import Main
from unreft.torch.alike import alike
from unreft.torch.parts import is_elementwise

_WEIGHTS = "unreft/weights"  # among the hyperparameters: of which type the weights are
_ALL = "all parameters"  # whose state the count of steps is stored as


class GroupScalars:
    def __init__(self, optimizer: torch.optim.Optimizer, mains: Sequence[Main], weights: str):
        """`weights`: the type of what the model computes with."""
        self._optimizer = optimizer
        self._mains = mains
        self._weights = weights

    def values(self) -> dict[str, Any]:
        """As they are now, in the form of `unreft.torch.scalars`."""
        groups = [
            {**group, "params": [], _WEIGHTS: self._weights}
            for group in self._optimizer.param_groups
        ]
        first = scalars_of(self._optimizer, self._mains[0].main) if self._mains else {}
        return {"groups": groups, "states": {_ALL: first} if first else {}}

    def check_one(self) -> None:
        """Raises `FailedPrecondition` where the states of parameters differ beside tensors."""
        if not self._mains:
            return
        first = scalars_of(self._optimizer, self._mains[0].main)
        for each in self._mains:
            found = scalars_of(self._optimizer, each.main)
            if not alike(first, found):
                raise FailedPrecondition(
                    f"{type(self._optimizer).__name__}: needed one state beside tensors for all "
                    f"parameters, found {first} and {found}"
                )

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        """Raises `FailedPrecondition` unless it is of an optimizer of the same kind."""
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

    def load(self, stored: Mapping[str, Any]) -> None:
        for group, values in zip(self._optimizer.param_groups, stored["groups"]):
            group.update({k: v for k, v in values.items() if k not in ("params", _WEIGHTS)})
        scalars = stored["states"].get(_ALL, {})
        for each in self._mains:
            state = self._optimizer.state.get(each.main)
            if state:
                # A count that they shared would count for each.
                state.update({
                    key: value.clone() if isinstance(value, torch.Tensor) else value
                    for key, value in scalars.items()
                })


def scalars_of(optimizer: torch.optim.Optimizer, main: torch.Tensor) -> dict[str, Any]:
    state = optimizer.state.get(main) or {}
    return {key: value for key, value in state.items() if not is_elementwise(value, main)}


def _identified(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What Megatron-Core tells groups apart by, as far as they have it."""
    keys = [key for key in param_group_identifier_keys if key not in ("max_lr", "min_lr")]
    return [{key: group[key] for key in keys if group.get(key) is not None} for group in groups]
