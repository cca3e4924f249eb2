"""Watch: notices that live tensors are no longer those that were registered.

A training loop may replace a parameter, load a state dict or move a tensor to another place at any
time; copying from the old address would capture wrong bytes. The check runs before every snapshot,
so it is made of calls that stay in C. `tensor.data = ...` may also give a tensor another shape, or
other strides, at the same address: these are read of all tensors but the state of optimizers, whose
tensors are replaced rather than pointed elsewhere.

A watch keeps tensors until the next check, but not the memory that a tensor has left: what a loop
moves elsewhere between two snapshots, by `tensor.data = ...`, is free at once. (Weak references to
tensors would keep nothing, but torch.utils.swap_tensors refuses tensors that have one.)
"""

import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from unreft.torch.shards import Bound, fits

_POINTER = torch.Tensor.data_ptr
_STRIDES = torch.Tensor.stride
_SIZES = torch.Tensor.size
_STORAGE = torch.Tensor.untyped_storage
_CALL = getattr(operator, "call", weakref.ref.__call__)  # the former is of Python 3.11
_PINNED = (torch.Tensor, torch.nn.Module, dict)


class Watch:
    """Remembers what was registered: the local memory of `bounds`, and where it was found.

    Changed is: one of `sized` with another number of values; one of `containers` in which a tensor,
    module or dict is another object or stands where none stood; one of `slots`, (container, key),
    likewise; one of `attributes`, (object, name), another object; a tensor of `bounds` at another
    address, or, of one that is not `replaceable`, with other strides or another shape. Plain values
    in containers may change.
    """

    def __init__(
        self,
        *,
        sized: Iterable[dict],
        containers: Iterable[dict],
        slots: Iterable[tuple[dict, str]],
        attributes: Iterable[tuple[Any, str]],
        bounds: Sequence[Bound],
    ):
        self._sized = list(sized)
        self._lengths = list(map(len, self._sized))
        self._pinned, self._of_dicts, slots = [], [], list(slots)
        for container in containers:
            values = container.values()
            if all(isinstance(value, dict) for value in values):
                self._of_dicts.append(container)
            elif all(value is None or isinstance(value, _PINNED) for value in values):
                self._pinned.append(container)
            else:
                slots += ((container, key) for key in container)
        self._values = list(_values_of(self._pinned))
        self._dicts = list(_values_of(self._of_dicts))
        self._slots = [(c, key, _pinned(c, key)) for c, key in slots]
        self._attributes = [(o, name, getattr(o, name)) for o, name in attributes]
        self._bounds = [(bound.spec, bound.replaceable) for bound in bounds]
        self._tensors = [bound.local for bound in bounds]
        index_of = {id(tensor): index for index, tensor in enumerate(self._tensors)}
        self._index_of_value = [index_of.get(id(value)) for value in self._values]
        self._index_of_slot = [index_of.get(id(value)) for _, _, value in self._slots]
        self._pointers = list(map(_POINTER, self._tensors))
        self._formed = [bound.local for bound in bounds if not bound.replaceable]
        self._strides = list(map(_STRIDES, self._formed))
        self._sizes = list(map(_SIZES, self._formed))
        self._storages = _storage_references(self._tensors)

    def unchanged(self) -> bool:
        return (
            self._same_places()
            and all(map(operator.is_, _values_of(self._pinned), self._values))
            and all(_pinned(c, key) is value for c, key, value in self._slots)
            and list(map(_POINTER, self._tensors)) == self._pointers
            and self._same_forms()
        )

    def follow(self) -> dict[str, int] | None:
        """The addresses of tensors that lie elsewhere now, by name; from then on they are expected.

        These are tensors whose memory was moved, and state of an optimizer that was replaced by
        tensors of the same kind. None if more than that has changed.
        """
        if not self._same_places() or not self._same_forms():
            return None
        values = self._replaced(_values_of(self._pinned), self._values, self._index_of_value)
        live = (_pinned(container, key) for container, key, _ in self._slots)
        slots = self._replaced(live, [known for _, _, known in self._slots], self._index_of_slot)
        if values is None or slots is None:
            return None
        tensors = list(self._tensors)
        for index, tensor in (values | slots).values():
            tensors[index] = tensor
        moved = [i for i, p in enumerate(map(_POINTER, tensors)) if p != self._pointers[i]]
        if not all(fits(self._bounds[index][0], tensors[index]) for index in moved):
            return None
        for place, (_, tensor) in values.items():
            self._values[place] = tensor
        for place, (_, tensor) in slots.items():
            self._slots[place] = (*self._slots[place][:2], tensor)
        self._tensors = tensors
        for index in moved:
            self._pointers[index] = tensors[index].data_ptr()
            if self._storages is not None:
                self._storages[index] = weakref.ref(tensors[index].untyped_storage())
        return {self._bounds[index][0].name: self._pointers[index] for index in moved}

    def memory(self) -> list[Any]:
        """References that keep the memory of the tensors valid, whatever happens to the tensors.

        To be called when `unchanged` has said so.
        """
        if self._storages is None:
            return list(map(_STORAGE, self._tensors))
        return list(map(_CALL, self._storages))

    def _same_places(self) -> bool:
        return (
            list(map(len, self._sized)) == self._lengths
            and all(map(operator.is_, _values_of(self._of_dicts), self._dicts))
            and all(getattr(o, name) is value for o, name, value in self._attributes)
        )

    def _same_forms(self) -> bool:
        return (
            list(map(_STRIDES, self._formed)) == self._strides
            and list(map(_SIZES, self._formed)) == self._sizes
        )

    def _replaced(
        self, live: Iterable[Any], known: Iterable[Any], index_of: list[int | None]
    ) -> dict[int, tuple[int, torch.Tensor]] | None:
        """The tensors that stand for others of their kind, with these' index, by their place."""
        found = {}
        for place, (value, expected) in enumerate(zip(live, known)):
            if value is expected:
                continue
            index = index_of[place]
            if index is None or not self._bounds[index][1]:
                return None
            if not isinstance(value, torch.Tensor) or not fits(self._bounds[index][0], value):
                return None
            found[place] = index, value
        return found


def _values_of(containers: Iterable[dict]) -> Iterable[Any]:
    return itertools.chain.from_iterable(map(dict.values, containers))


def _storage_references(tensors: list[torch.Tensor]) -> list[Callable[[], Any]] | None:
    """Weak references to the storages: to follow one takes a fraction of asking the tensor for it.

    None where torch makes another object each time that it is asked.
    """
    references = [weakref.ref(tensor.untyped_storage()) for tensor in tensors]
    return None if any(reference() is None for reference in references) else references


def _pinned(container: dict, key: str) -> Any:
    value = container.get(key)
    return value if isinstance(value, _PINNED) else None
