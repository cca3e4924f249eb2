"""Watch: notices that live tensors are no longer those that were registered.

A training loop may replace a parameter, load a state dict or move a tensor to another place at any
time; copying from the old address would capture wrong bytes. The check runs before every snapshot,
so it is made of calls that stay in C: about 0.3 us per tensor.
"""

import itertools
import operator
from collections.abc import Iterable
from typing import Any

import torch

_POINTER = torch.Tensor.data_ptr
_SHAPE = torch.Tensor.shape.__get__
_STRIDE = torch.Tensor.stride
_STORAGE = torch.Tensor.untyped_storage
_PINNED = (torch.Tensor, torch.nn.Module, dict)


class Watch:
    """Remembers what was registered.

    Changed is: one of `sized` with another number of values; one of `containers` in which a tensor,
    module or dict is another object or stands where none stood; one of `slots`, (container, key),
    likewise; one of `attributes`, (object, name), another object; one of `tensors`, local memory,
    at another place or with another shape. Plain values in containers may change.
    """

    def __init__(
        self,
        *,
        sized: Iterable[dict],
        containers: Iterable[dict],
        slots: Iterable[tuple[dict, str]],
        attributes: Iterable[tuple[Any, str]],
        tensors: Iterable[torch.Tensor],
    ):
        self._sized = list(sized)
        self._lengths = list(map(len, self._sized))
        self._pinned, slots = [], list(slots)
        for container in containers:
            if all(value is None or isinstance(value, _PINNED) for value in container.values()):
                self._pinned.append(container)
            else:
                slots += ((container, key) for key in container)
        self._values = list(self._live_values())
        self._slots = [(container, key, _pinned(container, key)) for container, key in slots]
        self._attributes = [(owner, name, getattr(owner, name)) for owner, name in attributes]
        self._tensors = list(tensors)
        reads = (_POINTER, _SHAPE, _STRIDE)
        self._layout = [(read, list(map(read, self._tensors))) for read in reads]

    def unchanged(self) -> bool:
        return (
            list(map(len, self._sized)) == self._lengths
            and all(map(operator.is_, self._live_values(), self._values))
            and all(_pinned(c, key) is value for c, key, value in self._slots)
            and all(getattr(o, name) is value for o, name, value in self._attributes)
            and all(self._matches(read, known) for read, known in self._layout)
        )

    def memory(self) -> list[Any]:
        """References that keep the memory of the tensors valid, whatever happens to the tensors."""
        return list(map(_STORAGE, self._tensors))

    def _live_values(self):
        return itertools.chain.from_iterable(map(dict.values, self._pinned))

    def _matches(self, read, known: list) -> bool:
        # One at a time: a list of thousands of new objects would set off the garbage collector.
        return all(map(operator.eq, map(read, self._tensors), known))


def _pinned(container: dict, key: str) -> Any:
    value = container.get(key)
    return value if isinstance(value, _PINNED) else None
