"""Dense tensors that are not row-major, such as channels_last, against the real daemon."""

import time

import numpy as np
import pytest
from real_store import Store

import unreft

DEADLINE_S = 60
SHAPE = (64, 3, 3, 3)  # the same in both orders: sizes do not tell them apart
CHANNELS_LAST = (0, 2, 3, 1)


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def client_of(store, attempt):
    return unreft.Client(socket=store.socket, job=store.job, rank=0, world=1, attempt=attempt)


def weight(array, order=None):
    """The tensor whose dimensions lie in that order in the array's memory."""
    return unreft.Tensor("conv", unreft.Dtype.FLOAT32, SHAPE, (0,) * 4, SHAPE,
                         data=array.ctypes.data, memory_order=order)


def logical(array, order):
    """What the tensor's user sees: the array's memory as dimensions in that order."""
    return np.transpose(array.reshape([SHAPE[d] for d in order]), np.argsort(order))


def save(store, tensor):
    with client_of(store, 1) as client:
        client.restore_begin()
        client.register([tensor])
        deadline = time.monotonic() + DEADLINE_S
        step = 1
        while not (taken := client.snapshot(step)):
            assert time.monotonic() < deadline, taken.reason
            time.sleep(0.01)
            step += 1
        client.fence()
        client.wait_committed(step, DEADLINE_S)


def values():
    return np.arange(np.prod(SHAPE), dtype=np.float32)


@pytest.mark.parametrize("order", [None, CHANNELS_LAST, (3, 1, 0, 2)])
def test_a_weight_comes_back_in_its_order(store, order):
    saved = values()
    save(store, weight(saved, order))
    with client_of(store, 2) as client:
        (stored,) = client.restore_begin().tensors
        assert (stored.name, stored.global_shape, stored.extent) == ("conv", SHAPE, SHAPE)
        assert stored.memory_order == order
        found = np.zeros_like(saved)
        client.restore_read([weight(found, order)])
    assert (found == saved).all()


@pytest.mark.parametrize("stored_as, wanted_as", [
    (CHANNELS_LAST, None), (None, CHANNELS_LAST), (CHANNELS_LAST, (0, 3, 2, 1))])
def test_another_order_is_refused_with_both_and_writes_nothing(store, stored_as, wanted_as):
    saved = values()
    save(store, weight(saved, stored_as))
    with client_of(store, 2) as client:
        (stored,) = client.restore_begin().tensors
        found = np.full_like(saved, -1)
        with pytest.raises(unreft.FailedPrecondition) as refused:
            client.restore_read([weight(found, wanted_as)])
        assert (found == -1).all()
        for order in stored_as or (0, 1, 2, 3), wanted_as or (0, 1, 2, 3):
            assert str(list(order)) in str(refused.value)
        # What whoever permutes does: a tensor of the stored order, then a copy.
        client.restore_read([weight(found, stored.memory_order)])
    assert (logical(found, stored_as or (0, 1, 2, 3))
            == logical(saved, stored_as or (0, 1, 2, 3))).all()


def test_orders_that_differ_in_dimensions_of_one_element_are_one(store):
    saved = np.arange(64 * 3, dtype=np.float32)
    narrow = (64, 3, 1, 1)

    def tensor(array, order):
        return unreft.Tensor("w", unreft.Dtype.FLOAT32, narrow, (0,) * 4, narrow,
                             data=array.ctypes.data, memory_order=order)

    save(store, tensor(saved, CHANNELS_LAST))
    with client_of(store, 2) as client:
        assert client.restore_begin().tensors[0].memory_order is None
        found = np.zeros_like(saved)
        client.restore_read([tensor(found, (0, 1, 3, 2))])
    assert (found == saved).all()


def test_what_is_no_order_is_refused_by_name(store):
    array = values()
    with client_of(store, 1) as client:
        client.restore_begin()
        for order in (0, 1, 2, 4), (0, 0, 1, 2):
            with pytest.raises(unreft.InvalidArgument, match="'conv': memory_order needs each"):
                client.register([weight(array, order)])
        with pytest.raises(unreft.InvalidArgument, match="memory_order has 3 dimensions"):
            client.register([weight(array, (0, 1, 2))])
        with pytest.raises(TypeError, match="memory_order"):
            client.register([weight(array, (0, 1, 2, -3))])
