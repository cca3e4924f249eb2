"""A tensor that a framework pads to a multiple of its ranks, restored by another number of them:
against the real daemon, the ranks' clients all in this process."""

import numpy as np
import pytest
from real_store import Store
from test_ranges import ranks_of

import unreft

WORDS, WIDTH = 13, 3  # 13, 14, 15 or 16 with padding
PADDING, UNTOUCHED = -1.0, -2.0


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def padded(world):
    return -(-WORDS // world) * world


def vocabulary(world):
    rows = np.full((padded(world), WIDTH), PADDING, np.float32)
    rows[:WORDS] = np.arange(WORDS * WIDTH, dtype=np.float32).reshape(WORDS, WIDTH)
    return rows


def shards(whole, world, **options):
    rows = len(whole) // world
    arrays = [np.ascontiguousarray(whole[rank * rows:(rank + 1) * rows]) for rank in range(world)]
    return arrays, [[unreft.Tensor("embedding", unreft.Dtype.FLOAT32, whole.shape, (rank * rows, 0),
                                   (rows, WIDTH), array.ctypes.data, **options)]
                    for rank, array in enumerate(arrays)]


def save(store, world):
    with ranks_of(store, world, attempt=0) as ranks:
        arrays, tensors = shards(vocabulary(world), world)
        ranks.register(tensors)
        ranks.commit(1)


@pytest.mark.parametrize(("stored_by", "restored_by"), [(4, 3), (3, 4), (2, 1), (1, 4)])
def test_the_words_come_back_and_the_padding_stays_the_programs(store, stored_by, restored_by):
    save(store, stored_by)
    with ranks_of(store, restored_by, attempt=1) as ranks:
        arrays, tensors = shards(np.full((padded(restored_by), WIDTH), UNTOUCHED, np.float32),
                                 restored_by, allow_shape_mismatch=True)
        ranks.read(tensors)
        found = np.concatenate(arrays)
    both = min(padded(stored_by), padded(restored_by))
    assert (found[:both] == vocabulary(stored_by)[:both]).all()
    assert (found[both:] == UNTOUCHED).all()


def test_another_shape_is_refused_unless_that_is_asked_for(store):
    save(store, 4)
    with ranks_of(store, 3, attempt=1) as ranks:
        arrays, tensors = shards(np.full((padded(3), WIDTH), UNTOUCHED, np.float32), 3)
        with pytest.raises(unreft.FailedPrecondition, match="'embedding'.*is stored as"):
            ranks.read(tensors)


def test_a_range_of_a_padded_tensor_is_restored(store):
    save(store, 4)
    shape = (padded(1), WIDTH)
    elements = padded(1) * WIDTH
    with ranks_of(store, 2, attempt=1) as ranks:
        cut = elements // 2
        arrays = [np.zeros(cut, np.float32), np.zeros(elements - cut, np.float32)]
        ranks.read([[unreft.Tensor("embedding", unreft.Dtype.FLOAT32, shape, (0, 0), shape,
                                   array.ctypes.data, range=range_, allow_shape_mismatch=True)]
                    for array, range_ in zip(arrays, [(0, cut), (cut, elements)])])
        assert (np.concatenate(arrays).reshape(shape) == vocabulary(1)).all()
