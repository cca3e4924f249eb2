"""A rank with fp32 masters on a device of the fake runtime and bf16 weights that follow from them.

As a program does it that uses the C ABI alone (docs/derived_state.md): the weights are not
registered; a digest of them, computed on the device's stream, is a volatile tensor.
"""

import ctypes
import sys

import numpy as np
import unreft
from device_trainer import DEADLINE_S, cuda, must, wait_until
from saying import say

COUNT = 3_000_000  # weights: 6 MB, two thirds of a piece


def on_device(dtype, count):
    """An array in the fake's device memory, which is the host's."""
    data = ctypes.c_void_p()
    must(cuda.cudaMalloc(ctypes.byref(data), ctypes.c_size_t(count * np.dtype(dtype).itemsize)))
    kind = np.ctypeslib.as_ctypes_type(dtype) * count
    return np.ctypeslib.as_array(kind.from_address(data.value))


def tensor(name, array, volatile=False):
    own = unreft.Tensor.of_array(name, array, volatile=volatile)
    own.device = unreft.Device.CUDA
    return own


def cast(masters):
    """To bf16, rounded to the nearest, ties to even."""
    bits = masters.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def weights_of(count):
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (z ^ z >> np.uint64(31)) | np.uint64(1)


def digest(array, weights):
    words = array.view(np.int32).astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        return (words * weights).sum(dtype=np.uint64)


def main():
    stream = ctypes.c_void_p()
    must(cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 0))
    masters, weights = on_device(np.float32, COUNT), on_device(np.uint16, COUNT)
    digests, factors = on_device(np.uint64, 1), weights_of(COUNT // 2)
    tensors = [tensor("masters", masters), tensor("weights.digest", digests, volatile=True)]
    client = unreft.Client()
    decision = client.restore_begin()
    if decision.restored:
        assert {t.name for t in decision.tensors} == {"masters", "weights.digest"}
        client.restore_read(tensors)
        client.restore_end()
        must(cuda.cudaDeviceSynchronize())
        made = cast(masters)
        found = digest(made, factors)
        right = bool(found == digests[0])
        if right:
            weights[:] = made
        made[12345] ^= 1
        say(restored=decision.step, verified=right, other=bool(digest(made, factors) == digests[0]))
        say(weights=f"{found:016x}")
    client.register(tensors)
    for step in range(decision.step + 1, decision.step + 4):
        client.fence(stream.value)
        must(cuda.cudaStreamSynchronize(stream))
        masters[:] = np.random.default_rng(step).standard_normal(COUNT, np.float32)
        weights[:] = cast(masters)
        digests[0] = digest(weights, factors)
        wait_until(client, lambda status: status.ready)
        assert client.snapshot(step, stream=stream.value)
        # The stream may write the next one at once: it is volatile.
        last = int(digests[0])
        at = ctypes.c_void_p(digests.ctypes.data)
        must(cuda.cudaMemsetAsync(at, 0, ctypes.c_size_t(8), stream))
        wait_until(client, lambda status: not status.copying)
        client.wait_committed(step, DEADLINE_S)
    status = client.status()
    client.close()
    say(
        committed=status.last_committed_step,
        bytes=status.bytes_captured,
        given_up=status.given_up,
        violations=cuda.fakecuda_violations().decode(),
        weights=f"{last:016x}",
    )


if __name__ == "__main__":
    sys.exit(main())
