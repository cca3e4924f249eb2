"""The C ABI of libunreft by ctypes: one binding for every CPython from 3.10 on.

Calls release the interpreter lock, no lock is held while a call waits for the interpreter's, and in
a forked child no lock is taken.
"""

from __future__ import annotations

import array
import ctypes
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from unreft import _waiting, errors

PYTHON_MIN = (3, 10)
LIBRARY = "libunreft.so"
_NO_STEP = 2**64 - 1
_STARTED, _SKIPPED = 1, 2
_FAILED_PRECONDITION, _INVALID_ARGUMENT, _FORKED = 9, 3, 100


class _OpenOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("socket", ctypes.c_char_p),
        ("job", ctypes.c_char_p),
        ("rank", ctypes.c_int64),
        ("world", ctypes.c_int64),
        ("attempt", ctypes.c_int64),
        ("connect_timeout_ms", ctypes.c_int64),
        ("restore_timeout_ms", ctypes.c_int64),
        ("fence_timeout_ms", ctypes.c_int64),
        ("device_checksum", ctypes.c_int32),
        ("keep_waiting", _waiting.KEEP_WAITING),
        ("keep_waiting_context", ctypes.c_void_p),
        ("any_world", ctypes.c_int32),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("global_shape", ctypes.POINTER(ctypes.c_uint64)),
        ("offset", ctypes.POINTER(ctypes.c_uint64)),
        ("extent", ctypes.POINTER(ctypes.c_uint64)),
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("replica_index", ctypes.c_uint32),
        ("replica_count", ctypes.c_uint32),
        ("is_volatile", ctypes.c_int32),
        ("memory_order", ctypes.POINTER(ctypes.c_uint32)),
        ("range", ctypes.POINTER(ctypes.c_uint64)),
    ]


def timeline_number(timeline: int) -> int:
    """What messages call a timeline. There may be two of one number, which are not equal."""
    return timeline >> 32 or timeline


class _Decision(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("restored", ctypes.c_int32),
        ("step", ctypes.c_uint64),
        ("timeline", ctypes.c_uint64),
        ("new_timeline", ctypes.c_uint64),
        ("tensors", ctypes.c_void_p),
        ("tensor_count", ctypes.c_size_t),
        ("extras", ctypes.c_void_p),
        ("extras_bytes", ctypes.c_size_t),
        ("tensor_bytes", ctypes.c_size_t),
        ("source_world", ctypes.c_uint64),
    ]


class _Status(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("connected", ctypes.c_int32),
        ("ready", ctypes.c_int32),
        ("timeline", ctypes.c_uint64),
        ("last_captured_step", ctypes.c_uint64),
        ("last_sealed_step", ctypes.c_uint64),
        ("last_committed_step", ctypes.c_uint64),
        ("snapshots_started", ctypes.c_uint64),
        ("snapshots_skipped", ctypes.c_uint64),
        ("snapshots_given_up", ctypes.c_uint64),
        ("bytes_captured", ctypes.c_uint64),
        ("last_fence_wait_s", ctypes.c_double),
        ("total_fence_wait_s", ctypes.c_double),
        ("last_problem", ctypes.c_char_p),
        ("copying", ctypes.c_int32),
        ("copier", ctypes.c_char_p),
        ("protecting", ctypes.c_int32),
        ("seconds_since_commit", ctypes.c_double),
        ("why_unprotected", ctypes.c_char_p),
        ("unsampled", ctypes.c_char_p),
    ]


_TEXTS = ("last_problem", "copier", "why_unprotected", "unsampled")


def _load() -> ctypes.CDLL:
    if sys.version_info < PYTHON_MIN:
        needed, found = (".".join(map(str, v[:2])) for v in (PYTHON_MIN, sys.version_info))
        raise ImportError(f"unreft needs CPython {needed} or later, found {found}")
    here = pathlib.Path(os.path.abspath(__file__))  # a link to it counts as where it lies
    # In a wheel or a build directory, in a bundle, in an installed tree.
    above = here.parents[2]
    places = [here.with_name(LIBRARY), above / "lib" / LIBRARY, above / LIBRARY]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        raise ImportError(
            f"no {LIBRARY}: looked for {', '.join(map(str, places))}; install the wheel (`pip "
            "install .` in the source tree), or run `make programs` there and set PYTHONPATH to "
            "build/release/python"
        )
    try:
        # Its dependencies are found beside the file itself, not beside a link to it.
        library = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded on this machine: {error}") from error
    _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    number, step = ctypes.c_int64, ctypes.c_uint64
    for name, result, arguments in (
        ("version", text, []),
        ("error", text, []),
        ("open_options_init", None, [pointer]),
        ("open", ctypes.c_int, [pointer, pointer]),
        ("close", None, [pointer]),
        ("restore_begin", ctypes.c_int, [pointer, pointer]),
        ("restore_read", ctypes.c_int, [pointer, pointer, size]),
        ("restore_extras", ctypes.c_int, [pointer, step, pointer, pointer]),
        ("restore_end", ctypes.c_int, [pointer]),
        ("register", ctypes.c_int, [pointer, pointer, size, step]),
        ("rebind", ctypes.c_int, [pointer, pointer, pointer, size]),
        ("register_within", ctypes.c_int, [pointer, pointer, size, step, number]),
        ("snapshot", ctypes.c_int, [pointer, step, text, size, pointer, pointer]),
        ("fence", ctypes.c_int, [pointer, pointer]),
        ("get_status", ctypes.c_int, [pointer, pointer]),
        ("wait_ready", ctypes.c_int, [pointer, number]),
        ("wait_committed", ctypes.c_int, [pointer, step, number]),
        ("ever_committed", ctypes.c_int, [pointer, pointer]),
    ):
        function = getattr(library, f"unreft_{name}")
        function.restype, function.argtypes = result, arguments


