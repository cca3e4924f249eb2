"""The library libunreft, as ctypes has it: found, its functions declared, its structures.

One binding for every CPython from 3.10 on.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

from unreft import _waiting

PYTHON_MIN = (3, 10)
LIBRARY = "libunreft.so"


class OpenOptions(ctypes.Structure):
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


class Tensor(ctypes.Structure):
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
        ("allow_shape_mismatch", ctypes.c_int32),
    ]


def timeline_number(timeline: int) -> int:
    """What messages call a timeline. There may be two of one number, which are not equal."""
    return timeline >> 32 or timeline


class Decision(ctypes.Structure):
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
        ("durable_copy", ctypes.c_char_p),
    ]


class Status(ctypes.Structure):
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
        ("restore_begin_at_or_before", ctypes.c_int, [pointer, step, pointer]),
        ("restore_read", ctypes.c_int, [pointer, pointer, size]),
        ("restore_extras", ctypes.c_int, [pointer, step, pointer, pointer]),
        ("restore_end", ctypes.c_int, [pointer]),
        ("register", ctypes.c_int, [pointer, pointer, size, step]),
        ("rebind", ctypes.c_int, [pointer, pointer, pointer, size]),
        ("register_within", ctypes.c_int, [pointer, pointer, size, step, number]),
        ("snapshot", ctypes.c_int, [pointer, step, text, size, pointer, pointer]),
        ("skip_snapshot", ctypes.c_int, [pointer, step, text]),
        ("fence", ctypes.c_int, [pointer, pointer]),
        ("get_status", ctypes.c_int, [pointer, pointer]),
        ("wait_ready", ctypes.c_int, [pointer, number]),
        ("wait_committed", ctypes.c_int, [pointer, step, number]),
        ("ever_committed", ctypes.c_int, [pointer, pointer]),
    ):
        function = getattr(library, f"unreft_{name}")
        function.restype, function.argtypes = result, arguments


library = _load()


def version() -> str:
    return library.unreft_version().decode()


def _defaults(name: str, struct: type[ctypes.Structure]) -> bytes:
    """The struct as the library initialises it."""
    room = ctypes.create_string_buffer(ctypes.sizeof(struct))
    try:
        getattr(library, f"unreft_{name}_init_sized")(room, ctypes.c_size_t(len(room)))
    except AttributeError:
        raise ImportError(f"{LIBRARY} {version()} is older than this package") from None
    return room.raw


OPTIONS_DEFAULTS = _defaults("open_options", OpenOptions)
TENSOR_DEFAULTS = _defaults("tensor", Tensor)
