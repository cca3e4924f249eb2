"""Client: the C ABI in Python, for any kind of state.

The order of calls is that of <unreft/c.h>:

    client = Client()
    decision = client.restore_begin()
    if decision.restored:
        client.restore_read(tensors)
    client.register(tensors)
    each step:  client.fence(); change the tensors; client.snapshot(step, extras)
    client.close()

Calls that may wait release the interpreter lock. One training thread at a time; `status` from all.
Waits of the main thread answer signals: what Ctrl-C raises ends the call, and is raised once
nothing of it touches the caller's memory any more. Every 10 s a wait says in the log "unreft" what
for.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from unreft import _abi, _core
from unreft.tensor import Device, Dtype, Tensor


def version() -> str:
    """Of libunreft."""
    return _abi.version()


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the store decided for this attempt; boxes and extras are of this rank."""

    restored: bool  # False: nothing was ever committed, start from scratch
    step: int  # of the version that every rank restores
    timeline: int  # of that version; equal to no other, so it is no small number
    new_timeline: int  # opened by this decision
    # Every logical tensor stored, with this rank's earlier box, once for each if it had several, or
    # whole if another number of ranks saved it.
    tensors: list[Tensor]
    # This rank's earlier extras; None when it had none, or if another number of ranks saved them.
    extras: bytes | None
    source_world: int = 0  # how many ranks saved the version; 0 when nothing is restored
    # The directory of the durable copy that the version was loaded from, since no memory had it or
    # a newer one whole; None otherwise.
    durable_copy: str | None = None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Whether the copies of a snapshot run, and if not, why. False in a condition if not."""

    started: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.started


@dataclasses.dataclass
class Status:
    """What a client has done and how it goes. Steps are None when there was none yet."""

    connected: bool = False
    ready: bool = False  # a snapshot would start
    timeline: int = 0  # its number, as messages have it
    last_captured_step: int | None = None
    last_sealed_step: int | None = None  # of this rank
    last_committed_step: int | None = None  # by every rank
    started: int = 0  # snapshots, as the two below
    skipped: int = 0
    given_up: int = 0
    bytes_captured: int = 0
    last_fence_wait_s: float = 0.0
    total_fence_wait_s: float = 0.0
    last_problem: str = ""
    copying: bool = False  # copies of a snapshot may read the tensors
    copier: str = ""  # what copies, for people
    # Whether what was trained is safe: the newest step that snapshot was called for is committed,
    # or the oldest that is not is younger than 60 s, or 5 times the usual distance of two commits.
    protecting: bool = False
    # Or since the restore, if nothing was committed after it; None: nothing is committed yet.
    seconds_since_commit: float | None = None
    why_unprotected: str = ""  # for people: since when, why, what to do; "" while it is protecting
    # For people: why samples of tensors on a device are not compared, so that nobody sees that one
    # is written before its fence; "" where all are.
    unsampled: str = ""


class Client:
    """A connection to the node's daemon. Raises `Unavailable` when none answers.

    What is None comes from the environment: `socket` from UNREFT_SOCKET, `job` from UNREFT_JOB,
    `rank` from RANK, `world` from WORLD_SIZE, `attempt` from UNREFT_ATTEMPT, or else
    TORCHELASTIC_RESTART_COUNT, which differs between ranks when torchrun runs on several nodes, or
    else what Slurm counts;
    `device_checksum` from UNREFT_DEVICE_CHECKSUM (1 or 0), or else False.

    With `device_checksum` tensors on a CUDA device are checksummed there before they are copied,
    for the daemon to compare, and again after a restore, which then raises `DataLoss`. Raises
    `FailedPrecondition` where the library was built without the kernel for it.

    With `any_world` a version is restored that another number of ranks has saved
    (`Decision.source_world`); `restore_extras` then has their extras. Without it that is refused.
    """

    def __init__(
        self,
        *,
        socket: str | None = None,
        job: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        attempt: int | None = None,
        connect_timeout_s: float = 10.0,
        restore_timeout_s: float = 300.0,
        fence_timeout_s: float = 60.0,
        device_checksum: bool | None = None,
        any_world: bool = False,
    ):
        self._core = _core.Client(
            socket=socket,
            job=job,
            rank=-1 if rank is None else rank,
            world=-1 if world is None else world,
            attempt=-1 if attempt is None else attempt,
            connect_timeout_ms=round(connect_timeout_s * 1000),
            restore_timeout_ms=round(restore_timeout_s * 1000),
            fence_timeout_ms=round(fence_timeout_s * 1000),
            device_checksum=-1 if device_checksum is None else int(device_checksum),
            any_world=int(any_world),
        )

    def restore_begin(self, at_or_before: int | None = None) -> Decision:
        """Waits until the store has decided for all ranks of this attempt.

        With `at_or_before`, the same on all ranks, for the newest version of that step or an
        earlier one; what is newer is given up. `FailedPrecondition`, with the versions that could
        be restored, when only newer ones are whole. Memory keeps the last commit, and of older
        versions those that are pinned (`unreft pin`).
        """
        fields = self._core.restore_begin(at_or_before)
        tensors = [
            Tensor(name, Dtype(dtype), shape, offset, extent, memory_order=memory_order)
            for name, dtype, shape, offset, extent, memory_order in fields.pop("tensors")
        ]
        return Decision(tensors=tensors, **fields)

    def restore_extras(self, rank: int) -> bytes | None:
        """The extras of one of the ranks that saved the version, verified; None when it had none.

        Between `restore_begin` and `restore_end`. `OutOfRange` for a rank that there was not.
        """
        return self._core.restore_extras(rank)

    def restore_read(self, tensors: Sequence[Tensor]) -> None:
        """Copies the decided version into `tensors`, every block verified.

        On an error the bytes of the tensors are undefined.
        """
        self._core.restore_read(tensors)

    def restore_end(self) -> None:
        """Lets the store reuse what was restored; implied by the first snapshot."""
        self._core.restore_end()

    def register(
        self, tensors: Sequence[Tensor], extras_bytes: int = 0, timeout_s: float | None = None
    ) -> None:
        """Declares what is captured from now on; `extras_bytes` is the size expected of extras.

        `DeadlineExceeded` after `timeout_s` without an answer of the daemon (None: 60 s): the
        registration goes on in the background, and snapshots are skipped until it is answered.

        The memory of the tensors stays valid until the last fence, or until they are replaced by
        another registration after a fence.
        """
        timeout_ms = None if timeout_s is None else round(timeout_s * 1000)
        self._core.register(tensors, extras_bytes, timeout_ms)

    def rebind(self, indices: Sequence[int], addresses: Sequence[int]) -> None:
        """Tells that tensors were replaced by others like them, without a registration.

        The `indices[i]`-th tensor of the last `register` lies at `addresses[i]` from the next
        snapshot on: same dtype, box, range, replicas and device. Called after a fence, or while no
        copies run; what lay at the old addresses may be freed after the fence. Waits for nobody.
        Each is an `array.array("Q")`, used as it is, or a sequence. On an error nothing is rebound:
        `FailedPrecondition` when nothing is registered, `OutOfRange` for an index,
        `InvalidArgument` for an address of 0, unless the range is empty.
        """
        self._core.rebind(indices, addresses)

    def snapshot(self, step: int, extras: bytes = b"", stream: int = 0) -> Snapshot:
        """Begins to capture the state after `step` optimizer steps. Never waits for a daemon."""
        return Snapshot(*self._core.snapshot(step, extras, stream))

    def skip_snapshot(self, step: int, reason: str) -> None:
        """Says that this program could not take a snapshot of `step`, and why.

        It counts as one that was skipped, for the status, the daemon and the other ranks, whose
        part of that version is given up. A step of which a snapshot was taken raises
        `FailedPrecondition`.
        """
        self._core.skip_snapshot(step, reason)

    def fence(self, stream: int = 0) -> None:
        """Returns when the registered tensors may change.

        Those on a device may by what `stream` is given from then on; copies may still run then
        (`Status.copying`).
        """
        self._core.fence(stream)

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until a snapshot would start: for the memory that the first one needs.

        `DeadlineExceeded` says what is missing, `FailedPrecondition` why waiting does not help.
        """
        self._core.wait_ready(round(timeout_s * 1000))

    def wait_committed(self, step: int, timeout_s: float = 60.0) -> None:
        """Waits until all ranks committed `step`; `Aborted` when it was skipped or given up."""
        self._core.wait_committed(step, round(timeout_s * 1000))

    def ever_committed(self) -> bool:
        """Whether anything was ever committed in this job, as this node's daemon knows it.

        False also after a fresh start was declared since. Decides nothing and waits for no other
        rank. `Unavailable` when the daemon cannot say within the connect timeout.
        """
        return self._core.ever_committed()

    def status(self) -> Status:
        return Status(**self._core.status())

    def close(self) -> None:
        """Waits for the copies under way and leaves. Calls after it raise, except `close`.

        A call that waits on another thread ends with `Cancelled`. Within a call of the same thread,
        as in a signal's handler, the client closes at the end of that call.
        """
        self._core.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


__all__ = ["Client", "Decision", "Device", "Dtype", "Snapshot", "Status", "Tensor", "version"]
