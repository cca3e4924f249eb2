"""Client.rebind: tensors that were replaced by others like them, against the real daemon."""

import array
import time

import numpy as np
import pytest
from real_store import Store

import unreft

DEADLINE_S = 60


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def client_of(store, attempt=1):
    return unreft.Client(socket=store.socket, job=store.job, rank=0, world=1, attempt=attempt)


def until_started(client, step):
    deadline = time.monotonic() + DEADLINE_S
    while not (taken := client.snapshot(step)):
        assert time.monotonic() < deadline, taken.reason
        time.sleep(0.01)
        step += 1
    client.fence()
    client.wait_committed(step, DEADLINE_S)
    return step


def test_a_rebound_tensor_is_captured_where_it_is(store):
    weights, moments = np.arange(1000, dtype=np.float32), np.zeros(77, dtype=np.float32)
    tensors = [unreft.Tensor.of_array("w", weights), unreft.Tensor.of_array("m", moments)]
    with client_of(store) as client:
        client.restore_begin()
        client.register(tensors)
        until_started(client, 1)
        other = np.full(77, 7, dtype=np.float32)
        client.rebind(array.array("Q", [1]), array.array("Q", [other.ctypes.data]))
        moments[:] = -1  # nobody's any more
        until_started(client, 100)
    with client_of(store, attempt=2) as client:
        assert client.restore_begin().restored
        found = np.zeros(77, dtype=np.float32)
        client.restore_read([unreft.Tensor.of_array("m", found)])
    assert (found == 7).all()


def test_what_cannot_be_rebound_is_refused_by_name(store):
    weights = np.zeros(10, dtype=np.float32)
    with client_of(store) as client:
        with pytest.raises(unreft.FailedPrecondition, match="no tensors are registered"):
            client.rebind([0], [weights.ctypes.data])
        client.restore_begin()
        client.register([unreft.Tensor.of_array("w", weights)])
        with pytest.raises(unreft.Error, match="tensor 1: needed one of the 1 tensors"):
            client.rebind([1], [weights.ctypes.data])
        with pytest.raises(unreft.InvalidArgument, match="tensor 0: data is NULL"):
            client.rebind([0], [0])
        with pytest.raises(unreft.InvalidArgument, match="2 indices and 1 addresses"):
            client.rebind([0, 0], [weights.ctypes.data])
        with pytest.raises(TypeError, match="indices"):
            client.rebind([-1], [weights.ctypes.data])
        with pytest.raises(TypeError, match="addresses"):
            client.rebind([0], ["here"])
        client.rebind([], [])
        client.rebind((0,), (weights.ctypes.data,))
