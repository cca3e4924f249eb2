"""The user's extras in another world: what is taken, what is refused, and what a Reshard does."""

import types

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import unreft
from unreft.torch import Reshard, reshard
from unreft.torch.extras import Extras

DATA = list(range(12))


def join(stored, attached, rank=0, world=3):
    return Extras(attached).join(stored, rank, world)


def test_what_is_alike_is_taken():
    stored = [{"scheduler": {"last_epoch": 3, "last_lr": [float("nan")]}} for _ in range(4)]
    joined, by_function = join(stored, {"scheduler": lambda: None})
    assert joined["scheduler"]["last_epoch"] == 3 and by_function == []


def test_what_differs_is_refused_by_name():
    stored = [{"note": rank // 2} for rank in range(4)]
    refusal = (
        "'note' needs to be alike on all 4 ranks that stored it, to be restored on 3: on rank 2, 3 "
        r"it is not .*Attach it as unreft.torch.Reshard\(note, load\).* or restart with 4 ranks"
    )
    with pytest.raises(unreft.FailedPrecondition, match=refusal):
        join(stored, {"note": lambda: 0})


def test_a_reshard_sees_all_states_in_order():
    seen = []

    def load(states, rank, world):
        seen.append((states, rank, world))
        return sum(states)

    stored = [{"count": rank, "same": 5} for rank in range(4)]
    attached = {"count": Reshard(lambda: 0, load), "same": lambda: 0}
    assert join(stored, attached, rank=2) == ({"same": 5, "count": 6}, ["count"])
    assert seen == [([0, 1, 2, 3], 2, 3)]


def test_by_itself_it_is_captured_as_what_it_has():
    generator = torch.Generator().manual_seed(3)
    extras = Extras({"g": Reshard(generator, pytest.fail), "c": Reshard(lambda: 7, pytest.fail)})
    state = extras.state()
    assert torch.equal(state["g"], generator.get_state()) and state["c"] == 7
    generator.manual_seed(4)
    extras.load(state)
    assert generator.initial_seed() == 3 and extras.restored == {"c": 7}


def test_wrong_use_is_refused():
    with pytest.raises(unreft.InvalidArgument, match="`load` needs to be a function, found 3"):
        Reshard({}, 3)
    with pytest.raises(unreft.InvalidArgument, match="found another Reshard"):
        Reshard(Reshard({}, max), max)
    with pytest.raises(unreft.InvalidArgument, match="'epoch' is the int 7"):
        Extras({"epoch": Reshard(7, max)})


class StatefulDataLoader:
    def state_dict(self):
        return {}


class Loader(StatefulDataLoader):
    pass


def test_positions_in_the_data_are_refused():
    """Even if they are alike: rank 0 of 3 ranks reads other samples than rank 0 of 4."""
    counting = {
        "sampler": DistributedSampler(DATA, num_replicas=4, rank=0),
        "random": RandomSampler(DATA),
        "loader": DataLoader(DATA),
        "stateful": Loader(),
        "own": types.SimpleNamespace(num_replicas=4, state_dict=dict),
    }
    for name, extra in counting.items():
        stored = [{name: {"position": 8}} for _ in range(4)]
        refusal = (
            f"'{name}' counts the samples of one of 4 ranks .a {type(extra).__name__}.: on 3 ranks "
            rf"samples would be repeated or left out in silence. Attach it as .*Reshard\({name}, "
        )
        with pytest.raises(unreft.FailedPrecondition, match=refusal):
            join(stored, {name: extra})
        attached = {name: Reshard(extra, lambda states, rank, world: states[0])}
        assert join(stored, attached)[0] == {name: {"position": 8}}


def test_names_that_some_ranks_lack_are_refused():
    stored = [{"a": 1, "b": 2}, {"b": 2}]
    with pytest.raises(unreft.FailedPrecondition, match="a not in what rank 1 of 2 .*has: b"):
        join(stored, {"a": lambda: 0, "b": lambda: 0})
    with pytest.raises(unreft.FailedPrecondition, match="a not in what rank 1 of 2"):
        join(stored, {"a": Reshard(lambda: 0, pytest.fail)})


def test_what_is_not_attached_is_said(caplog):
    joined, _ = join([{"a": 1, "b": 2}, {"a": 1, "c": 3}], {"a": lambda: 0})
    assert joined == {"a": 1}
    assert "stored but not attached, so not restored: b, c" in caplog.text


def test_the_example_of_the_documents():
    """No sample is read twice, and fewer than there are ranks are left out."""

    def divide(states, rank, world):
        seen = sum(state["position"] for state in states)
        return {**states[0], "position": -(-seen // world)}

    stored = [{"sampler": {"position": 8, "epoch": 2}} for _ in range(4)]
    attached = {"sampler": Reshard(RandomSampler(DATA), divide)}
    found = [reshard.join(stored, attached, rank, 3)[0]["sampler"] for rank in range(3)]
    assert found == [{"position": 11, "epoch": 2}] * 3
    assert 8 * 4 <= 11 * 3 < 8 * 4 + 3
