"""A rank with a matrix on a device of the fake runtime, as ranges of its elements.

CUTS says where one range ends and the next begins, all in one flat buffer at an odd address. The
second of them is volatile. Restores the matrix, however it was cut, and takes three snapshots.
"""

import ctypes
import os
import sys

import numpy as np
import unreft
from derived_device_trainer import on_device
from device_trainer import DEADLINE_S, cuda, must, wait_until
from saying import say

SHAPE = (1201, 1603)
ELEMENTS = SHAPE[0] * SHAPE[1]


def expected(step):
    return (np.arange(ELEMENTS) % 251 + step).astype(np.uint8)


def ranges_of(flat):
    cuts = [0, *map(int, os.environ["CUTS"].split(",")), ELEMENTS]
    return [
        unreft.Tensor("m", unreft.Dtype.UINT8, SHAPE, (0, 0), SHAPE, flat.ctypes.data + begin,
                      device=unreft.Device.CUDA, volatile=number == 1, range=(begin, end))
        for number, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False))
    ]


def main():
    stream = ctypes.c_void_p()
    must(cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 0))
    flat = on_device(np.uint8, ELEMENTS + 1)[1:]
    tensors = ranges_of(flat)
    client = unreft.Client()
    decision = client.restore_begin()
    if decision.restored:
        client.restore_read(tensors)
        client.restore_end()
        must(cuda.cudaDeviceSynchronize())
        say(restored=decision.step, right=bool((flat == expected(decision.step)).all()))
    client.register(tensors)
    for step in range(decision.step + 1, decision.step + 4):
        client.fence(stream.value)
        must(cuda.cudaStreamSynchronize(stream))
        flat[:] = expected(step)
        wait_until(client, lambda status: status.ready)
        assert client.snapshot(step, stream=stream.value)
        wait_until(client, lambda status: not status.copying)
        client.wait_committed(step, DEADLINE_S)
    status = client.status()
    client.close()
    say(
        committed=status.last_committed_step,
        given_up=status.given_up,
        copier=status.copier,
        violations=cuda.fakecuda_violations().decode(),
    )


if __name__ == "__main__":
    sys.exit(main())
