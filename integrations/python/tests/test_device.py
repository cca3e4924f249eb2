"""State on a device: which stream a client is given, and how long memory is held.

There is no device here: tensors of CPU memory are taken for tensors of a device.
"""

import pytest
import unreft
from fake_job import Job
from fake_store import FakeClient, FakeStore
from unreft.torch import registered_tensors, shards

STREAM = 7


class DeviceClient(FakeClient):
    """Copies run on until they are let go."""

    def __init__(self, store, rank):
        super().__init__(store, rank)
        self.streams = []

    def snapshot(self, step, extras=b"", stream=0):
        self.streams.append(("snapshot", stream))
        if self._status.copying:
            return unreft.Snapshot(False, "still being copied")
        snapshot = super().snapshot(step, extras, stream)
        self._status.copying = snapshot.started
        return snapshot

    def fence(self, stream=0):
        self.streams.append(("fence", stream))
        super().fence(stream)

    def let_go(self):
        self._status.copying = False


class DeviceStore(FakeStore):
    def client(self, rank=0):
        return DeviceClient(self, rank)


@pytest.fixture
def on_device(monkeypatch):
    """All tensors but the step counts of the optimizer are on device 3."""

    def device_of(tensor):
        return (unreft.Device.CUDA, 3) if tensor.dim() else (unreft.Device.CPU, 0)

    monkeypatch.setattr(shards, "device_of", device_of)
    monkeypatch.setattr(registered_tensors, "_current_stream", lambda device: {3: STREAM}[device])


def started(store):
    job = Job(store)
    job.ck.restore()
    job.step()
    assert job.ck.snapshot(1)
    return job


def test_tensors_are_registered_where_they_are(on_device):
    job = started(DeviceStore())
    where = {t.name: (t.device, t.device_index) for t in job.client.tensors}
    assert where["model/inner.weight"] == (unreft.Device.CUDA, 3)
    assert where["optim/inner.weight/exp_avg"] == (unreft.Device.CUDA, 3)
    assert where["optim/inner.weight/step"] == (unreft.Device.CPU, 0)


def test_the_current_stream_is_captured_from_and_held_up(on_device):
    job = started(DeviceStore())
    job.client.let_go()
    job.step()
    assert job.ck.snapshot(2)
    assert job.client.streams[-2:] == [("fence", STREAM), ("snapshot", STREAM)]


def test_memory_is_held_until_the_copies_end_and_no_longer(on_device):
    job = started(DeviceStore())
    job.step()  # with a fence: the stream waits, the copies run on
    assert len(job.ck._registered._memory) > 0
    job.client.let_go()
    job.step()
    assert job.ck._registered._memory == []


def test_a_skipped_snapshot_leaves_the_memory_of_the_one_that_runs(on_device):
    job = started(DeviceStore())
    held = list(job.ck._registered._memory)
    assert not job.ck.snapshot(2)
    assert job.ck._registered._memory == held


def test_state_in_host_memory_has_no_stream():
    job = started(DeviceStore())
    job.client.let_go()
    job.step()
    assert {stream for _, stream in job.client.streams} == {0}
