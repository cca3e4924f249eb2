"""Tensors on a device among the extras. Here those of float64 count as on a device."""

import pytest
import torch
from fake_job import Job, trained

from unreft.torch import device_extras, extras

NAME = "rank0/extras/device"


@pytest.fixture(autouse=True)
def device(monkeypatch):
    def is_on_device(tensor):
        return tensor.dtype == torch.float64

    monkeypatch.setattr(device_extras, "is_on_device", is_on_device)
    monkeypatch.setattr(extras, "is_on_device", is_on_device)


def scaler_on_device():
    scaler = torch.amp.GradScaler("cpu")
    scaler._scale = torch.tensor(8.0, dtype=torch.float64)
    scaler._growth_tracker = torch.tensor(3.0, dtype=torch.float64)
    return scaler


def no_wait(*_):
    raise AssertionError("waits for the device")


def test_a_scaler_is_captured_without_asking_the_device(store, monkeypatch):
    scaler = scaler_on_device()
    job = trained(store, extras={"scaler": scaler})
    scaler._scale.mul_(2)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "item", no_wait)
        assert job.ck.snapshot(3)
    spec, data = store.versions[0].tensors[NAME]
    assert spec.volatile and len(data) == 32
    other = torch.amp.GradScaler("cpu")
    restored = type(job)(store, extras={"scaler": other})
    assert restored.ck.restore() == 3
    assert other.get_scale() == 16.0 and other.state_dict()["_growth_tracker"] == 3


def test_a_scaler_that_keeps_more_says_it_itself(store):
    class Counting(torch.amp.GradScaler):
        seen = 0

        def state_dict(self):
            return {**super().state_dict(), "seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state.pop("seen")
            super().load_state_dict(state)

    scaler, other = Counting("cpu"), Counting("cpu")
    scaler._scale, scaler._growth_tracker = scaler_on_device()._scale, torch.tensor(3)
    scaler.seen = 5
    trained(store, extras={"scaler": scaler})
    restored = Job(store, extras={"scaler": other})
    assert restored.ck.restore() == 2
    assert other.seen == 5 and other.get_scale() == 8.0


def test_tensors_of_every_shape_come_back(store):
    values = {
        "lr": torch.tensor(0.25, dtype=torch.float64),
        "table": torch.arange(6, dtype=torch.float64).view(2, 3),
        "turned": torch.arange(6, dtype=torch.float64).view(2, 3).t(),
        "negated": torch.tensor([1 + 2j], dtype=torch.complex128).conj().imag,
        "empty": torch.zeros(0, 3, dtype=torch.float64),
        "host": torch.arange(3),
    }
    job = trained(store, extras={"values": lambda: values})
    restored = type(job)(store, extras={"values": lambda: None})
    assert restored.ck.restore() == 2
    assert restored.ck.extras["values"].keys() == values.keys()
    for name, value in restored.ck.extras["values"].items():
        assert torch.equal(value, values[name]) and value.shape == values[name].shape, name


def test_what_grows_is_registered_again_with_room_for_more(store):
    values = [torch.ones(1, dtype=torch.float64)]
    job = trained(store, extras={"values": values})
    before = job.client.calls.count("register")
    values.append(torch.full((5,), 7.0, dtype=torch.float64))
    assert job.ck.snapshot(3)
    assert job.client.calls.count("register") == before + 1
    assert len(store.versions[0].tensors[NAME][1]) == 64
    # Fewer, none at all, and no more than there is room for.
    for step, lengths in enumerate([[1], [], [2, 2, 2]], 4):
        values[:] = [torch.full((n,), 9.0, dtype=torch.float64) for n in lengths]
        assert job.ck.snapshot(step)
        restored = type(job)(store, extras={"values": []})
        assert restored.ck.restore() == step
        assert [each.tolist() for each in restored.ck.extras["values"]] == [
            [9.0] * n for n in lengths
        ]
    assert job.client.calls.count("register") == before + 1


def test_a_learning_rate_on_the_device_is_that_of_the_snapshot(store):
    lr = torch.tensor(0.5, dtype=torch.float64)
    job = trained(store, capturable=False, foreach=False)
    job.optimizer.param_groups[0]["lr"] = lr
    assert job.ck.snapshot(3)
    lr.fill_(0.125)
    assert job.ck.snapshot(4)
    restored = type(job)(store, foreach=False)
    restored.optimizer.param_groups[0]["lr"] = torch.tensor(9.0, dtype=torch.float64)
    assert restored.ck.restore() == 4
    assert restored.optimizer.param_groups[0]["lr"].item() == 0.125
