"""ZeroScalars: what a ZeRO optimizer holds beside partitions: hyperparameters and counts of steps.

A parameter group has one count in all of its partitions: stage 3 has as many as fit their size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition
from unreft.torch.group_scalars import GroupScalars, Sharing
from unreft.torch.parts import Stepped

_ZERO = "unreft/zero"  # among the hyperparameters: which stage it is, of which weights


class ZeroScalars(GroupScalars):
    def __init__(self, optimizer: torch.optim.Optimizer, partitions: Sequence[Stepped], zero: dict):
        """`zero`: what has to be as it was: the stage, and the type of the weights."""
        self._zero = zero
        self._groups: list[list[str]] = [[] for _ in optimizer.param_groups]
        of_group: dict[int, list[Stepped]] = {}
        for partition in partitions:
            self._groups[partition.group] += partition.shapes
            of_group.setdefault(partition.group, []).append(partition)
        # Of a group it is stored as the state of its first parameter.
        sharings = [
            Sharing(self._groups[group][0], f"in all partitions of parameter group {group}", each)
            for group, each in of_group.items()
        ]
        super().__init__(optimizer, self._groups, sharings, (_ZERO, zero))

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        for group in stored["groups"]:
            found = group.get(_ZERO)
            if found != self._zero:
                raise FailedPrecondition(
                    f"engine: needed {_described(found)}, as this state was stored, found "
                    f"{_described(self._zero)}"
                )
        needed = [group["params"] for group in stored["groups"]]
        if needed == self._groups:
            return
        raise FailedPrecondition(
            f"engine: the parameter groups differ from the stored ones, needed groups of "
            f"{list(map(len, needed))} parameters, found {list(map(len, self._groups))}; "
            f"{_first_difference(needed, self._groups)}"
        )


def _described(zero: Any) -> str:
    if not isinstance(zero, dict):
        return "what another integration than unreft.deepspeed trained"
    return f"ZeRO stage {zero['stage']} of {zero['weights']} weights"


def _first_difference(needed: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> str:
    for index, (before, now) in enumerate(zip(needed, found)):
        for place, (one, other) in enumerate(zip(before, now)):
            if one != other:
                return f"parameter {place} of group {index} was '{one}', and is '{other}'"
    return "attach an engine with the groups of the run that stored it"
