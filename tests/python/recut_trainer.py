"""One rank of a matrix that all ranks have together, cut by its columns, its rows, or its elements.

Restores whatever the matrix was cut into before, by any number of ranks, checks every element and
what each rank had beside it, takes one snapshot more, waits for its commit, and ends. Another rank
may skip a step, and then nobody commits it. With --train it takes one after the other, until it is
ended.
"""

import argparse
import contextlib
import os
import time

import numpy as np

import unreft
from cli_trainer import say

SHAPE = (1201, 1603)


def share_of(length, rank, world):
    return length * rank // world, length * (rank + 1) // world


def whole(step):
    """No element is equal to another, or to itself at another step."""
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.int64).reshape(SHAPE) + step * 2**32


class Shard:
    """What a rank has of the matrix: whole columns, whole rows, or so many elements of it in a row
    that some of them are parts of rows."""

    def __init__(self, cut, rank, world):
        box = [slice(0, length) for length in SHAPE]
        self._elements = None
        if cut == "ranges":
            self._elements = share_of(SHAPE[0] * SHAPE[1], rank, world)
        else:
            dimension = ["rows", "columns"].index(cut)
            box[dimension] = slice(*share_of(SHAPE[dimension], rank, world))
        self._box = tuple(box)
        self.array = np.full(self.expected(0).shape, -1, np.int64)
        self.tensor = unreft.Tensor(
            "matrix", unreft.Dtype.INT64, SHAPE, tuple(cut.start for cut in box),
            tuple(cut.stop - cut.start for cut in box), data=self.array.ctypes.data,
            range=self._elements)

    def expected(self, step):
        box = whole(step)[self._box]
        if self._elements is None:
            return box
        return box.ravel()[slice(*self._elements)]


def extras_of(rank, world):
    return f"rank {rank} of {world}".encode()


def check_extras(client, decision, rank, world):
    if decision.source_world == world:
        assert decision.extras == extras_of(rank, world)
        return
    assert decision.extras is None
    for other in range(decision.source_world):
        assert client.restore_extras(other) == extras_of(other, decision.source_world)
    with contextlib.suppress(unreft.OutOfRange):
        client.restore_extras(decision.source_world)
        raise AssertionError("there was no such rank")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cut", choices=["rows", "columns", "ranges"], required=True)
    parser.add_argument("--same-world", dest="any_world", action="store_false")
    parser.add_argument("--snapshot-when", help="that file is there")
    parser.add_argument("--train", action="store_true", help="until it is ended")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shard = Shard(args.cut, rank, world)
    with unreft.Client(any_world=args.any_world) as client:
        decision = client.restore_begin()
        step = decision.step if decision.restored else 0
        if decision.restored:
            check_extras(client, decision, rank, world)
            client.restore_read([shard.tensor])
            assert (shard.array == shard.expected(step)).all()
        client.restore_end()
        client.register([shard.tensor])
        say(registered=True)
        while args.snapshot_when and not os.path.exists(args.snapshot_when):
            time.sleep(0.05)
        if args.train:
            say(restored=step, attempt=int(os.environ["UNREFT_ATTEMPT"]))
        is_committed = False
        while args.train or not is_committed:
            client.fence()
            step += 1
            shard.array[:] = shard.expected(step)
            if client.snapshot(step, extras_of(rank, world)):
                with contextlib.suppress(unreft.Error):
                    client.wait_committed(step, 60)
                    is_committed = True
    say(restored=decision.restored and decision.step, committed=step,
        source_world=decision.source_world)


if __name__ == "__main__":
    main()
