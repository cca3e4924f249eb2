"""FakeStore and FakeClient: the store behind the Python API, in this process.

One store holds the newest snapshot of each rank, whole. It copies at once, so a fence has nothing
to wait for; otherwise a FakeClient is used like an `unreft.Client`.
"""

import ctypes
import dataclasses

import unreft


@dataclasses.dataclass
class Version:
    step: int
    tensors: dict[str, tuple[unreft.Tensor, bytes]]
    extras: bytes


class FakeStore:
    def __init__(self):
        self.versions: dict[int, Version] = {}  # by rank
        self.timeline = 0

    def client(self, rank=0):
        return FakeClient(self, rank)


class FakeClient:
    """`fail[method]` is raised by that method; `skip` makes snapshots skip."""

    def __init__(self, store, rank):
        self._store = store
        self._rank = rank
        self.tensors: list[unreft.Tensor] = []
        self.calls: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.skip = ""
        self._status = unreft.Status(connected=True)

    def _called(self, name):
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def restore_begin(self):
        self._called("restore_begin")
        self._store.timeline += 1
        version = self._store.versions.get(self._rank)
        if version is None:
            return unreft.Decision(False, 0, 0, self._store.timeline, [], None)
        tensors = [dataclasses.replace(spec, data=0) for spec, _ in version.tensors.values()]
        return unreft.Decision(
            True, version.step, 1, self._store.timeline, tensors, version.extras
        )

    def restore_read(self, tensors):
        self._called("restore_read")
        version = self._store.versions[self._rank]
        for tensor in tensors:
            spec, data = version.tensors[tensor.name]
            assert (tensor.dtype, tensor.extent) == (spec.dtype, spec.extent)
            assert tensor.memory_order == spec.memory_order
            ctypes.memmove(tensor.data, data, len(data))

    def restore_end(self):
        self._called("restore_end")

    def register(self, tensors, extras_bytes=0, timeout_s=None):
        self._called("register")
        self.tensors = list(tensors)
        assert len({tensor.name for tensor in self.tensors}) == len(self.tensors)

    def rebind(self, indices, addresses):
        self._called("rebind")
        for index, address in zip(indices, addresses, strict=True):
            self.tensors[index] = dataclasses.replace(self.tensors[index], data=address)

    def wait_ready(self, timeout_s):
        self._called("wait_ready")

    def ever_committed(self):
        self._called("ever_committed")
        return bool(self._store.versions)

    def snapshot(self, step, extras=b"", stream=0):
        self._called("snapshot")
        self._status.protecting = not self.skip
        self._status.why_unprotected = self.skip
        if self.skip:
            self._status.skipped += 1
            return unreft.Snapshot(False, self.skip)
        tensors = {t.name: (t, ctypes.string_at(t.data, byte_count(t))) for t in self.tensors}
        self._store.versions[self._rank] = Version(step, tensors, extras)
        self._status.started += 1
        self._status.last_captured_step = self._status.last_committed_step = step
        return unreft.Snapshot(True)

    def fence(self, stream=0):
        self._called("fence")

    def wait_committed(self, step, timeout_s=60.0):
        self._called("wait_committed")

    def status(self):
        return self._status

    def close(self):
        self._called("close")


_SIZES = {"BOOL": 1, "BFLOAT16": 2, "FLOAT8_E4M3": 1, "FLOAT8_E5M2": 1}


def byte_count(tensor):
    bits = "".join(filter(str.isdigit, tensor.dtype.name))
    count = _SIZES.get(tensor.dtype.name) or int(bits) // 8
    for extent in tensor.extent:
        count *= extent
    return count
