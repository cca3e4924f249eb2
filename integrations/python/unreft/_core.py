"""The C ABI of libunreft, called from Python.

Calls release the interpreter lock, no lock is held while a call waits for the interpreter's, and in
a forked child no lock is taken.
"""

from __future__ import annotations

import array
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from unreft import _abi, _waiting, errors
from unreft._abi import library

_NO_STEP = 2**64 - 1
_STARTED, _SKIPPED = 1, 2
_FAILED_PRECONDITION, _INVALID_ARGUMENT, _FORKED, _DRY_RUN = 9, 3, 100, 101
_TEXTS = ("last_problem", "copier", "why_unprotected", "unsampled")


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
        self._kept: list[_abi.Tensor] = []  # each keeps what it points to
        self._count = len(tensors)
        self.array = ctypes.create_string_buffer(_abi.TENSOR_DEFAULTS * self._count)
        for index, tensor in enumerate(tensors):
            at = index * len(_abi.TENSOR_DEFAULTS)
            self._kept.append(_abi.Tensor.from_buffer(self.array, at))
            self._fill(self._kept[-1], tensor)

    def __len__(self) -> int:
        return self._count

    def _fill(self, target: _abi.Tensor, tensor: Any) -> None:
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
        target.allow_shape_mismatch = int(tensor.allow_shape_mismatch)


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


def _described(decision: _abi.Decision) -> list[tuple]:
    found = []
    at = decision.tensors
    for _ in range(decision.tensor_count):
        tensor = _abi.Tensor.from_address(at)
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


def _path_or_none(path: bytes | None) -> str | None:
    return None if path is None else os.fsdecode(path)


def _step_or_none(step: int) -> int | None:
    return None if step == _NO_STEP else step


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
        room = ctypes.create_string_buffer(_abi.OPTIONS_DEFAULTS)
        options = _abi.OpenOptions.from_buffer(room)
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
            self._waits.run(lambda: _check(library.unreft_open(room, ctypes.byref(client))))
        finally:
            self._client = client if client.value else None  # also when the wait was interrupted

    def __del__(self):
        self.close()

    def restore_begin(self, at_or_before: int | None = None) -> dict[str, Any]:
        decision = _abi.Decision(
            struct_bytes=ctypes.sizeof(_abi.Decision), tensor_bytes=ctypes.sizeof(_abi.Tensor)
        )
        at = ctypes.byref(decision)
        if at_or_before is None:
            begin, limit = library.unreft_restore_begin, ()
        else:
            begin = library.unreft_restore_begin_at_or_before
            limit = (_whole(at_or_before, 64, "at_or_before"),)
        self._wait(lambda: begin(self._client, *limit, at))
        # The next call of the kind comes from the same thread: the pointers are good until then.
        return {
            "restored": decision.restored != 0,
            "step": decision.step,
            "timeline": decision.timeline,
            "new_timeline": decision.new_timeline,
            "source_world": decision.source_world,
            "durable_copy": _path_or_none(decision.durable_copy),
            "tensors": _described(decision),
            "extras": _bytes_at(decision.extras, decision.extras_bytes),
        }

    def restore_extras(self, rank: int) -> bytes | None:
        number = _whole(rank, 64, "rank")
        at, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._wait(
            lambda: library.unreft_restore_extras(
                self._client, number, ctypes.byref(at), ctypes.byref(size)
            )
        )
        return _bytes_at(at.value, size.value)

    def restore_read(self, tensors: Sequence[Any]) -> None:
        held = _TensorArray(tensors)
        self._wait(lambda: library.unreft_restore_read(self._client, held.array, len(held)))

    def restore_end(self) -> None:
        self._call(lambda: library.unreft_restore_end(self._client))

    def register(
        self, tensors: Sequence[Any], extras_bytes: int, timeout_ms: int | None = None
    ) -> None:
        held = _TensorArray(tensors)
        size = _whole(extras_bytes, 64, "extras_bytes")
        if timeout_ms is None:
            register, limit = library.unreft_register, ()
        else:
            register = library.unreft_register_within
            limit = (_whole(timeout_ms, 64, "timeout_ms", signed=True),)
        self._wait(lambda: register(self._client, held.array, len(held), size, *limit))

    def rebind(self, indices: Any, addresses: Any) -> None:
        at, count = _numbers(indices, "indices")
        data, data_count = _numbers(addresses, "addresses")
        if count != data_count:
            raise errors.from_code(
                _INVALID_ARGUMENT, f"rebind: {count} indices and {data_count} addresses"
            )
        self._call(lambda: library.unreft_rebind(self._client, at, data, count))

    def snapshot(self, step: int, extras: bytes, stream: int) -> tuple[bool, str]:
        if not isinstance(extras, bytes):
            raise TypeError(f"extras: needed bytes, found {type(extras).__name__}")
        number, on = _whole(step, 64, "step"), _whole(stream, 64, "stream")
        outcome = ctypes.c_int32()
        reason = ""

        def call():
            nonlocal reason
            at = ctypes.byref(outcome)
            code = library.unreft_snapshot(self._client, number, extras, len(extras), on, at)
            if code == 0 and outcome.value == _SKIPPED:
                reason = library.unreft_error().decode()
            return code

        self._call(call)
        return outcome.value == _STARTED, reason

    def skip_snapshot(self, step: int, reason: str) -> None:
        number, why = _whole(step, 64, "step"), reason.replace("\0", " ").encode(errors="replace")
        self._call(lambda: library.unreft_skip_snapshot(self._client, number, why))

    def fence(self, stream: int) -> None:
        on = _whole(stream, 64, "stream")
        self._call(lambda: library.unreft_fence(self._client, on))

    def wait_ready(self, timeout_ms: int) -> None:
        limit = _whole(timeout_ms, 64, "timeout_ms", signed=True)
        self._wait(lambda: library.unreft_wait_ready(self._client, limit))

    def wait_committed(self, step: int, timeout_ms: int) -> None:
        number = _whole(step, 64, "step")
        limit = _whole(timeout_ms, 64, "timeout_ms", signed=True)
        self._wait(lambda: library.unreft_wait_committed(self._client, number, limit))

    def ever_committed(self) -> bool:
        answer = ctypes.c_int32()
        self._wait(lambda: library.unreft_ever_committed(self._client, ctypes.byref(answer)))
        return answer.value != 0

    def status(self) -> dict[str, Any]:
        status = _abi.Status(struct_bytes=ctypes.sizeof(_abi.Status))
        texts = {}

        def call():
            code = library.unreft_get_status(self._client, ctypes.byref(status))
            for name in _TEXTS if code == 0 else ():
                texts[name] = (getattr(status, name) or b"").decode()
            return code

        self._call(call, self._status_turn)
        return {
            "connected": status.connected != 0,
            "ready": status.ready != 0,
            "timeline": _abi.timeline_number(status.timeline),
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
                library.unreft_close(client)

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
    if code == _DRY_RUN:
        # No error: the process has done what it was started for.
        print(f"unreft: {library.unreft_error().decode()}", file=sys.stderr, flush=True)
        raise SystemExit(0)
    if code:
        raise errors.from_code(code, library.unreft_error().decode())
