"""The plain encoding: what it holds comes back as it was, and other bytes are refused."""

import math
import random
import struct

import numpy as np
import pytest
import torch
import unreft
from test_safe_pickle import PLAIN, Phase, Position, same
from unreft.torch.plain import DEPTH_MAX, Encoded, dumps, loads


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_come_back(value):
    back = loads(dumps({"value": [value]}))["value"][0]
    assert type(back) is type(value) and same(value, back)


def test_numbers_keep_their_bits():
    for bits in (0x7FF8000000000001, 0x8000000000000000, 0xFFF0000000000000, 1):
        value = struct.unpack("<d", struct.pack("<Q", bits))[0]
        assert struct.pack("<d", loads(dumps(value))) == struct.pack("<Q", bits)
    for value in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**127, -(2**127), 255, -128):
        assert loads(dumps(value)) == value
    back = loads(dumps([1, 1.0, True, complex(-0.0, math.inf)]))
    assert list(map(type, back)) == [int, float, bool, complex]
    assert math.copysign(1, back[3].real) == -1


def test_the_bytes_are_those_of_the_page():
    """docs/formats/extras.md; whoever changes them breaks what is stored."""
    value = {"lr": 0.5, "betas": (1, -2), "on": [True, False, None], "é": b"\xff", 2**64: 1j}
    assert dumps(value).hex(" ").replace(" ", "") == "".join(
        [
            "64 05000000",
            "73 02000000 6c72 66 000000000000e03f",
            "73 05000000 6265746173 74 02000000 69 0100000000000000 69 feffffffffffffff",
            "73 02000000 6f6e 6c 03000000 54 46 4e",
            "73 02000000 c3a9 62 01000000 ff",
            "49 09000000 000000000000000001",
            "6d 74 03000000 73 07000000 636f6d706c6578 66 0000000000000000 66 000000000000f03f"
            "6c 00000000 64 00000000",
        ]
    ).replace(" ", "")


def test_what_is_encoded_already_is_put_in():
    names = dumps(["a", "b"])
    assert dumps({"params": names}) == dumps({"params": ["a", "b"]})
    assert loads(dumps([Encoded(dumps(1.5))])) == [1.5]


def test_tensors_come_back_in_memory_of_their_own():
    tensor = torch.arange(6.0).view(2, 3)
    back = loads(dumps([tensor]))[0]
    tensor += 1
    assert torch.equal(back, torch.arange(6.0).view(2, 3))


# --- refusals ---


class Str(str):
    pass


@pytest.mark.parametrize(
    "value, what",
    [
        (Position(1, []), "a test_safe_pickle.Position"),
        (Phase.WARM, "a test_safe_pickle.Phase"),
        (Str("a"), "a test_plain.Str"),
        (len, "builtins.len itself"),
        (Position, "test_safe_pickle.Position itself"),
        (np.array([object()]), "holds Python objects"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo is not supported"),
    ],
    ids=str,
)
def test_what_has_no_encoding_is_refused_by_name(value, what):
    with pytest.raises(unreft.InvalidArgument, match=what):
        dumps({"value": [value]})


def test_depth():
    value = 1
    for _ in range(DEPTH_MAX):
        value = [value]
    assert loads(dumps(value)) == value
    with pytest.raises(unreft.InvalidArgument, match="more than 32 deep"):
        dumps([value])
    ring = {}
    ring["ring"] = ring
    with pytest.raises(unreft.InvalidArgument, match="contains itself"):
        dumps(ring)


def lost(data, match=None):
    with pytest.raises(unreft.DataLoss, match=match):
        loads(data)


def made(*arguments, items=(), pairs=None):
    return b"m" + dumps(arguments) + dumps(list(items)) + dumps(pairs or {})


@pytest.mark.parametrize(
    "data, match",
    [
        (b"", "end within a value"),
        (b"?", "tag b'\\?' is not known"),
        (b"i\0\0", "end within"),
        (b"NN", "more bytes than one value"),
        (b"s\x05\0\0\0ab", "5 of 2 bytes that are left"),
        (b"s\x01\0\0\0\xff", "UnicodeDecodeError"),
        (b"l\xff\xff\xff\xff", "4294967295 of 0"),
        (b"d\x02\0\0\0" + dumps("a") + b"N" + dumps("a") + b"T", "a key twice"),
        (b"d\x02\0\0\0" + dumps(1) + b"N" + dumps(1.0) + b"T", "a key twice"),
        (b"e\x02\0\0\0" + dumps(1) * 2, "an element twice"),
        (b"d\x01\0\0\0" + dumps([]) + b"N", "unhashable"),
        (b"l\x01\0\0\0" * 33 + b"N", "more than 32 deep"),
        (b"mNNN", "says nothing"),
        (made(), "missing"),
        (made("unheard"), "which Unreft does not know"),
        (made("tensor", "float32", (2,), b"abc"), "3 bytes were stored"),
        (made("tensor", "load", (2,), b"abc"), "for a dtype of torch"),
        (made("tensor", "float32", (-1, -1), b"abcd"), "of shape"),
        (made("array", "|O", (1,), b"12345678"), "OBJECT"),
        (made("device", "nowhere"), "RuntimeError"),
        (made("defaultdict", "eval"), "KeyError"),
        (made("range", 0, 1, 0), "ValueError"),
        (made("complex", 1.0, 2.0, items=[1]), "neither items nor pairs"),
        (made("deque", 2, pairs={0: 1}), "neither items nor pairs"),
        (made("tensor", "float32", (1,), b"abcd", pairs={0: 1}), "neither items nor pairs"),
    ],
    ids=lambda it: None if isinstance(it, str) else str(it[:12]),
)
def test_hostile_bytes_are_lost(data, match):
    lost(data, match)


def test_what_names_a_class_or_a_device_is_refused():
    for data in (made("new", "os.system"), made("called", "os.system", "true")):
        with pytest.raises(unreft.FailedPrecondition, match="os.system was stored"):
            loads(data)
    with pytest.raises(unreft.FailedPrecondition, match="on a device are not stored"):
        loads(made("aside", "float32", (1,), 0))
    staged = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(unreft.DataLoss, match="4 bytes at 1 of the 4"):
        loads(made("aside", "float32", (1,), 1), staged)


def test_any_bytes_are_read_or_refused():
    whole = dumps({"a": PLAIN, "b": {"c": [1, 2.5, (None, True)], 7: "text"}})
    for end in range(len(whole)):
        lost(whole[:end])
    draw = random.Random(1)
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            data[at] = draw.choice([draw.randrange(256), data[at] ^ 1, 0, 255])
        try:
            loads(bytes(data))
        except (unreft.DataLoss, unreft.FailedPrecondition):
            pass
