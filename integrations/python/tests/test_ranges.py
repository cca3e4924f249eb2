"""Tensors of which a rank has a range of elements, against the real daemon: the ranks' clients all
in this process."""

import concurrent.futures
import contextlib
import time

import numpy as np
import pytest
from real_store import Store

import unreft

DEADLINE_S = 60
SHAPE = (7, 5, 3)
ELEMENTS = 7 * 5 * 3
# In the middle of rows of both kinds; the second rank has nothing, the last one's part is a row's.
RANGES = [(0, 52), (52, 52), (52, 103), (103, 105)]


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def values():
    return np.arange(ELEMENTS, dtype=np.float32).reshape(SHAPE)


def range_of(array, begin, end, **options):
    """The elements [begin, end) of the whole matrix, which lie in the array."""
    address = array.ctypes.data if array.size else 0
    return unreft.Tensor("m", unreft.Dtype.FLOAT32, SHAPE, (0, 0, 0), SHAPE, address,
                         range=(begin, end), **options)


class Ranks:
    """An attempt: a client of each rank, whose calls wait for each other."""

    def __init__(self, store, world, attempt):
        self.clients = [unreft.Client(socket=store.socket, job=store.job, rank=rank, world=world,
                                      attempt=attempt, any_world=True) for rank in range(world)]
        self._threads = concurrent.futures.ThreadPoolExecutor(world)
        self.decisions = self.all(lambda client, rank: client.restore_begin())

    def all(self, call):
        futures = [self._threads.submit(call, client, rank)
                   for rank, client in enumerate(self.clients)]
        return [future.result(DEADLINE_S) for future in futures]

    def register(self, tensors):
        self.all(lambda client, rank: client.register(tensors[rank]))

    def commit(self, step):
        """The first step from this one on that all ranks capture."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            taken = self.all(lambda client, rank: client.snapshot(step))
            self.all(lambda client, rank: client.fence())
            if all(taken):
                with contextlib.suppress(unreft.Aborted):
                    self.all(lambda client, rank: client.wait_committed(step, DEADLINE_S))
                    return step
            assert time.monotonic() < deadline, [each.reason for each in taken]
            time.sleep(0.01)
            step += 1

    def read(self, tensors):
        self.all(lambda client, rank: client.restore_read(tensors[rank]))

    def close(self):
        for client in self.clients:
            client.close()
        self._threads.shutdown()


@contextlib.contextmanager
def ranks_of(store, world, attempt):
    ranks = Ranks(store, world, attempt)
    try:
        yield ranks
    finally:
        ranks.close()


def parts(ranges, fill=None):
    """What the ranks have, one array each, and what says so."""
    arrays = [np.full(end - begin, fill, np.float32) if fill is not None
              else values().ravel()[begin:end].copy() for begin, end in ranges]
    return arrays, [[range_of(array, *bounds)]
                    for array, bounds in zip(arrays, ranges, strict=True)]


def save(store, ranges, attempt=1):
    arrays, tensors = parts(ranges)
    with ranks_of(store, len(ranges), attempt) as ranks:
        ranks.register(tensors)
        return ranks.commit(1), arrays


def test_ranges_come_back_as_ranges_and_are_described_as_boxes(store):
    saved = save(store, RANGES)[1]
    found, tensors = parts(RANGES, fill=-1)
    with ranks_of(store, len(RANGES), 2) as ranks:
        ranks.read(tensors)
        boxes = [[(t.offset, t.extent) for t in decision.tensors if t.name == "m"]
                 for decision in ranks.decisions]
    assert [(part == was).all() for part, was in zip(found, saved, strict=True)] == [True] * 4
    assert boxes[0] == [((0, 0, 0), (3, 5, 3)), ((3, 0, 0), (1, 2, 3)), ((3, 2, 0), (1, 1, 1))]
    assert boxes[3] == [((6, 4, 1), (1, 1, 2))]


@pytest.mark.parametrize("ranges", [[(0, 105)], [(0, 1), (1, 104), (104, 105)],
                                    [(i * 105 // 8, (i + 1) * 105 // 8) for i in range(8)]])
def test_ranges_come_back_as_other_ranges_of_other_numbers_of_ranks(store, ranges):
    save(store, RANGES)
    found, tensors = parts(ranges, fill=-1)
    with ranks_of(store, len(ranges), 2) as ranks:
        ranks.read(tensors)
    assert (np.concatenate(found) == values().ravel()).all()


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_ranges_come_back_as_boxes_and_boxes_as_ranges(store, dimension):
    save(store, RANGES)
    cuts = [slice(0, 1), slice(1, None)]
    boxes = [tuple(cut if d == dimension else slice(None) for d in range(3)) for cut in cuts]
    arrays = [np.full(values()[box].shape, -1, np.float32) for box in boxes]
    tensors = [[unreft.Tensor.of_array("m", array, global_shape=SHAPE,
                                       offset=tuple(cut.start or 0 for cut in box))]
               for array, box in zip(arrays, boxes, strict=True)]
    with ranks_of(store, 2, 2) as ranks:
        ranks.read(tensors)
        for array, box in zip(arrays, boxes, strict=True):
            assert (array == values()[box]).all()
            array *= 2
        ranks.register(tensors)
        ranks.commit(1000)
    found, tensors = parts(RANGES, fill=-1)
    with ranks_of(store, len(RANGES), 3) as ranks:
        ranks.read(tensors)
    assert (np.concatenate(found) == 2 * values().ravel()).all()


def test_a_range_may_be_of_a_part_have_replicas_and_be_volatile(store):
    """The upper rows, which two ranks have alike, and the lower ones, which are another's."""
    upper = {"global_shape": SHAPE, "offset": (0, 0, 0), "extent": (4, 5, 3)}
    lower = {"global_shape": SHAPE, "offset": (4, 0, 0), "extent": (3, 5, 3)}
    flat = values().ravel()
    held = [(upper, (0, 31), 0, 2), (upper, (0, 31), 1, 2), (upper, (31, 60), 0, 1),
            (lower, (0, 45), 0, 1)]

    def tensor_of(array, box, bounds, index, count):
        return unreft.Tensor("m", unreft.Dtype.FLOAT32, **box, data=array.ctypes.data,
                             replica_index=index, replica_count=count, volatile=True, range=bounds)

    arrays = [flat[begin + (60 if box is lower else 0):end + (60 if box is lower else 0)].copy()
              for box, (begin, end), *_ in held]
    with ranks_of(store, 4, 1) as ranks:
        ranks.register([[tensor_of(array, *rest)]
                        for array, rest in zip(arrays, held, strict=True)])
        ranks.commit(1)
    found, tensors = parts([(0, 105)], fill=-1)
    with ranks_of(store, 1, 2) as ranks:
        ranks.read(tensors)
    assert (found[0] == flat).all()


