"""This process's connection for checkpoints, which its stagers, writers and readers share."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import torch

import unreft
from unreft.dcp.catalogue import RankExtras
from unreft.dcp.pieces import Pieces
from unreft.dcp.share import Share
from unreft.tensor import Tensor
from unreft.torch import attempt, ranks

_READY_TIMEOUT_S = 60.0
_EXTRAS_BYTES_MIN = 64 << 10


@dataclasses.dataclass
class Staged:
    """What a stager has captured for a checkpoint that is to be written."""

    step: int
    kinds: set[tuple]  # of all that this rank has (pieces.kind_of), whoever captures it
    writer: Any = None  # that alone may write it; None: the next one


class Session:
    """One rank of one attempt. Calls come from one thread at a time."""

    def __init__(
        self, joined: attempt.Joined, rank: int, world: int, options: dict[str, Any] | None = None
    ):
        self._options = options or {}
        self.rank = rank
        self.world = world
        self.client: unreft.Client = joined.client
        self.share = Share(rank, world)
        self.staged: dict[int, Staged] = {}  # by step, of saves that are under way
        self._decision = joined.decision
        self._is_loaded = False
        self._has_saved = False
        self._registered: list[Tensor] | None = None  # not known after a failure
        self._extras_bytes = 0
        self._memory: list[torch.Tensor] = []  # of the capture under way
        self._lock = threading.RLock()  # the save before may still be on another thread
        self.is_open = True

    def decision(self) -> unreft.Decision:
        """Of this attempt; waits for all ranks when it is not taken yet."""
        if self._decision is None:  # else a capture, which holds the lock, keeps nobody waiting
            with self._lock:
                if self._decision is None:
                    self._decision = self.client.restore_begin()
        return self._decision

    # --- what was staged ---

    def check_staged(self, step: int) -> None:
        """Raises when a stager was told another step than the writer."""
        if step in self.staged:
            return
        others = [staged.step for staged in list(self.staged.values()) if staged.writer is None]
        if others:
            self.staged.clear()
            raise unreft.FailedPrecondition(
                f"save of step {step}: what was staged is step {others[-1]}"
            )

    def take_staged(self, step: int, writer: Any) -> Staged | None:
        """What a save of that step writes; what is older was of saves that have failed."""
        found = self.staged.pop(step, None)
        for older in [of for of in list(self.staged) if of < step]:
            del self.staged[older]
        return found if found is not None and found.writer in (None, writer) else None

    # --- restoring ---

    def check_may_load(self) -> None:
        if self._has_saved:
            raise unreft.FailedPrecondition(
                "load: this process has saved since it started, and memory is read at the begin "
                "of an attempt: start the job again to load"
            )

    def loaded(self) -> None:
        self._is_loaded = True

    # --- capturing ---

    def check_may_save(self, step: int, fresh: bool) -> None:
        """That nothing is given up that the program has not looked at."""
        decision = self.decision()
        if not decision.restored or self._is_loaded or fresh or self._has_saved:
            return
        raise unreft.FailedPrecondition(
            f"save of step {step}: step {decision.step} is committed, and was not loaded in this "
            "attempt, so that saving would give it up: load it with unreft.dcp.Reader before, or "
            "pass fresh=True to the writer"
        )

    def capture(self, step: int, pieces: Pieces, extras: RankExtras) -> None:
        """Begins to copy; `fence` waits until the pieces may change.

        Raises what stands in the way: a checkpoint that was asked for is not skipped.
        """
        with self._lock:
            self._capture(step, pieces, extras.encode())

    def _capture(self, step: int, pieces: Pieces, encoded: bytes) -> None:
        self.fence()
        if not self._has_saved and self.decision().restored:
            self.client.restore_end()  # its memory may be needed
        self._register(pieces.specs, len(encoded))
        self._has_saved = True
        self._memory = pieces.memory
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            self.client.wait_ready(max(0.0, deadline - time.monotonic()))
            snapshot = self.client.snapshot(step, encoded, _stream_of(pieces))
            if snapshot:
                return
            if time.monotonic() > deadline:
                raise unreft.Aborted(f"save of step {step}: {snapshot.reason}")
            time.sleep(0.01)

    def fence(self, stream: int | None = None) -> None:
        """Returns when what is being captured may change: on a device, by what the stream is given.

        None: the current one of this thread.
        """
        with self._lock:
            if self._has_saved:
                self.client.fence(current_stream() if stream is None else stream)
            self._memory = []

    def _register(self, specs: list[Tensor], extras_bytes: int) -> None:
        known, self._registered = self._registered, None
        is_like = known is not None and list(map(_kind_of, known)) == list(map(_kind_of, specs))
        if is_like and extras_bytes <= self._extras_bytes:
            moved = [i for i, (old, new) in enumerate(zip(known, specs)) if old.data != new.data]
            if moved:
                self.client.rebind(moved, [specs[i].data for i in moved])
        else:
            # They grow as counters and schedules do.
            self._extras_bytes = max(_EXTRAS_BYTES_MIN, 2 * extras_bytes)
            self.client.register(specs, self._extras_bytes)
        self._registered = specs

    def check_same(self, options: dict[str, Any]) -> None:
        """That a later writer or reader asks for no other connection."""
        for name, value in options.items():
            if self._options.get(name) != value:
                raise unreft.FailedPrecondition(
                    f"{name}: this process has a connection with {self._options.get(name)!r}, "
                    f"found {value!r}: writers, readers and stagers share one"
                )

    def close(self) -> None:
        """Leaves the daemon; a later writer or reader begins anew, as in another process."""
        if not self.is_open:
            return
        self.is_open = False
        _forget(self)
        self.client.close()


_session: Session | None = None


def join(options: dict[str, Any]) -> Session:
    """The session of this process; with a process group all ranks make theirs together."""
    global _session
    rank, world = ranks.rank_and_world(options.get("rank"), options.get("world"))
    if _session is not None and _session.is_open:
        _session.check_same(options)
        return _session
    given = {**options, "rank": rank, "world": world}
    joined = attempt.take("unreft.dcp", lambda: None, True, given)
    session = Session(joined, rank, world, options)
    attempt.keep(joined, session, "unreft.dcp")
    _session = session
    return session


def close() -> None:
    """Leaves the daemon, if this process has a writer or a reader; later ones begin anew.

    Not while a save is under way.
    """
    if _session is not None:
        _session.close()


def _forget(session: Session) -> None:
    global _session
    if _session is session:
        _session = None


def _kind_of(spec: Tensor) -> tuple:
    """All of it but where it lies."""
    box = spec.global_shape, spec.offset, spec.extent
    return spec.name, spec.dtype, box, spec.device, spec.device_index


def current_stream() -> int:
    """Of this thread; 0 without CUDA."""
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0


def _stream_of(pieces: Pieces) -> int:
    return current_stream() if any(memory.is_cuda for memory in pieces.memory) else 0
