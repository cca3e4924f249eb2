"""RegisteredTensors: what the client captures, and whether that is what lives."""

import contextlib
import dataclasses
import logging
import operator
import time
from collections.abc import Iterator
from typing import Any

import torch

import unreft
from unreft.torch.watch import Watch

_log = logging.getLogger("unreft")

# A registration that failed is tried again after so many times the time that it took, so that the
# attempts cost training no more than 1/10.
_RETRY_FACTOR = 10
_RETRY_MIN_S = 1.0
# The first registration waits for the daemon and for memory; a later one, in the middle of the
# training, goes on in the background after this.
_FIRST_WAIT_S = 60.0
_LATER_WAIT_S = 0.25
# All of a tensor's description but its address.
_KIND = operator.attrgetter(
    *(field.name for field in dataclasses.fields(unreft.Tensor) if field.name != "data")
)


class RegisteredTensors:
    """Where they lie, as the client knows it, and what of their memory its copies may read.

    They are the live ones as long as the watch says so: of those that have only moved the client is
    told the new places, others are registered again.
    """

    def __init__(self, client: Any):
        self._client = client
        self._watch: Watch | None = None
        self._tensors: list[unreft.Tensor] = []
        self._memory: list[Any] = []  # that copies may be reading
        self._cuda_device: int | None = None  # of the tensors, if any is on one
        self._retry_at = 0.0
        self.generations = 0  # registrations with the daemon

    def hold(self, may_move: bool) -> bool:
        """Whether these are the live tensors still."""
        return self._watch is not None and (
            self._watch.unchanged() or may_move and self._follow()
        )

    def snapshot(self, step: int, extras: bytes) -> unreft.Snapshot:
        in_use = self._in_use()
        self._memory = [*in_use, *self._watch.memory()]
        snapshot = self._client.snapshot(step, extras, self.stream())
        if not snapshot.started:
            self._memory = in_use
        return snapshot

    def stream(self) -> int:
        """The one that the tensors' device works in now, 0 in memory of the host."""
        return 0 if self._cuda_device is None else _current_stream(self._cuda_device)

    def keep_what_is_read(self) -> None:
        self._memory = self._in_use()

    def forget(self) -> None:
        """Keeps no tensor but what copies read: the next snapshot has to find the live ones."""
        self._watch = None
        self.keep_what_is_read()

    def release(self) -> None:
        """Nothing is read any more."""
        self._memory = []

    # --- registering others ---

    @contextlib.contextmanager
    def renewal(self) -> Iterator[bool]:
        """Of `tell` and `watch`: whether they may be tried now. A failure is not tried again for a
        while."""
        begin = time.monotonic()
        if begin < self._retry_at:
            yield False
            return
        self._watch = None
        try:
            yield True
        except Exception:
            self._retry_later(begin)
            raise
        # The registration before it had other tensors, to whose copies it has put an end.
        self._memory = self._in_use()
        self._cuda_device = _cuda_device_of(self._tensors)

    def tell(self, tensors: list[unreft.Tensor], extras_bytes: int) -> None:
        """Has the client know where the tensors lie; the daemon, if they are of another kind."""
        if self.generations and list(map(_KIND, tensors)) == list(map(_KIND, self._tensors)):
            self._tensors = tensors
            self._client.rebind(range(len(tensors)), [tensor.data for tensor in tensors])
            return
        begin = time.monotonic()
        first = self.generations == 0
        self._tensors = []
        try:
            self._client.register(tensors, extras_bytes, _FIRST_WAIT_S if first else _LATER_WAIT_S)
        except unreft.DeadlineExceeded:
            self._retry_later(begin)  # the client goes on asking; snapshots wait for the answer
        self._tensors = tensors
        self.generations += 1
        if not first:
            _log.info("the tensors changed: layout generation %d", self.generations)
            return
        _log.info("captures from %s", self._client.status().copier)
        with contextlib.suppress(unreft.DeadlineExceeded):  # snapshots say what is waited for
            self._client.wait_ready(max(0.0, _FIRST_WAIT_S - (time.monotonic() - begin)))

    def watch(self, watch: Watch) -> None:
        """By what it is seen that they are the live ones no more."""
        self._watch = watch

    # --- how ---

    def _in_use(self) -> list[Any]:
        """What copies may still read."""
        return self._memory if self._memory and self._client.status().copying else []

    def _follow(self) -> bool:
        """Whether only addresses have changed; tells the client the new ones."""
        addresses = self._watch.follow()
        if addresses is None:
            return False
        try:
            places = [i for i, t in enumerate(self._tensors) if t.name in addresses]
            self._client.rebind(places, [addresses[self._tensors[i].name] for i in places])
        except Exception:
            self._watch = None
            raise
        return True

    def _retry_later(self, begin: float) -> None:
        now = time.monotonic()
        self._retry_at = now + max(_RETRY_MIN_S, _RETRY_FACTOR * (now - begin))


def _cuda_device_of(tensors: list[unreft.Tensor]) -> int | None:
    devices = [t.device_index for t in tensors if t.device == unreft.Device.CUDA]
    return devices[0] if devices else None


def _current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream
