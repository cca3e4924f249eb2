"""alike: what counts as the same of what ranks have stored."""

import collections
import enum
import io

import numpy as np
import pytest
import torch

from unreft.torch.alike import alike, same_bytes, unlike_first

NAN = float("nan")


class Position:
    def __init__(self, **values):
        self.__dict__.update(values)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


ALIKE = [
    lambda: None,
    lambda: {"a": [1, 2.5, "x", b"y", (True, None)], "b": {1, 2}},
    lambda: {"nan": float("nan")},
    lambda: complex(0.0, float("nan")),
    lambda: torch.tensor([1.0, NAN]),
    lambda: torch.arange(6).view(2, 3).t(),
    lambda: np.array([1.0, NAN]),
    lambda: np.float32(NAN),
    lambda: collections.OrderedDict(a=1, b=[2]),
    lambda: collections.defaultdict(list, a=[1]),
    lambda: collections.Counter("aab"),
    lambda: collections.deque([1, [2]], 5),
    lambda: slice(1, None, 2),
    lambda: frozenset([(1, 2)]),
    lambda: io.BytesIO(b"abc"),
    lambda: torch.Size([2, 3]),
    lambda: torch.float16,
    lambda: Kind.ONE,
    lambda: Position(epoch=3, seen=torch.ones(2)),
]


@pytest.mark.parametrize("make", ALIKE)
def test_copies_are_alike(make):
    assert alike(make(), make())


UNLIKE = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ([1], (1,)),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({1: "x"}, {True: "x"}),
    ({"a": [0.0]}, {"a": [-0.0]}),
    ({1, 2}, {1, 3}),
    ({1}, {1.0}),
    (torch.zeros(2), torch.zeros(3)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2), -torch.zeros(2)),
    (torch.zeros(1), np.zeros(1)),
    (np.zeros(2, np.int32), np.zeros(2, np.int64)),
    (np.zeros(2), -np.zeros(2)),
    (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
    (collections.OrderedDict(a=1), {"a": 1}),
    (collections.defaultdict(list), collections.defaultdict(set)),
    (collections.deque([1], 2), collections.deque([1], 3)),
    (slice(1, 2), slice(1, 3)),
    (range(3), range(4)),
    (Kind.ONE, Kind.TWO),
    (Position(epoch=3), Position(epoch=4)),
    (Position(epoch=3), {"epoch": 3}),
    (int, float),
    ("a", b"a"),
]


@pytest.mark.parametrize("a, b", UNLIKE)
def test_what_differs(a, b):
    assert not alike(a, b) and not alike(b, a)
    assert not alike([{"deep": (a,)}], [{"deep": (b,)}])


def test_the_order_of_a_dict_does_not_matter():
    assert alike({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_what_contains_itself():
    def ring(value):
        made = [value]
        made.append(made)
        return made

    assert alike(ring(1), ring(1))
    assert not alike(ring(1), ring(2))


def test_what_is_shared_is_compared_once():
    def shared():
        value = [0.5]
        for _ in range(100):
            value = [value, value]
        return value

    assert alike(shared(), shared())


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 6)])
def test_bytes_in_any_memory_order(dtype, shape):
    tensor = torch.ones(shape, dtype=dtype)
    assert same_bytes(tensor, tensor.clone())
    if tensor.dim() == 2:
        assert same_bytes(tensor, tensor.t().contiguous().t())
    if tensor.numel():
        assert not same_bytes(tensor, torch.zeros_like(tensor))


def test_places_that_differ_from_the_first():
    assert unlike_first([NAN, NAN, 1.0, NAN, 2.0]) == [2, 4]
    assert unlike_first([5]) == []
