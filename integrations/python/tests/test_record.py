"""A snapshot's record as bytes: what Unreft understands plain, what is the user's pickled."""

import pickletools
import struct

import pytest
import torch
import unreft
from fake_job import Job, assert_equal_state, trained
from test_safe_pickle import Position
from unreft.torch import plain, record, safe_pickle
from unreft.torch.safe_pickle import Classes
from world_job import restored, stored

NONE = Classes()
RECORD = {
    "step": 3,
    "rng": {"python": (3, b"\1\2", None), "torch": torch.arange(4, dtype=torch.uint8)},
    "scalars": {
        "optimizers": [
            {"groups": [{"params": ["a", "b"], "lr": 0.5}], "states": {"a": {"steps": 7}}}
        ],
        "modules": {"norm": {"amax": 1.0}},
    },
    "extras": {"position": 9},
}


def parts_of(data):
    """As another program would read it."""
    assert data[:16] == b"UNRFXTRA" + struct.pack("<HHI", 5, 5, 0)
    return plain.loads(data[16:])


def with_parts(**changed):
    parts = parts_of(record.dumps(RECORD, None, NONE))
    parts = {name: part for name, part in {**parts, **changed}.items() if part is not KeyError}
    return record.dumps(RECORD, None, NONE)[:16] + plain.dumps(parts)


def pickled(data, **changed):
    """As format 4 had it."""
    loaded = record.loads(data, None, NONE)
    for optimizer in loaded["scalars"]["optimizers"]:
        for group in optimizer["groups"]:
            group["params"] = safe_pickle.dumps(group["params"])
    return safe_pickle.dumps({"format": 4, **loaded, **changed})


def test_it_comes_back():
    back = record.loads(record.dumps(RECORD, None, NONE), None, NONE)
    assert torch.equal(back["rng"].pop("torch"), RECORD["rng"]["torch"])
    assert back == {**RECORD, "rng": {"python": (3, b"\1\2", None)}}


def test_only_what_is_the_users_is_pickled():
    parts = parts_of(record.dumps(RECORD, None, NONE))
    assert parts["optimizers"] == RECORD["scalars"]["optimizers"]
    assert parts.keys() == {"step", "rng", "optimizers", "modules", "extras"}
    for name in ("modules", "extras"):
        assert next(pickletools.genops(parts[name]))[0].name == "PROTO"
    assert safe_pickle.loads(parts["extras"]) == {"position": 9}


def test_classes_are_named_for_the_users_part_alone(store):
    classes = {"extras_classes": [Position]}
    first = trained(store, extras={"at": lambda: Position(1, [2])}, **classes)
    again = Job(store, extras={"at": lambda: None}, **classes)
    assert again.ck.restore() == 2 and again.ck.extras["at"] == Position(1, [2])
    first.optimizer.param_groups[0]["schedule"] = Position(1, [2])
    assert not first.ck.snapshot(3)
    assert first.ck.status.last_problem.endswith(
        "optimizer 0: 'schedule' of its group 0: a test_safe_pickle.Position cannot be stored "
        "beside an optimizer's tensors: plain containers, numbers, strings, bytes, tensors and "
        "NumPy arrays can. Give its parts, or keep it among `extras`"
    )


def test_plain_values_of_states_are_named(store):
    class Odd(torch.optim.SGD):
        def step(self):
            super().step()
            self.state[self.param_groups[0]["params"][0]]["odd"] = Position(1, [])

    job = Job(store, optimizer=Odd)
    job.ck.restore()
    job.step()
    assert not job.ck.snapshot(1)
    assert "optimizer 0: its state 'odd' of 'empty': a test_safe_pickle.Position" in (
        job.ck.status.last_problem
    )


# --- states that a release stored which pickled all of it ---


def test_a_pickled_record_is_restored(store):
    first = trained(store)
    first.optimizer.param_groups[0]["lr"] = 0.25
    assert first.ck.snapshot(3)
    store.versions[0].extras = pickled(store.versions[0].extras)
    second = Job(store, seed=1)
    assert second.ck.restore() == 3
    assert_equal_state(second.state(), first.state())
    assert second.optimizer.param_groups[0]["lr"] == 0.25
    assert second.ck.snapshot(4)
    assert parts_of(store.versions[0].extras)["step"] == 4


def test_pickled_records_are_restored_by_another_number_of_ranks(store):
    first = stored(store, 4)
    for version in store.versions.values():
        version.extras = pickled(version.extras)
    for job in restored(store, 3):
        assert_equal_state(job.state(), first[0].state())


@pytest.mark.parametrize("stored_format", [3, 5, None])
def test_other_formats_are_refused_by_name(stored_format):
    data = pickled(record.dumps(RECORD, None, NONE), format=stored_format)
    refusal = f"format {stored_format}: this release reads formats 4 to 5"
    with pytest.raises(unreft.FailedPrecondition, match=refusal):
        record.loads(data, None, NONE)


def test_a_later_format_says_who_may_read_it():
    data = record.dumps(RECORD, None, NONE)
    later = data[:8] + struct.pack("<HH", 7, 5) + data[12:]
    assert record.loads(later, None, NONE)["step"] == 3
    too_late = data[:8] + struct.pack("<HH", 7, 6) + data[12:]
    with pytest.raises(unreft.FailedPrecondition, match="format 7: this release reads .* 4 to 5"):
        record.loads(too_late, None, NONE)
    more = with_parts(later={"unheard": "of"})
    assert record.loads(more, None, NONE)["extras"] == {"position": 9}


# --- other bytes ---


@pytest.mark.parametrize(
    "changed",
    [
        {"step": 1.5},
        {"step": KeyError},
        {"rng": KeyError},
        {"modules": "text"},
        {"extras": {"position": 9}},
        {"optimizers": {}},
        {"optimizers": [5]},
        {"optimizers": [{"groups": [], "states": []}]},
        {"optimizers": [{"groups": [{"lr": 1.0}], "states": {}}]},
        {"optimizers": [{"groups": [{"params": "ab"}], "states": {}}]},
        {"optimizers": [{"groups": [], "states": {"a": 5}}]},
        {"optimizers": [{"groups": [], "states": {5: {}}}]},
        {"modules": b"cos\nsystem\n."},
        {"extras": b""},
    ],
    ids=repr,
)
def test_parts_of_other_kinds_are_lost(changed):
    with pytest.raises(unreft.DataLoss):
        record.loads(with_parts(**changed), None, NONE)


def test_other_bytes_are_lost():
    data = record.dumps(RECORD, None, NONE)
    for end in range(len(data)):
        with pytest.raises(unreft.DataLoss):
            record.loads(data[:end], None, NONE)
    for other in (b"", b"UNRFXTRA", data[:16] + plain.dumps([1]), safe_pickle.dumps({"a": 1})):
        with pytest.raises(unreft.DataLoss):
            record.loads(other, None, NONE)
