"""A rank with state on a CUDA device of the fake runtime, and some in host memory.

Restores, says what it found, and takes three snapshots, each of tensors that are all its step. A
bit of what is copied may flip on the way: FLIP_AT is "restore" or the step of a snapshot.
"""

import ctypes
import os
import pathlib
import sys
import time

import numpy as np
from saying import say
import unreft

RUNTIME = pathlib.Path(os.environ["UNREFT_BIN_DIR"]).parent / "fakecuda/libcudart.so.13"
SIZES = {"w": 9_000_000, "bias": 1000, "mean": 300}
DEADLINE_S = 60

cuda = ctypes.CDLL(str(RUNTIME))  # as PyTorch would have loaded the real one
cuda.fakecuda_violations.restype = ctypes.c_char_p
FLIP_AT = os.environ.get("FLIP_AT")
FLIPPED_BYTE = 5_000_001


def must(error):
    assert error == 0, f"CUDA error {error}"


def new_tensors():
    tensors = []
    for name, size in SIZES.items():
        data = ctypes.c_void_p()
        must(cuda.cudaMalloc(ctypes.byref(data), ctypes.c_size_t(size)))
        shape = {"global_shape": (size,), "offset": (0,), "extent": (size,)}
        tensors.append(
            unreft.Tensor(
                name,
                unreft.Dtype.UINT8,
                **shape,
                data=data.value,
                device=unreft.Device.CUDA,
                volatile=name == "mean",
            )
        )
    return tensors


def host_tensor(name, array):
    shape = {"global_shape": array.shape, "offset": (0,), "extent": array.shape}
    return unreft.Tensor(name, unreft.Dtype.UINT8, **shape, data=array.ctypes.data)


def values(tensors):
    """The values that a tensor's bytes have, by name."""
    must(cuda.cudaDeviceSynchronize())
    # The fake's device memory is the host's.
    found = {t.name: set(ctypes.string_at(t.data, t.extent[0])) for t in tensors}
    return {name: sorted(bytes_) for name, bytes_ in found.items()}


def flip_a_bit_of(tensor):
    cuda.fakecuda_flip_bit(ctypes.c_void_p(tensor.data + FLIPPED_BYTE))


def wait_until(client, condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition(client.status()):
        assert time.monotonic() < deadline, client.status()
        time.sleep(0.001)


def main():
    stream = ctypes.c_void_p()
    must(cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 0))
    offloaded, count = np.zeros(100_000, np.uint8), np.zeros(1, np.uint8)
    tensors = [*new_tensors(), host_tensor("offloaded", offloaded), host_tensor("step", count)]
    client = unreft.Client()
    decision = client.restore_begin()
    if decision.restored:
        if FLIP_AT == "restore":
            flip_a_bit_of(tensors[0])
        try:
            client.restore_read(tensors)
        except unreft.DataLoss as error:
            say(restored=None, error=str(error))
            client.close()
            return
        client.restore_end()
        say(restored=decision.step, values=values(tensors))
    client.register(tensors)
    for step in range(decision.step + 1, decision.step + 4):
        client.fence(stream.value)
        for tensor in tensors[:3]:
            size = ctypes.c_size_t(tensor.extent[0])
            must(cuda.cudaMemsetAsync(ctypes.c_void_p(tensor.data), step, size, stream))
        offloaded[:] = count[:] = step
        wait_until(client, lambda status: status.ready)
        if FLIP_AT == str(step):
            flip_a_bit_of(tensors[0])
        assert client.snapshot(step, stream=stream.value)
        # Or the fence would give it up.
        wait_until(client, lambda status: not status.copying)
        try:
            client.wait_committed(step, DEADLINE_S)
        except unreft.Aborted as error:
            assert FLIP_AT == str(step), error
            say(abandoned=step, error=str(error))
    status = client.status()
    client.close()
    say(
        committed=status.last_committed_step,
        given_up=status.given_up,
        copier=status.copier,
        unsampled=status.unsampled,
        violations=cuda.fakecuda_violations().decode(),
    )


if __name__ == "__main__":
    sys.exit(main())
