"""GroupScalars: what a ZeRO optimizer holds beside partitions: hyperparameters and counts of steps.

They belong to parameter groups, which are the same for any number of ranks; partitions are not:
stage 3 has as many of a group as fit their size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unreft.deepspeed.partitions import Partition
from unreft.errors import FailedPrecondition
from unreft.torch import plain
from unreft.torch.alike import alike

_ZERO = "unreft/zero"  # among the hyperparameters: which stage it is, of which weights


class GroupScalars:
    def __init__(
        self, optimizer: torch.optim.Optimizer, partitions: Sequence[Partition], zero: dict
    ):
        """`zero`: what has to be as it was: the stage, and the type of the weights."""
        self._optimizer = optimizer
        self._partitions = partitions
        self._zero = zero
        self._groups: list[list[str]] = [[] for _ in optimizer.param_groups]
        for partition in partitions:
            self._groups[partition.group] += partition.shapes
        # Encoded once: to do so at each snapshot takes longer than all else.
        self._names = list(map(plain.dumps, self._groups))

    def values(self) -> dict[str, Any]:
        """As they are now, in the form of `unreft.torch.scalars`; the state of a group under the
        name of its first parameter."""
        groups = [
            {**group, "params": names, _ZERO: self._zero}
            for names, group in zip(self._names, self._optimizer.param_groups)
        ]
        states = {
            self._groups[partition.group][0]: scalars_of(self._optimizer, partition.flat)
            for partition in self._partitions
        }
        return {"groups": groups, "states": states}

    def check_partitions(self) -> None:
        """Raises `FailedPrecondition` where the partitions of one group have different scalars."""
        first: dict[int, dict] = {}
        for partition in self._partitions:
            scalars = scalars_of(self._optimizer, partition.flat)
            known = first.setdefault(partition.group, scalars)
            if not alike(known, scalars):
                raise FailedPrecondition(
                    f"{type(self._optimizer).__name__}: needed one state beside tensors in all "
                    f"partitions of parameter group {partition.group}, found {known} and {scalars}"
                )

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        """Raises `FailedPrecondition` unless it is of an optimizer of the same kind."""
        for index, group in enumerate(stored["groups"]):
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

    def load(self, stored: Mapping[str, Any]) -> None:
        for group, values in zip(self._optimizer.param_groups, stored["groups"]):
            for key, value in values.items():
                if key in ("params", _ZERO):
                    continue
                if isinstance(group.get(key), torch.Tensor):
                    group[key].copy_(torch.as_tensor(value, dtype=group[key].dtype, device="cpu"))
                else:
                    group[key] = value
        for partition in self._partitions:
            names = self._groups[partition.group]
            values = stored["states"].get(names[0], {})
            if not values and partition.flat not in self._optimizer.state:
                continue
            group = self._optimizer.param_groups[partition.group]
            self._optimizer.state[partition.flat].update(
                {key: _own(key, value, partition.flat, group) for key, value in values.items()}
            )


def is_partitioned(value: Any, flat: torch.Tensor) -> bool:
    """Whether it is state of each element of a partition, such as a moment."""
    return isinstance(value, torch.Tensor) and value.shape == flat.shape


def scalars_of(optimizer: torch.optim.Optimizer, flat: torch.Tensor) -> dict[str, Any]:
    state = optimizer.state.get(flat) or {}
    return {key: value for key, value in state.items() if not is_partitioned(value, flat)}


def _own(key: str, value: Any, flat: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """For one of several partitions: a count of steps that they shared would count for each."""
    if not isinstance(value, torch.Tensor):
        return value
    # The count stays on the CPU unless the optimizer's kernel reads it.
    on_device = key != "step" or group.get("fused") or group.get("capturable")
    return value.clone().to(flat.device if on_device else "cpu")


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
