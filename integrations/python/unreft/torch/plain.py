"""Plain values as bytes, and back: a small typed encoding, docs/formats/extras.md.

Of optimizers, random streams and places in a mesh, which Unreft itself understands: so other
programs can read them, and to read them runs no code but what is here. Numbers come back with their
bits, and every value with its type.
"""

import functools
import itertools
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from unreft.errors import DataLoss, FailedPrecondition, InvalidArgument
from unreft.torch import safe_pickle
from unreft.torch.device_extras import DeviceExtras

DEPTH_MAX = 32  # of containers in each other

_COUNT = struct.Struct("<cI")
_INT = struct.Struct("<cq")
_FLOAT = struct.Struct("<cd")


class Encoded(bytes):
    """What `dumps` has made, to be put into a larger value as it is."""


def dumps(value: Any, aside: DeviceExtras | None = None) -> Encoded:
    """`aside`: takes the tensors that are on a device, as of `safe_pickle.dumps`.

    Raises `InvalidArgument`, naming the class, for what has no encoding.
    """
    parts: list[bytes] = []
    _Encoder(parts.append, aside).put([value], 0)
    return Encoded(b"".join(parts))


def loads(data: bytes, staged: torch.Tensor | None = None) -> Any:
    """`staged`: as of `safe_pickle.loads`. Raises `DataLoss` for what `dumps` has not made."""
    decoder = _Decoder(data, staged)
    try:
        value = decoder.value(0)
    except (DataLoss, FailedPrecondition):
        raise
    except Exception as error:
        raise decoder.lost(f"{type(error).__name__}: {error}") from error
    if decoder.at != len(data):
        raise decoder.lost("more bytes than one value has")
    return value


class _Encoder:
    def __init__(self, add: Callable[[bytes], Any], aside: DeviceExtras | None):
        self._add = add
        self._aside = aside

    def put(self, values: Iterable[Any], depth: int) -> None:
        """By exact type: what derives from one of these is something else."""
        for value in values:
            if encode := _ENCODED.get(type(value)):
                self._add(encode(value))
            else:
                self._container(type(value), value, depth + 1)

    def _container(self, kind: type, value: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise InvalidArgument(
                f"extras: containers more than {DEPTH_MAX} deep, or one that contains itself, "
                "cannot be stored"
            )
        if kind is dict:
            self._add(_COUNT.pack(b"d", len(value)))
            self.put(itertools.chain.from_iterable(value.items()), depth)
        elif tag := _LISTS.get(kind):
            self._add(_COUNT.pack(tag, len(value)))
            self.put(value, depth)
        else:
            made, items, pairs = self._reduced(value)
            self._add(b"m")
            self.put((made, items, pairs), depth)

    def _reduced(self, value: Any) -> tuple[tuple, list, dict]:
        found = safe_pickle.reduced(value, self._aside)
        if found is None:
            raise InvalidArgument(
                f"extras: {safe_pickle.described(value)} cannot be stored beside an optimizer's "
                "tensors: plain containers, numbers, strings, bytes, tensors and NumPy arrays can. "
                "Give its parts, or keep it among `extras`"
            )
        _, arguments, *rest = found
        items, pairs = [*rest, None, None, None][1:3]
        return arguments, list(items or ()), dict(pairs or ())


@functools.lru_cache(maxsize=1024)  # mostly the same keys, at every snapshot
def _string(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return _COUNT.pack(b"s", len(data)) + data


def _int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return _INT.pack(b"i", value)
    size = value.bit_length() // 8 + 1
    return _COUNT.pack(b"I", size) + value.to_bytes(size, "little", signed=True)


_ENCODED: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _int,
    float: functools.partial(_FLOAT.pack, b"f"),
    str: _string,
    bytes: lambda value: _COUNT.pack(b"b", len(value)) + value,
    bytearray: lambda value: _COUNT.pack(b"B", len(value)) + value,
    Encoded: lambda value: value,
}
_LISTS = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z"}


class _Decoder:
    def __init__(self, data: bytes, staged: torch.Tensor | None):
        self._data = data
        self._make = safe_pickle.maker(staged)
        self.at = 0

    def lost(self, why: str) -> DataLoss:
        return DataLoss(f"extras: byte {self.at} of {len(self._data)} stored: {why}")

    def value(self, depth: int) -> Any:
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"i":
            return int.from_bytes(self._take(8), "little", signed=True)
        if tag == b"f":
            return _FLOAT.unpack(tag + self._take(8))[1]
        if tag in _SIZED:
            return _SIZED[tag](self._take(self._count()))
        if depth >= DEPTH_MAX:
            raise self.lost(f"containers more than {DEPTH_MAX} deep")
        if tag in _OF_LISTS:
            return self._list(_OF_LISTS[tag], depth + 1)
        if tag == b"d":
            return self._dict(depth + 1)
        if tag == b"m":
            return self._made(depth + 1)
        raise self.lost(f"the tag {tag!r} is not known")

    def _list(self, kind: type, depth: int) -> Any:
        count = self._count()
        found = kind([self.value(depth) for _ in range(count)])
        if len(found) != count:
            raise self.lost("a set has an element twice")
        return found

    def _dict(self, depth: int) -> dict:
        count = self._count()
        found = {}
        for _ in range(count):
            key = self.value(depth)
            found[key] = self.value(depth)
        if len(found) != count:
            raise self.lost("a dict has a key twice")
        return found

    def _made(self, depth: int) -> Any:
        arguments, items, pairs = self.value(depth), self.value(depth), self.value(depth)
        if (type(arguments), type(items), type(pairs)) != (tuple, list, dict):
            raise self.lost("what is said of an object says nothing")
        made = self._make(*arguments)
        if items and type(made) is not deque or pairs and type(made) not in _WITH_PAIRS:
            raise self.lost(f"a {type(made).__name__} has neither items nor pairs")
        if items:
            made.extend(items)
        if pairs:
            made.update(pairs)
        return made

    def _count(self) -> int:
        """Of bytes, or of values, which have a byte each: so no count asks for memory."""
        count = int.from_bytes(self._take(4), "little")
        if count > len(self._data) - self.at:
            raise self.lost(f"{count} of {len(self._data) - self.at} bytes that are left")
        return count

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise self.lost("the bytes end within a value")
        taken = self._data[self.at : end]
        self.at = end
        return taken


_WITH_PAIRS = (OrderedDict, defaultdict)
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_OF_LISTS = {tag: kind for kind, tag in _LISTS.items()}
_SIZED: dict[bytes, Callable[[bytes], Any]] = {
    b"s": lambda data: data.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"B": bytearray,
    b"I": lambda data: int.from_bytes(data, "little", signed=True),
}
