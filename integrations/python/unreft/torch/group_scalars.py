"""GroupScalars: hyperparameters and counts of steps of an optimizer that steps on parts of tensors.

They belong to parameter groups, which are the same for any number of ranks; what a rank steps on is
not. So one state is stored for many that have to be alike.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition
from unreft.torch import plain
from unreft.torch.alike import alike
from unreft.torch.parts import Stepped
from unreft.torch.scalars import load_group


@dataclasses.dataclass(frozen=True)
class Sharing:
    """`stepped`, one at least, which have one state beside tensors. It is stored as that of `name`;
    messages say of it that it is `of_whom`."""

    name: str
    of_whom: str
    stepped: list[Stepped]


class GroupScalars(abc.ABC):
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Sequence[list[str]],
        sharings: Sequence[Sharing],
        kind: tuple[str, Any],
    ):
        """`names`: what is stored as each group's parameters; `kind`: among the hyperparameters a
        key, and its value, which `check_stored` compares."""
        self._optimizer = optimizer
        self._sharings = sharings
        self._kind = kind
        # Encoded once: to do so at each snapshot takes longer than all else.
        self._names = list(map(plain.dumps, names))

    def values(self) -> dict[str, Any]:
        """As they are now, in the form of `unreft.torch.scalars`."""
        key, value = self._kind
        groups = [
            {**group, "params": names, key: value}
            for names, group in zip(self._names, self._optimizer.param_groups)
        ]
        states = {sharing.name: sharing.stepped[0].scalars() for sharing in self._sharings}
        return {"groups": groups, "states": states}

    def check_shared(self) -> None:
        """Raises `FailedPrecondition` where what is to have one state has several."""
        for sharing in self._sharings:
            first = sharing.stepped[0].scalars()
            for each in sharing.stepped:
                found = each.scalars()
                if not alike(first, found):
                    raise FailedPrecondition(
                        f"{type(self._optimizer).__name__}: needed one state beside tensors "
                        f"{sharing.of_whom}, found {first} and {found}"
                    )

    @abc.abstractmethod
    def check_stored(self, stored: Mapping[str, Any]) -> None:
        """Raises `FailedPrecondition` unless it is of an optimizer of the same kind."""

    def load(self, stored: Mapping[str, Any]) -> None:
        """Of an optimizer that `check_stored` has compared."""
        groups = self._optimizer.param_groups
        for group, values in zip(groups, stored["groups"]):
            load_group(group, {k: v for k, v in values.items() if k != self._kind[0]})
        for sharing in self._sharings:
            values = stored["states"].get(sharing.name, {})
            for each in sharing.stepped:
                if values or each.memory in self._optimizer.state:
                    self._optimizer.state[each.memory].update(
                        {k: _own(k, v, each.memory, groups[each.group]) for k, v in values.items()}
                    )


def _own(key: str, value: Any, memory: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """For one of those that share it: a count of steps in one tensor would count for each."""
    if not isinstance(value, torch.Tensor):
        return value
    # The count stays on the CPU unless the optimizer's kernel reads it.
    on_device = key != "step" or group.get("fused") or group.get("capturable")
    return value.clone().to(memory.device if on_device else "cpu")
