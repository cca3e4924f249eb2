"""Pickles whose reading runs no code but ours and that of the classes the user names.

What is stored passes through the memory of other processes and nodes. So the writer stores plain
containers, numbers, strings, bytes, tensors, NumPy arrays and the classes named, and refuses all
else while it can still be mended; and the reader knows no other, whatever the bytes say: the one
global in a pickle is `make`, and what it makes is named by a string.
"""

import collections
import copyreg
import ctypes
import enum
import io
import math
import pickle
import pickletools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from unreft.errors import DataLoss, FailedPrecondition, InvalidArgument
from unreft.torch.device_extras import DeviceExtras, tensor_of


class Classes:
    """Those that the user names, beside what is always stored."""

    def __init__(self, kinds: Iterable[type] = ()):
        """Raises `InvalidArgument` for what is no class, and for two of one name."""
        self.by_name: dict[str, type] = {}
        for kind in kinds:
            if not isinstance(kind, type):
                raise InvalidArgument(f"extras_classes: needed classes, found {kind!r}")
            if self.by_name.setdefault(_name_of(kind), kind) is not kind:
                raise InvalidArgument(f"extras_classes: two classes are named {_name_of(kind)}")

    def has(self, kind: type) -> bool:
        return self.by_name.get(_name_of(kind)) is kind


_NONE_NAMED = Classes()


def dumps(value: Any, aside: DeviceExtras | None = None, classes: Classes = _NONE_NAMED) -> bytes:
    """`aside`: takes the tensors that are on a device; without it they are copied to the host.

    Raises `InvalidArgument`, naming the class, for what cannot be stored.
    """
    buffer = io.BytesIO()
    _Writer(buffer, aside, classes).dump(value)
    return buffer.getvalue()


def loads(data: bytes, staged: torch.Tensor | None = None, classes: Classes = _NONE_NAMED) -> Any:
    """`staged`: what was stored of the tensors that were taken aside.

    Raises `DataLoss` for bytes that `dumps` has not written, `FailedPrecondition` for a class that
    is not among `classes`.
    """
    try:
        _check_opcodes(data)
        return _Reader(io.BytesIO(data), staged, classes).load()
    except (DataLoss, FailedPrecondition):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise DataLoss(f"extras: {len(data)} bytes are not what was stored: {what}") from error


def make(kind: str, *arguments: Any) -> Any:
    """What stands for `kind` in a pickle; the reader puts its own in this place."""
    raise NotImplementedError(kind)


class _Writer(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, aside: DeviceExtras | None, classes: Classes):
        super().__init__(buffer, protocol=5)
        self._aside = aside
        self._classes = classes

    def reducer_override(self, value: Any) -> Any:
        """Of whatever is not an exact plain type of Python's."""
        if value is make:
            return NotImplemented  # as a global
        if not isinstance(value, torch.Tensor) and self._classes.has(type(value)):
            return _reduced_instance(value)
        found = reduced(value, self._aside)
        if found is None:
            raise InvalidArgument(
                f"extras: {described(value)} cannot be stored: plain containers, numbers, strings, "
                "bytes, tensors and NumPy arrays can, and classes that attach(extras_classes=[...])"
                " names. Give its parts, such as its state_dict(), or name its class"
            )
        return found