_library = _load()


def _whole(value: Any, bits: int, what: str, signed: bool = False) -> int:
    """As C will have it: ctypes itself would cut it short."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{what}: needed a whole number, found {value!r}")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if not low <= value.__index__() < high:
        raise TypeError(f"{what}: needed a number from {low} to {high - 1}, found {value}")
    return value.__index__()


def _numbers(values: Any, what: str) -> tuple[Any, int]:
    """Its numbers where they lie, for a buffer of unsigned 64-bit ones; else a copy of them."""
    if not (isinstance(values, array.array) and values.typecode == "Q"):
        try:
            values = array.array("Q", values)
        except (OverflowError, TypeError) as error:
            needed = f"whole numbers from 0 to {2**64 - 1}"
            raise TypeError(f"{what}: needed {needed}: {error}") from None
    return (ctypes.c_uint64 * len(values)).from_buffer(values), len(values)


def _text(value: str | None, what: str) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what}: needed a str, found {value!r}")
    return value.encode()


class _TensorArray:
    """An array of the C ABI; owns what its pointers point to, but not `data`."""

    def __init__(self, tensors: Sequence[Any]):
        self._kept: list[_Tensor] = []  # each keeps what it points to
        self._count = len(tensors)
        self.array = ctypes.create_string_buffer(_TENSOR_DEFAULTS * self._count)
        for index, tensor in enumerate(tensors):
            at = index * len(_TENSOR_DEFAULTS)
            self._kept.append(_Tensor.from_buffer(self.array, at))
            self._fill(self._kept[-1], tensor)

    def __len__(self) -> int:
        return self._count

    def _fill(self, target: _Tensor, tensor: Any) -> None:
        name = tensor.name
        target.name = _text(name, "name")
        target.dtype = _whole(tensor.dtype, 32, f"tensor '{name}': dtype", signed=True)
        target.dims = len(tensor.global_shape)
        for attribute in ("global_shape", "offset", "extent"):
            numbers = list(getattr(tensor, attribute))
            if len(numbers) != target.dims:
                raise errors.from_code(
                    _INVALID_ARGUMENT,
                    f"tensor '{name}': global_shape has {target.dims} dimensions, {attribute} has "
                    f"{len(numbers)}",
                )
            whole = [_whole(n, 64, f"tensor '{name}': {attribute}") for n in numbers]
            setattr(target, attribute, (ctypes.c_uint64 * len(whole))(*whole))
        target.data = _whole(tensor.data, 64, f"tensor '{name}': data")
        for field, attribute, signed in (
            ("device_kind", "device", True),
            ("device_index", "device_index", True),
            ("replica_index", "replica_index", False),
            ("replica_count", "replica_count", False),
        ):
            value = getattr(tensor, attribute)
            setattr(target, field, _whole(value, 32, f"tensor '{name}': {attribute}", signed))
        target.is_volatile = 1 if tensor.volatile else 0
        if tensor.memory_order is not None:
            target.memory_order = _memory_order(tensor)
        if tensor.range is not None:
            target.range = _range(tensor)


def _memory_order(tensor: Any) -> Any:
    what = f"tensor '{tensor.name}': memory_order"
    order = [_whole(dim, 32, what) for dim in tensor.memory_order]
    if len(order) != len(tensor.global_shape):
        raise errors.from_code(
            _INVALID_ARGUMENT,
            f"{what} has {len(order)} dimensions, global_shape has {len(tensor.global_shape)}",
        )
    return (ctypes.c_uint32 * len(order))(*order)


def _range(tensor: Any) -> Any:
    what = f"tensor '{tensor.name}': range"
    numbers = [_whole(n, 64, what) for n in tensor.range]
    if len(numbers) != 2:
        raise errors.from_code(
            _INVALID_ARGUMENT, f"{what} needs 2 numbers, begin and end, found {len(numbers)}"
        )
    return (ctypes.c_uint64 * 2)(*numbers)


def _described(decision: _Decision) -> list[tuple]:
    found = []
    at = decision.tensors
    for _ in range(decision.tensor_count):
        tensor = _Tensor.from_address(at)
        boxes = [
            tuple(numbers[: tensor.dims]) if tensor.dims else ()
            for numbers in (tensor.global_shape, tensor.offset, tensor.extent)
        ]
        order = tuple(tensor.memory_order[: tensor.dims]) if tensor.memory_order else None
        found.append((tensor.name.decode(), tensor.dtype, *boxes, order))
        at += tensor.struct_bytes
    return found


def _bytes_at(address: int | None, size: int) -> bytes | None:
    return None if address is None else ctypes.string_at(address, size)


def _step_or_none(step: int) -> int | None:
    return None if step == _NO_STEP else step


def version() -> str:
    return _library.unreft_version().decode()


def _defaults(name: str, struct: type[ctypes.Structure]) -> bytes:
    """The struct as the library initialises it."""
    room = ctypes.create_string_buffer(ctypes.sizeof(struct))
    try:
        getattr(_library, f"unreft_{name}_init_sized")(room, ctypes.c_size_t(len(room)))
    except AttributeError:
        raise ImportError(f"{LIBRARY} {version()} is older than this package") from None
    return room.raw


_OPTIONS_DEFAULTS = _defaults("open_options", _OpenOptions)
_TENSOR_DEFAULTS = _defaults("tensor", _Tensor)


class Client:
    """Thread-safe: one turn for the calls of training, one for the status. `close` ends waits."""

    def __init__(
        self,
        *,
        socket: str | None,
        job: str | None,
        rank: int,
        world: int,
        attempt: int,
        connect_timeout_ms: int,
        restore_timeout_ms: int,
        fence_timeout_ms: int,
        device_checksum: int,
        any_world: int,
    ):
        self._client: ctypes.c_void_p | None = None
        self._pid = os.getpid()
        self._turn = _waiting.Turn()
        self._status_turn = _waiting.Turn()
        self._waits = _waiting.Waits()
        room = ctypes.create_string_buffer(_OPTIONS_DEFAULTS)
        options = _OpenOptions.from_buffer(room)
        options.socket, options.job = _text(socket, "socket"), _text(job, "job")
        for name, value in (
            ("rank", rank),
            ("world", world),
            ("attempt", attempt),
            ("connect_timeout_ms", connect_timeout_ms),
            ("restore_timeout_ms", restore_timeout_ms),
            ("fence_timeout_ms", fence_timeout_ms),
        ):
            setattr(options, name, _whole(value, 64, name, signed=True))
        options.device_checksum = _whole(device_checksum, 32, "device_checksum", signed=True)
        options.any_world = _whole(any_world, 32, "any_world", signed=True)
        options.keep_waiting = self._waits.keep_waiting
        client = ctypes.c_void_p()
        try:
            self._waits.run(lambda: _check(_library.unreft_open(room, ctypes.byref(client))))
        finally:
            self._client = client if client.value else None  # also when the wait was interrupted

    def __del__(self):
        self.close()

    def restore_begin(self) -> dict[str, Any]:
        decision = _Decision(
            struct_bytes=ctypes.sizeof(_Decision), tensor_bytes=ctypes.sizeof(_Tensor)
        )
        at = ctypes.byref(decision)
        self._wait(lambda: _library.unreft_restore_begin(self._client, at))
        # The next call of the kind comes from the same thread: the pointers are good until then.
        return {
            "restored": decision.restored != 0,
            "step": decision.step,
            "timeline": decision.timeline,
            "new_timeline": decision.new_timeline,
            "source_world": decision.source_world,
            "tensors": _described(decision),
            "extras": _bytes_at(decision.extras, decision.extras_bytes),
        }

    def restore_extras(self, rank: int) -> bytes | None:
        number = _whole(rank, 64, "rank")
        at, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._wait(
            lambda: _library.unreft_restore_extras(
                self._client, number, ctypes.byref(at), ctypes.byref(size)
            )
        )
        return _bytes_at(at.value, size.value)

    def restore_read(self, tensors: Sequence[Any]) -> None:
        held = _TensorArray(tensors)
        self._wait(lambda: _library.unreft_restore_read(self._client, held.array, len(held)))

    def restore_end(self) -> None:
        self._call(lambda: _library.unreft_restore_end(self._client))

    def register(
        self, tensors: Sequence[Any], extras_bytes: int, timeout_ms: int | None = None
    ) -> None:
        held = _TensorArray(tensors)
        size = _whole(extras_bytes, 64, "extras_bytes")
        if timeout_ms is None:
            register, limit = _library.unreft_register, ()
        else:
            register = _library.unreft_register_within
            limit = (_whole(timeout_ms, 64, "timeout_ms", signed=True),)
        self._wait(lambda: register(self._client, held.array, len(held), size, *limit))

    def rebind(self, indices: Any, addresses: Any) -> None:
        at, count = _numbers(indices, "indices")
        data, data_count = _numbers(addresses, "addresses")
        if count != data_count:
            raise errors.from_code(
                _INVALID_ARGUMENT, f"rebind: {count} indices and {data_count} addresses"
            )
        self._call(lambda: _library.unreft_rebind(self._client, at, data, count))

    def snapshot(self, step: int, extras: bytes, stream: int) -> tuple[bool, str]:
        if not isinstance(extras, bytes):
            raise TypeError(f"extras: needed bytes, found {type(extras).__name__}")
        number, on = _whole(step, 64, "step"), _whole(stream, 64, "stream")
        outcome = ctypes.c_int32()
        reason = ""

        def call():
            nonlocal reason
            at = ctypes.byref(outcome)
            code = _library.unreft_snapshot(self._client, number, extras, len(extras), on, at)
            if code == 0 and outcome.value == _SKIPPED:
                reason = _library.unreft_error().decode()
            return code

        self._call(call)
        return outcome.value == _STARTED, reason

    def fence(self, stream: int) -> None:
        on = _whole(stream, 64, "stream")
        self._call(lambda: _library.unreft_fence(self._client, on))

    def wait_ready(self, timeout_ms: int) -> None:
        limit = _whole(timeout_ms, 64, "timeout_ms", signed=True)
        self._wait(lambda: _library.unreft_wait_ready(self._client, limit))

    def wait_committed(self, step: int, timeout_ms: int) -> None:
        number = _whole(step, 64, "step")
        limit = _whole(timeout_ms, 64, "timeout_ms", signed=True)
        self._wait(lambda: _library.unreft_wait_committed(self._client, number, limit))

    def ever_committed(self) -> bool:
        answer = ctypes.c_int32()
        self._wait(lambda: _library.unreft_ever_committed(self._client, ctypes.byref(answer)))
        return answer.value != 0

    def status(self) -> dict[str, Any]:
        status = _Status(struct_bytes=ctypes.sizeof(_Status))
        texts = {}

        def call():
            code = _library.unreft_get_status(self._client, ctypes.byref(status))
            for name in _TEXTS if code == 0 else ():
                texts[name] = (getattr(status, name) or b"").decode()
            return code

        self._call(call, self._status_turn)
        return {
            "connected": status.connected != 0,
            "ready": status.ready != 0,
            "timeline": timeline_number(status.timeline),
            "last_captured_step": _step_or_none(status.last_captured_step),
            "last_sealed_step": _step_or_none(status.last_sealed_step),
            "last_committed_step": _step_or_none(status.last_committed_step),
            "started": status.snapshots_started,
            "skipped": status.snapshots_skipped,
            "given_up": status.snapshots_given_up,
            "bytes_captured": status.bytes_captured,
            "last_fence_wait_s": status.last_fence_wait_s,
            "total_fence_wait_s": status.total_fence_wait_s,
            "copying": status.copying != 0,
            "protecting": status.protecting != 0,
            "seconds_since_commit": (
                None if status.seconds_since_commit < 0 else status.seconds_since_commit
            ),
            **texts,
        }

    def close(self) -> None:
        if getattr(self, "_client", None) is None or os.getpid() != self._pid:
            return
        self._waits.closing = True
        if self._turn.is_mine() or self._status_turn.is_mine():
            return  # from a signal's handler, for example: the call under way closes at its end
        with self._turn, self._status_turn:
            client, self._client = self._client, None
            if client is not None:
                _library.unreft_close(client)

    def _wait(self, function: Callable[[], int]) -> None:
        """A call that may wait for the daemon or other ranks."""
        self._call(lambda: self._waits.run(lambda: _check(function())))

    def _call(self, function: Callable[[], int | None], turn: _waiting.Turn | None = None) -> None:
        if os.getpid() != self._pid:
            message = "a forked child of the training process called Unreft"
            raise errors.from_code(_FORKED, message)
        turn = turn or self._turn
        try:
            with turn:
                if self._client is None or self._waits.closing:
                    raise errors.from_code(_FAILED_PRECONDITION, "the client is closed")
                _check(function())
        finally:
            if self._waits.closing and not turn.is_mine():
                self.close()


def _check(code: int | None) -> None:
    """To be called on the thread that made the call, whose message it takes. None: checked."""
    if code:
        raise errors.from_code(code, _library.unreft_error().decode())
