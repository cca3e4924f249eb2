"""Whether values that ranks stored are alike: of the same types, with the same bits.

Python's == would not do. It has no answer for tensors and arrays; to it NaN is not itself; and 1,
1.0 and True are equal to it, as 0.0 and -0.0 are, though training goes on from each in another way.
"""

import collections
import io
import struct
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

_BY_VALUE = (int, bool, str, bytes, bytearray, type(None), range, torch.device, torch.dtype)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType)


def alike(a: Any, b: Any) -> bool:
    return _Comparison().alike(a, b)


def unlike_first(values: Sequence[Any]) -> list[int]:
    """The places of the values that are not like the first, such as ranks."""
    return [place for place, value in enumerate(values) if not alike(values[0], value)]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of two tensors in memory of the host; they may lie in it in different orders."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(bits(a), bits(b))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers, in the same memory."""
    tensor = tensor.detach()
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return parts.view(_INTEGERS[parts.element_size()])


class _Comparison:
    """Compares each pair of objects once: what contains itself comes to an end, and what is shared
    costs no more than its size."""

    def __init__(self):
        self._pairs: set[tuple[int, int]] = set()
        self._kept: list[Any] = []  # an id stands for an object only while it lives

    def alike(self, a: Any, b: Any) -> bool:
        kind = type(a)
        if kind is not type(b):
            return False
        if a is b:
            return True
        if kind in _BY_VALUE:
            return a == b
        if isinstance(a, _BY_IDENTITY):
            return False
        if kind is float:
            return struct.pack("<d", a) == struct.pack("<d", b)
        if kind is complex:
            return self._all_alike((a.real, a.imag), (b.real, b.imag))
        if (id(a), id(b)) in self._pairs:
            return True
        self._pairs.add((id(a), id(b)))
        self._kept += [a, b]
        return self._parts_alike(kind, a, b)

    def _parts_alike(self, kind: type, a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return same_bytes(a, b)
        if _is_numpy(a):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if kind in (list, tuple, torch.Size):
            return self._all_alike(a, b)
        if kind is collections.deque:
            return a.maxlen == b.maxlen and self._all_alike(a, b)
        if kind in (dict, collections.Counter):
            return self._same_items(a, b)
        if kind is collections.OrderedDict:
            return self._all_alike(list(a), list(b)) and self._same_items(a, b)
        if kind is collections.defaultdict:
            return a.default_factory is b.default_factory and self._same_items(a, b)
        if kind in (set, frozenset):
            return self._same_keys(a, b)
        if kind is slice:
            return self._all_alike((a.start, a.stop, a.step), (b.start, b.stop, b.step))
        if kind is io.BytesIO:
            return (a.getvalue(), a.tell()) == (b.getvalue(), b.tell())
        return self._all_alike(_parts(a), _parts(b))

    def _all_alike(self, a: Any, b: Any) -> bool:
        return len(a) == len(b) and all(map(self.alike, a, b))

    def _same_keys(self, a: Any, b: Any) -> bool:
        """Equal keys of different types find each other: 1 and True."""
        theirs = {key: key for key in b}
        return len(a) == len(b) and all(
            key in theirs and self.alike(key, theirs[key]) for key in a
        )

    def _same_items(self, a: dict, b: dict) -> bool:
        return self._same_keys(a, b) and all(self.alike(a[key], b[key]) for key in a)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _parts(value: Any) -> list[Any]:
    """What pickle would make an object of a class of the user's from."""
    reduced = value.__reduce_ex__(5)
    if isinstance(reduced, str):
        return [reduced]
    function, arguments, *rest = reduced
    state, items, pairs = [*rest, None, None, None][:3]
    return [
        function,
        arguments,
        state,
        None if items is None else list(items),
        None if pairs is None else list(pairs),
    ]