def reduced(value: Any, aside: DeviceExtras | None) -> tuple | None:
    """As `__reduce__` returns it, with `make` for the function; None for what is not stored."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        place = None if aside is None else aside.take(value)
        return _reduced_tensor(value) if place is None else (make, ("aside", *place))
    if reduce := _REDUCED.get(kind):
        return reduce(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray or _is_number(numpy, value):
        return _reduced_array(numpy, value)
    return None


def maker(staged: torch.Tensor | None) -> "_Make":
    """What makes that which `reduced` has taken apart."""
    return _Make(staged, _NONE_NAMED)


def _reduced_tensor(tensor: torch.Tensor) -> tuple:
    if is_traceable_wrapper_subclass(tensor) or tensor.layout != torch.strided:
        raise InvalidArgument(
            f"extras: a {type(tensor).__name__} of shape {tuple(tensor.shape)} and layout "
            f"{tensor.layout} is not supported: store its parts, such as to_local()"
        )
    # A lazily conjugated or negated view has other bytes than values.
    whole = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    data = ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""
    return make, ("tensor", _dtype_name(whole.dtype), tuple(whole.shape), data)


def _is_number(numpy: Any, value: Any) -> bool:
    return numpy is not None and isinstance(value, numpy.generic)


def _reduced_array(numpy: Any, value: Any) -> tuple:
    if value.dtype.hasobject:
        raise InvalidArgument(
            f"extras: a NumPy {type(value).__name__} of dtype {value.dtype} holds Python objects "
            "and cannot be stored: make it a list"
        )
    kind = "array" if isinstance(value, numpy.ndarray) else "number"
    return make, (kind, numpy.lib.format.dtype_to_descr(value.dtype), value.shape, value.tobytes())


def _reduced_instance(value: Any) -> tuple:
    """Of a class that was named: as pickle does it, but the class is named by a string."""
    kind = type(value)
    if isinstance(value, enum.Enum):  # pickle's way differs from release to release
        return make, ("called", _name_of(kind), value.value)
    reduced = value.__reduce_ex__(5)
    function, arguments, *rest = reduced if isinstance(reduced, tuple) else (None, ())
    if function is copyreg.__newobj__ and arguments[0] is kind:
        return make, ("new", _name_of(kind), *arguments[1:]), *rest
    if function is kind:
        return make, ("called", _name_of(kind), *arguments), *rest
    raise InvalidArgument(
        f"extras: {described(value)} cannot be stored, although its class is named: it is pickled "
        f"by {reduced if function is None else function!r}. Give its parts"
    )


def _reduced_default_dict(value: collections.defaultdict) -> tuple:
    factory = value.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise InvalidArgument(
            f"extras: a defaultdict of {factory!r} cannot be stored: of "
            f"{', '.join(_FACTORIES)} it can. Give dict(it)"
        )
    name = None if factory is None else factory.__name__
    return make, ("defaultdict", name), None, None, iter(value.items())


_FACTORIES = {kind.__name__: kind for kind in (int, float, str, bytes, list, dict, set, tuple)}
_REDUCED: dict[type, Callable[[Any], tuple]] = {
    collections.Counter: lambda it: (make, ("Counter", dict(it))),
    collections.OrderedDict: lambda it: (make, ("OrderedDict",), None, None, iter(it.items())),
    collections.defaultdict: _reduced_default_dict,
    collections.deque: lambda it: (make, ("deque", it.maxlen), None, iter(it)),
    complex: lambda it: (make, ("complex", it.real, it.imag)),
    range: lambda it: (make, ("range", it.start, it.stop, it.step)),
    slice: lambda it: (make, ("slice", it.start, it.stop, it.step)),
    io.BytesIO: lambda it: (make, ("BytesIO", it.getvalue(), it.tell())),
    torch.Size: lambda it: (make, ("Size", tuple(it))),
    torch.device: lambda it: (make, ("device", str(it))),
    torch.dtype: lambda it: (make, ("dtype", _dtype_name(it))),
}


# Those that the writer uses. Others name globals in other ways, or take memory that no data needs.
_OPCODES = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT "
    "SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 "
    "EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS "
    "EMPTY_SET ADDITEMS FROZENSET MEMOIZE BINGET LONG_BINGET POP POP_MARK STACK_GLOBAL REDUCE "
    "BUILD".split()
)


def _check_opcodes(data: bytes) -> None:
    for opcode, _, at in pickletools.genops(data):
        if opcode.name not in _OPCODES:
            raise DataLoss(
                f"extras: byte {at} of {len(data)} stored is the pickle's {opcode.name}, which "
                "Unreft does not write: another release wrote it, or somebody else"
            )


class _Reader(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, staged: torch.Tensor | None, classes: Classes):
        super().__init__(buffer)
        self._make = _Make(staged, classes)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (make.__module__, make.__name__):
            return self._make
        raise DataLoss(
            f"extras: what was stored names {module}.{name}, which Unreft does not store: another "
            "release wrote it, or somebody else"
        )


class _Make:
    """Has no attribute that a pickle could set."""

    __slots__ = ("_staged", "_classes")

    def __init__(self, staged: torch.Tensor | None, classes: Classes):
        object.__setattr__(self, "_staged", staged)
        object.__setattr__(self, "_classes", classes)

    def __setattr__(self, name: str, value: Any) -> None:
        raise DataLoss(f"extras: what was stored sets an attribute {name!r}")

    def __call__(self, kind: str, *arguments: Any) -> Any:
        if kind in ("new", "called"):
            name, *arguments = arguments
            if name not in self._classes.by_name:
                raise FailedPrecondition(
                    f"extras: a {name} was stored, and is not named now: needed "
                    f"attach(extras_classes=[{name.rpartition('.')[2]}])"
                )
            made = self._classes.by_name[name]
            return made.__new__(made, *arguments) if kind == "new" else made(*arguments)
        if kind == "aside":
            return _taken_aside(self._staged, *arguments)
        if kind not in _MADE:
            raise DataLoss(f"extras: what was stored has a {kind!r}, which Unreft does not know")
        return _MADE[kind](*arguments)


def _tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    """In memory of the host."""
    kind = _dtype(dtype)
    if type(data) is not bytes or _bytes_of(kind, shape) != len(data):
        raise DataLoss(f"extras: a tensor of {kind} {shape}: {len(data)} bytes were stored")
    tensor = torch.empty(shape, dtype=kind, device="cpu")
    ctypes.memmove(tensor.data_ptr(), data, len(data))
    return tensor


def _taken_aside(staged: torch.Tensor | None, dtype: str, shape: Any, offset: int) -> torch.Tensor:
    if staged is None:
        raise FailedPrecondition("extras: the tensors that were on a device are not stored")
    size = _bytes_of(_dtype(dtype), shape)
    if not 0 <= offset <= len(staged) - size:
        raise DataLoss(
            f"extras: {size} bytes at {offset} of the {len(staged)} that were stored from a device"
        )
    return tensor_of(staged, dtype, shape, offset)


def _bytes_of(dtype: torch.dtype, shape: Any) -> int:
    if type(shape) is not tuple or any(type(size) is not int or size < 0 for size in shape):
        raise DataLoss(f"extras: a tensor of shape {shape!r}")
    return math.prod(shape) * dtype.itemsize


def _array(descr: Any, shape: tuple[int, ...], data: bytes) -> Any:
    import numpy

    flat = numpy.frombuffer(data, dtype=numpy.lib.format.descr_to_dtype(descr))
    return flat.reshape(shape).copy()


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise DataLoss(f"extras: {name!r} for a dtype of torch")
    return dtype


def _bytes_io(data: bytes, position: int) -> io.BytesIO:
    stream = io.BytesIO(data)
    stream.seek(position)
    return stream


_MADE: dict[str, Callable[..., Any]] = {
    "tensor": _tensor,
    "array": _array,
    "number": lambda *stored: _array(*stored)[()],
    "Counter": collections.Counter,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda name: collections.defaultdict(name and _FACTORIES[name]),
    "deque": lambda length_max: collections.deque(maxlen=length_max),
    "complex": complex,
    "range": range,
    "slice": slice,
    "BytesIO": _bytes_io,
    "Size": torch.Size,
    "device": torch.device,
    "dtype": _dtype,
}


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def described(value: Any) -> str:
    if isinstance(value, type) or callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__} itself"
    return f"a {_name_of(type(value))}"
