"""What extras may be made of, and that nothing which comes back runs code that nobody named."""

import collections
import copyreg
import dataclasses
import enum
import fractions
import functools
import io
import math
import os
import pathlib
import pickle
import pickletools

import numpy as np
import pytest
import torch
import unreft
from fake_job import Job
from unreft.torch import registered_tensors, safe_pickle
from unreft.torch.safe_pickle import Classes, dumps, loads


@dataclasses.dataclass
class Position:
    epoch: int
    order: list


class Pair(collections.namedtuple("Pair", "left right")):
    pass


class Phase(enum.Enum):
    WARM = 1


class Steps(dict):
    """A container of its own class, with state beside its items."""

    def __init__(self):
        super().__init__(first=1)
        self.unit = "ms"


class ByFunction:
    def __reduce__(self):
        return print, ("a function of its own",)


NAMED = Classes([Position, Pair, Phase, Steps])


class Runs:
    """Touches a file when it is unpickled freely."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self._path),)


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return left == right


PLAIN = [
    None, True, -(2**80), 1.5, math.inf, 2j, "é", b"\0\xff", bytearray(b"x"), range(3, 9, 2),
    slice(1, None, 2), (1, (2,)), [1, [2]], {"a": {1: 2}}, {1, 2}, frozenset({3}),
    collections.OrderedDict(b=1, a=2), collections.Counter("aab"), collections.deque([1, 2], 2),
    collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None, {1: 2}),
    torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1),
    torch.arange(6).reshape(2, 3).t(), torch.tensor(1.5, dtype=torch.bfloat16), torch.zeros(0, 4),
    torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag,
    np.float32(1.5), np.int64(-3), np.datetime64("2024-02-29"),
    np.arange(6, dtype=np.uint16).reshape(2, 3).T, np.zeros((0, 2)), np.array(7),
    np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]), np.array(["text"]),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_come_back(value):
    back = loads(dumps({"value": value}))["value"]
    assert type(back) is type(value) and same(value, back)


def test_containers_keep_what_makes_them_what_they_are():
    deque = loads(dumps(collections.deque([1, 2, 3], 3)))
    deque.append(4)
    assert list(deque) == [2, 3, 4]
    lists = loads(dumps(collections.defaultdict(list)))
    assert lists["new"] == []
    stream = io.BytesIO(b"abc")
    stream.read(1)
    assert loads(dumps(stream)).read() == b"bc"
    shared = [1]
    left, right = loads(dumps([shared, shared]))
    assert left is right
    ring = []
    ring.append(ring)
    back = loads(dumps(ring))
    assert back[0] is back
    array = loads(dumps(np.zeros(2)))
    array[0] = 1  # writable, in memory of its own


@pytest.mark.parametrize(
    "value", [Position(1, [2]), Pair(1, 2), Phase.WARM], ids=lambda value: type(value).__name__
)
def test_classes_that_are_named_come_back(value):
    back = loads(dumps([value, value], classes=NAMED), classes=NAMED)
    assert back == [value, value] and type(back[0]) is type(value)


def test_an_instance_keeps_items_and_state():
    back = loads(dumps(Steps(), classes=NAMED), classes=NAMED)
    assert type(back) is Steps and back == {"first": 1} and back.unit == "ms"


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (Position(1, []), "a test_safe_pickle.Position cannot be stored"),
        (fractions.Fraction(1, 2), "a fractions.Fraction cannot"),
        (pathlib.PurePosixPath("/"), "a pathlib.PurePosixPath cannot"),
        (os.system, "posix.system itself cannot"),
        (Position, "test_safe_pickle.Position itself cannot"),
        (lambda: 1, "<lambda> itself cannot"),
        (functools.partial(int), "a functools.partial cannot"),
        (torch.nn.Linear(1, 1), "a torch.nn.modules.linear.Linear cannot"),
        (np.array([object()]), "of dtype object holds Python objects"),
        (np.random.default_rng(), "a numpy.random._generator.Generator cannot"),
        (collections.defaultdict(Position), "a defaultdict of <class"),
        (torch.eye(2).to_sparse(), "a Tensor of shape \\(2, 2\\) and layout torch.sparse_coo"),
    ],
)
def test_anything_else_is_refused_by_name(value, described):
    with pytest.raises(unreft.InvalidArgument, match=f"extras: .*{described}"):
        dumps([value])


def test_a_named_class_that_is_made_by_another_function_is_refused():
    with pytest.raises(unreft.InvalidArgument, match="ByFunction cannot be stored, .*print"):
        dumps(ByFunction(), classes=Classes([ByFunction]))


def test_classes_must_be_classes_and_of_one_name():
    with pytest.raises(unreft.InvalidArgument, match="needed classes, found 'Position'"):
        Classes(["Position"])
    other = type("Position", (), {"__module__": Position.__module__})
    with pytest.raises(unreft.InvalidArgument, match="two classes are named .*Position"):
        Classes([Position, other])


def test_a_class_is_stored_only_as_itself():
    other = type("Position", (), {"__module__": Position.__module__})
    with pytest.raises(unreft.InvalidArgument, match="Position cannot be stored"):
        dumps(other(), classes=NAMED)


def test_a_class_that_is_no_longer_named_is_said():
    data = dumps(Position(1, []), classes=NAMED)
    with pytest.raises(unreft.FailedPrecondition, match="needed attach.extras_classes=.Position"):
        loads(data)


# --- what somebody else wrote ---


def test_nothing_runs(tmp_path):
    target = tmp_path / "ran"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"extras": Runs(target)}, protocol)
        with pytest.raises(unreft.DataLoss, match="another release wrote it, or somebody else"):
            loads(data, classes=NAMED)
    assert not target.exists()
    pickle.loads(data)
    assert target.exists()


def inner(value):
    """The opcodes of a plain value, without header and end."""
    return pickletools.optimize(pickle.dumps(value, 3))[2:-1]


def named(module, name):
    """The opcodes that ask for a global."""
    texts = (b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return b"".join(texts) + b"\x93"


MAKE = named("unreft.torch.safe_pickle", "make")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("torch", "load"),
        ("unreft.torch.safe_pickle", "loads"), ("unreft.torch.safe_pickle", "make.__globals__"),
        ("test_safe_pickle", "Position"),
    ],
)  # fmt: skip
def test_no_global_is_found(module, name):
    with pytest.raises(unreft.DataLoss, match=f"names {module}.{name}, which Unreft does not"):
        loads(named(module, name) + b".", classes=NAMED)
    old = f"c{module}\n{name}\n.".encode()
    with pytest.raises(unreft.DataLoss, match="is the pickle's GLOBAL, which Unreft does not"):
        loads(old, classes=NAMED)


def test_extension_codes_name_nothing_else():
    copyreg.add_extension("os", "system", 240)
    try:
        with pytest.raises(unreft.DataLoss, match="the pickle's EXT1"):
            loads(b"\x82\xf0.")
    finally:
        copyreg.remove_extension("os", "system", 240)


def test_no_memory_is_taken_that_no_data_needs():
    """The memo of a pickle has room for the largest number that is put."""
    with pytest.raises(unreft.DataLoss, match="byte 1 of 7 stored is the pickle's LONG_BINPUT"):
        loads(b"Nr\xff\xff\xff\x7f.")


def made(*arguments):
    """A pickle that asks for `make(*arguments)`, whatever they are."""
    return MAKE + inner(arguments) + b"R."


def test_the_maker_of_things_is_not_changed():
    for state in ({"_classes": 1}, (None, {"_classes": 1})):
        with pytest.raises(unreft.DataLoss):
            loads(MAKE + inner(state) + b"b.")
    assert loads(made("complex", 0.0, 1.0)) == 1j


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nothing of this name",),
        ("tensor", "float32", (4,), b"\0" * 12),
        ("tensor", "float32", (1,), b"\0" * 4096),
        ("tensor", "float32", (2**62, 4), b""),
        ("tensor", "float32", (-1, -1), b"\0" * 4),
        ("tensor", "float32", (True,), b"\0" * 4),
        ("tensor", "float32", 1, b"\0" * 4),
        ("tensor", "float32", (1,), "1234"),
        ("tensor", "load", (), b"\0" * 4),
        ("tensor", "__builtins__", (), b""),
        ("array", "|O", (1,), b"\0" * 8),
        ("array", "<f4", (2,), b"\0" * 4),
        ("array", "<f4", (-1,), "text"),
        ("number", "<f8", (), b"\0"),
        ("defaultdict", "eval"),
        ("deque", -1),
        ("dtype", "load"),
        ("device", "nowhere"),
        ("new",),
        ("new", "builtins.object"),
        ("called", "os.system", "true"),
        ("called", "test_safe_pickle.Position"),
    ],
)
def test_wrong_arguments_are_errors(arguments):
    with pytest.raises((unreft.DataLoss, unreft.FailedPrecondition), match="extras: "):
        loads(made(*arguments), classes=NAMED)


def test_places_of_a_device_lie_within_what_was_stored():
    staged = torch.arange(8, dtype=torch.uint8)
    place = made("aside", "uint8", (4,), 4)
    assert loads(place, staged).tolist() == [4, 5, 6, 7]
    for wrong in (("uint8", (4,), 5), ("uint8", (4,), -4), ("float64", (2,), 0), ("load", (), 0)):
        with pytest.raises(unreft.DataLoss):
            loads(made("aside", *wrong), staged)
    with pytest.raises(unreft.FailedPrecondition, match="not stored"):
        loads(place)


def test_turned_and_missing_bytes_are_errors_or_values():
    """Never another exception: what catches one of ours would not catch it."""
    data = dumps({"a": [1, 2.5, "x"], "t": torch.ones(3), "p": Position(1, [2])}, classes=NAMED)
    ends = [data[:end] for end in range(len(data))]
    turned = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
              for at in range(len(data)) for bit in range(8)]  # fmt: skip
    refused = 0
    for changed in ends + turned:
        try:
            loads(changed, classes=NAMED)
        except (unreft.DataLoss, unreft.FailedPrecondition):
            refused += 1
    assert refused >= len(ends)


def test_a_pickle_names_one_global_and_no_pickling_of_torch_or_numpy():
    value = {"tensor": torch.ones(3), "array": np.ones(3), "named": Position(1, []), "c": 1j}
    strings = [
        argument
        for opcode, argument, _ in pickletools.genops(dumps(value, classes=NAMED))
        if opcode.name == "SHORT_BINUNICODE"
    ]
    assert strings.count(safe_pickle.__name__) == 1
    assert not any("rebuild" in text or "storage" in text or "_core" in text for text in strings)


# --- in a training loop ---


class Sampler:
    def __init__(self, made):
        self._made = made

    def state_dict(self):
        return {"position": self._made}

    def load_state_dict(self, state):
        self._made = state["position"]


def test_a_snapshot_of_what_cannot_be_stored_is_skipped_by_name(store, caplog, monkeypatch):
    monkeypatch.setattr(registered_tensors, "_RETRY_MIN_S", 0)
    monkeypatch.setattr(registered_tensors, "_RETRY_FACTOR", 0)
    sampler = Sampler(Position(1, []))
    job = Job(store, extras={"good": lambda: 1, "sampler": sampler})
    job.ck.restore()
    job.step()
    assert not job.ck.snapshot(1)
    assert "extras: 'sampler': a test_safe_pickle.Position cannot be stored" in caplog.text
    assert "extras_classes" in caplog.text
    ((step, reason),) = job.client.skipped  # who else it concerns is told
    assert step == 1 and "cannot be stored" in reason
    sampler._made = 1
    job.step()
    assert job.ck.snapshot(2), "what was mended is captured"


def test_a_job_names_its_classes(store):
    job = Job(store, extras={"sampler": Sampler(Position(7, [1]))}, extras_classes=[Position])
    job.ck.restore()
    job.step()
    assert job.ck.snapshot(1)
    restored = Sampler(None)
    other = Job(store, extras={"sampler": restored}, extras_classes=[Position])
    assert other.ck.restore() == 1
    assert restored._made == Position(7, [1])
    with pytest.raises(unreft.FailedPrecondition, match="Position was stored, and is not named"):
        Job(store, extras={"sampler": restored}).ck.restore()
