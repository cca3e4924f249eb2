"""Calls of libunreft that wait, so that Python's signals reach the main thread meanwhile.

Signals are handled between bytecodes of the main thread, and a callback from C is no safe place for
what they raise. So where the main thread makes such a call, another thread makes it in its place,
and the main thread waits in slices; what is raised there ends the call, and goes on once it has
ended. Other threads make their calls themselves.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

from unreft import errors

LOG_EVERY_S = 10.0
_SLICE_S = 0.1

_logger = logging.getLogger("unreft")

KEEP_WAITING = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double)


class Waits:
    """The waiting calls of one client, one at a time."""

    def __init__(self) -> None:
        self.closing = False  # for good: by whoever closes the client
        self._ended = False
        # Asked by the library, on the thread that made the call; lives as long as the client.
        self.keep_waiting = KEEP_WAITING(self._keep_waiting)
        self._logged_s = 0.0

    def run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises; it has ended when this returns or raises anything else."""
        self._ended = False
        self._logged_s = 0.0
        if threading.current_thread() is not threading.main_thread():
            return call()
        made = _Made(call)
        try:
            made.start()
            while not made.over.wait(_SLICE_S):
                pass
        except BaseException:
            self._ended = True
            made.end()
            raise
        return made.result()

    def _keep_waiting(self, _context: Any, waited_for: bytes, seconds: float) -> int:
        try:
            if seconds - self._logged_s >= LOG_EVERY_S:
                self._logged_s = seconds
                what = waited_for.decode(errors="replace")
                _logger.warning("still waiting for %s (%.0f s)", what, seconds)
        except BaseException:
            return 1
        return 1 if self._ended or self.closing else 0


class Turn:
    """A lock that refuses the thread which has it, where another would let it wait for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def is_mine(self) -> bool:
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        if self.is_mine():
            raise errors.FailedPrecondition(
                "this thread is in a call of the same client: needed its end before the next call"
            )
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *exc: Any) -> None:
        self._holder = None
        self._lock.release()


class _Made:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]):
        self._call = call
        self._lock = threading.Lock()
        self._begun = False
        self._unwanted = False
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="unreft-call", daemon=True).start()

    def end(self) -> None:
        """Returns when the call is over, or will not be made; a further signal waits for that."""
        while True:
            try:
                with self._lock:
                    self._unwanted = True
                while self._begun and not self.over.wait(_SLICE_S):
                    pass
                return
            except BaseException:
                continue

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        with self._lock:
            if self._unwanted:
                return
            self._begun = True
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self.over.set()
