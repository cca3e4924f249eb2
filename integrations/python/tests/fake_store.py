"""FakeStore and FakeClient: the store behind the Python API, in this process.

One store holds the newest snapshot of each rank of one world, whole. It copies at once, so a fence
has nothing to wait for; otherwise a FakeClient is used like an `unreft.Client`.
"""

import ctypes
import dataclasses

import numpy as np

import unreft


@dataclasses.dataclass
class Version:
    step: int
    tensors: dict[str, tuple[unreft.Tensor, bytes]]
    extras: bytes | None


class FakeStore:
    def __init__(self):
        self.versions: dict[int, Version] = {}  # by rank
        self.world = 0  # of these ranks
        self.timeline = 0
        self.durable_copy: str | None = None  # that the versions were loaded from

    def client(self, rank=0, world=1, any_world=False):
        return FakeClient(self, rank, world, any_world)


class FakeClient:
    """`fail[method]` is raised by that method; `skip` makes snapshots skip."""

    def __init__(self, store, rank, world=1, any_world=False):
        self._store = store
        self._rank = rank
        self._world = world
        self._any_world = any_world
        self._restoring = False
        self.tensors: list[unreft.Tensor] = []
        self.calls: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.skip = ""
        self.skipped = []  # by skip_snapshot
        self.asked_at_or_before: int | None = None  # of the last restore_begin
        self._status = unreft.Status(connected=True)

    def _called(self, name):
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def restore_begin(self, at_or_before=None):
        self._called("restore_begin")
        self.asked_at_or_before = at_or_before
        store = self._store
        store.timeline += 1
        if store.world == self._world:
            version = store.versions.get(self._rank)
        elif version := next(iter(store.versions.values()), None):
            if not self._any_world:
                raise unreft.FailedPrecondition(
                    f"step {version.step} is of {store.world} ranks, found {self._world}"
                )
            version = Version(version.step, _whole(store.versions.values()), None)
        if version is None:
            return _decision(restored=False, new_timeline=store.timeline)
        self._restoring = True
        return _decision(
            restored=True,
            step=version.step,
            timeline=1,
            new_timeline=store.timeline,
            tensors=[dataclasses.replace(spec, data=0) for spec, _ in version.tensors.values()],
            extras=version.extras,
            source_world=store.world,
            durable_copy=store.durable_copy,
        )

    def restore_read(self, tensors):
        self._called("restore_read")
        versions = self._store.versions
        same = self._store.world == self._world
        sources = [versions[self._rank]] if same else list(versions.values())
        for tensor in tensors:
            boxes = [of.tensors[tensor.name] for of in sources if tensor.name in of.tensors]
            if not boxes:
                raise unreft.NotFound(f"tensor '{tensor.name}' is not stored")
            if same:
                assert tensor.extent == boxes[0][0].extent
            _read(tensor, boxes)

    def restore_extras(self, rank):
        self._called("restore_extras")
        if not self._restoring:
            raise unreft.FailedPrecondition("restore_extras: nothing is being restored")
        if rank >= self._store.world:
            raise unreft.OutOfRange(f"rank {rank} of {self._store.world}")
        return self._store.versions[rank].extras

    def restore_end(self):
        self._called("restore_end")
        self._restoring = False

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
        self._restoring = False
        self._status.protecting = not self.skip
        self._status.why_unprotected = self.skip
        if self.skip:
            self._status.skipped += 1
            return unreft.Snapshot(False, self.skip)
        tensors = {t.name: (t, ctypes.string_at(t.data, byte_count(t))) for t in self.tensors}
        if self._store.world != self._world:
            self._store.versions.clear()
            self._store.world = self._world
        self._store.versions[self._rank] = Version(step, tensors, extras)
        self._status.started += 1
        self._status.last_captured_step = self._status.last_committed_step = step
        return unreft.Snapshot(True)

    def skip_snapshot(self, step, reason):
        self._called("skip_snapshot")
        self._status.skipped += 1
        self.skipped.append((step, reason))

    def fence(self, stream=0):
        self._called("fence")

    def wait_committed(self, step, timeout_s=60.0):
        self._called("wait_committed")

    def status(self):
        return self._status

    def close(self):
        self._called("close")


def _decision(**fields):
    nothing = {"step": 0, "timeline": 0, "tensors": [], "extras": None, "source_world": 0}
    return unreft.Decision(**{**nothing, **fields})


def _whole(versions):
    """Every logical tensor of all ranks once, as one box."""
    found = {}
    for version in versions:
        for name, (spec, data) in version.tensors.items():
            box = {"offset": (0,) * len(spec.global_shape), "extent": spec.global_shape}
            whole = dataclasses.replace(spec, replica_index=0, replica_count=1, **box)
            known, _ = found.setdefault(name, (whole, b""))
            assert (known.dtype, known.global_shape) == (whole.dtype, whole.global_shape)
    return found


def _read(tensor, boxes):
    """Writes the box of a tensor from stored boxes, which have to cover it."""
    target = _elements(tensor, (ctypes.c_uint8 * byte_count(tensor)).from_address(tensor.data))
    written = np.zeros(tensor.extent, dtype=bool)
    for spec, data in boxes:
        assert tensor.dtype == spec.dtype and tensor.memory_order == spec.memory_order
        assert tensor.global_shape == spec.global_shape
        begin = [max(a, b) for a, b in zip(tensor.offset, spec.offset)]
        end = [
            min(a + c, b + d)
            for a, b, c, d in zip(tensor.offset, spec.offset, tensor.extent, spec.extent)
        ]
        if any(a >= b for a, b in zip(begin, end)):
            continue
        here = tuple(slice(a - at, b - at) for a, b, at in zip(begin, end, tensor.offset))
        there = tuple(slice(a - at, b - at) for a, b, at in zip(begin, end, spec.offset))
        target[here] = _elements(spec, data)[there]
        written[here] = True
    if not written.all():
        raise unreft.DataLoss(f"tensor '{tensor.name}': not all of its box is stored")


def _elements(tensor, data):
    """The bytes of a box by the place of their element, its dimensions in logical order."""
    order = tensor.memory_order or tuple(range(len(tensor.extent)))
    flat = np.frombuffer(data, dtype=np.uint8)
    stored = flat.reshape(*(tensor.extent[dim] for dim in order), element_bytes(tensor))
    return stored.transpose(*(order.index(dim) for dim in range(len(order))), len(order))


_SIZES = {"BOOL": 1, "BFLOAT16": 2, "FLOAT8_E4M3": 1, "FLOAT8_E5M2": 1}


def element_bytes(tensor):
    bits = "".join(filter(str.isdigit, tensor.dtype.name))
    return _SIZES.get(tensor.dtype.name) or int(bits) // 8


def byte_count(tensor):
    count = element_bytes(tensor)
    for extent in tensor.extent:
        count *= extent
    return count