def test_a_range_that_is_rebound_is_captured_where_it_is(store):
    ranges = [(0, 52), (52, 105)]
    arrays, tensors = parts(ranges)
    other = np.array([3], dtype=np.float32)
    tensors = [[*of_rank, unreft.Tensor.of_array("n", other, replica_index=rank, replica_count=2)]
               for rank, of_rank in enumerate(tensors)]
    with ranks_of(store, 2, 1) as ranks:
        ranks.register(tensors)
        step = ranks.commit(1)
        moved = [array + 1000 for array in arrays]
        others = [np.array([4], dtype=np.float32) for _ in ranges]
        ranks.all(lambda client, rank: client.rebind(
            [0, 1], [moved[rank].ctypes.data, others[rank].ctypes.data]))
        for array in (*arrays, other):
            array[:] = -1  # nobody's any more
        ranks.commit(step + 1)
    found, tensors = parts([(0, 105)], fill=-1)
    with ranks_of(store, 1, 2) as ranks:
        ranks.read([[*tensors[0], unreft.Tensor.of_array("n", other)]])
    assert (found[0] == values().ravel() + 1000).all()
    assert other == 4


def test_ranges_that_overlap_or_leave_a_hole_are_refused_by_the_boxes_they_come_to(store):
    for attempt, (ranges, why) in enumerate((
        ([(0, 52), (50, 105)], r"tensor 'm': shards overlap without being replicas, "
                               r"\[3:4, 0:2, 0:3\) of rank 0 and \[3:4, 1:2, 2:3\) of rank 1"),
        ([(0, 52), (53, 105)], "tensor 'm': the shards of all ranks cover 104 elements of the 105"),
    )):
        held = parts(ranges)
        with ranks_of(store, 2, attempt) as ranks:
            ranks.register(held[1])
            with pytest.raises(unreft.FailedPrecondition, match=why):
                ranks.all(lambda client, rank: client.wait_ready(DEADLINE_S))


def test_what_is_no_range_is_refused_by_name(store):
    array = values().ravel()
    with unreft.Client(socket=store.socket, job=store.job, rank=0, world=1, attempt=1) as client:
        client.restore_begin()
        for bounds, why in (((3, 106), "'m'.*<= 105.*found begin 3 and end 106"),
                            ((9, 8), "'m'.*found begin 9 and end 8"),
                            ((1, 2, 3), "'m': range needs 2 numbers, begin and end, found 3")):
            tensor = range_of(array, 0, 0)
            tensor.range = bounds
            with pytest.raises(unreft.InvalidArgument, match=why):
                client.register([tensor])
            with pytest.raises(unreft.InvalidArgument, match=why):
                client.restore_read([tensor])
        with pytest.raises(TypeError, match="tensor 'm': range: needed a number from 0"):
            client.register([range_of(array, -1, 3)])
        ordered = range_of(array, 0, 105, memory_order=(2, 0, 1))
        with pytest.raises(unreft.InvalidArgument, match=r"tensor m: a range needs row-major"):
            client.register([ordered])
