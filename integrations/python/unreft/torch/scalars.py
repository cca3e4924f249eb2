"""OptimizerScalars: what an optimizer holds beside tensors."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from unreft.errors import InvalidArgument
from unreft.torch.optimizer_tensors import is_shard, shards_of
from unreft.torch.plain import dumps
from unreft.torch.shards import DTensor


class OptimizerScalars:
    """Hyperparameters of the groups, and plain values in the states.

    Made once for states that keep their keys and the kinds of their values, so that every snapshot
    looks only at the few that have plain values, of thousands.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: list[list[str]],
        states: Iterable[tuple[str, Any, dict]],
    ):
        """`names`: of each group's parameters; `states`: name, parameter and state of each."""
        self._optimizer = optimizer
        # Encoded once: to do so at each snapshot takes longer than all else.
        self._names = list(map(dumps, names))
        self._params = [list(group["params"]) for group in optimizer.param_groups]
        states = list(states)
        shards = shards_of(states)
        self._shards = {"shards": dumps(shards)} if shards else {}
        self._states = [each for each in states if _plain(*each[1:])]

    def fits(self) -> bool:
        """Whether the optimizer has the same parameters in the same groups."""
        groups = [group["params"] for group in self._optimizer.param_groups]
        return list(map(len, groups)) == list(map(len, self._params)) and all(
            all(map(operator.is_, live, known)) for live, known in zip(groups, self._params)
        )

    def values(self) -> dict[str, Any]:
        """As they are now; the groups with the names, encoded, as their `params`."""
        groups = [
            {**group, "params": names}
            for names, group in zip(self._names, self._optimizer.param_groups)
        ]
        states = {name: _plain(parameter, state) for name, parameter, state in self._states}
        for name, plain in states.items():
            self._check(name, plain)
        return {"groups": groups, "states": states, **self._shards}

    def _check(self, name: str, plain: dict[str, Any]) -> None:
        for key, value in plain.items():
            if not isinstance(value, torch.Tensor) and _has_tensor(value):
                kind = type(self._optimizer).__name__
                raise InvalidArgument(
                    f"{kind}: its state '{key}' of '{name}' is a {type(value).__name__} of "
                    f"tensors, which is not supported: attach without {kind} and give it as "
                    "extras={'optimizer': optimizer}, if its state is small"
                )


def load_group(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Puts stored hyperparameters into a live parameter group; a tensor stays the one it is."""
    for key, value in values.items():
        if key == "params":
            continue
        if isinstance(group.get(key), torch.Tensor):
            group[key].copy_(torch.as_tensor(value, dtype=group[key].dtype, device="cpu"))
        else:
            group[key] = value


def _plain(parameter: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """Also tensors without elements: nothing else would tell that they exist."""
    return {key: value for key, value in state.items() if not _has_bytes(value, parameter)}


def _has_bytes(value: Any, parameter: torch.Tensor) -> bool:
    """A shard counts also where this rank's is empty: other ranks store the others."""
    return isinstance(value, torch.Tensor) and (
        isinstance(value, DTensor) or value.numel() > 0 or is_shard(value, parameter)
    )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, (list, tuple, set)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)
