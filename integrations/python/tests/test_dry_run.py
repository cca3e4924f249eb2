"""A dry run of `attach` and `restore`: no daemon, what the rank would restore, and the end."""

import json

import pytest
import torch
from torch import nn

import unreft
import unreft.torch
from unreft.torch import Derived, attempt


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """No socket is known, and none is needed."""
    monkeypatch.delenv("UNREFT_SOCKET", raising=False)
    monkeypatch.setenv("UNREFT_DRY_RUN", str(tmp_path))
    monkeypatch.setattr(attempt, "_peeked", None)
    attempt._attached.clear()
    return tmp_path


def model_of():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def layout_of(directory, rank=0):
    return json.loads((directory / f"rank-{rank}.json").read_text())


def names_of(layout):
    return [name for name, _, _ in layout["tensors"]]


def ends(checkpointer):
    with checkpointer, pytest.raises(SystemExit) as caught:
        checkpointer.restore()
    assert caught.value.code == 0


def test_the_state_is_said_and_what_the_store_alone_knows_by_patterns(directory, capfd):
    model = model_of()
    ck = unreft.torch.attach(model, torch.optim.AdamW(model.parameters()), job="dry")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ends(ck)
    assert all(map(torch.equal, before, model.parameters()))
    assert "rank 0 of 1 has written its layout" in capfd.readouterr().err
    layout = layout_of(directory)
    assert (layout["job"], layout["world"]) == ("dry", 1)
    parameters = ["0.weight", "0.bias", "1.weight", "1.bias"]
    buffers = ["running_mean", "running_var", "num_batches_tracked"]
    assert sorted(names_of(layout)) == sorted([
        *(f"model/{name}" for name in parameters),
        *(f"optim/{name}/*" for name in parameters),
        *(f"rank*/buffer/1.{name}" for name in buffers),
        "rank*/extras/*",
        "rank*/derived/*",
    ])
    assert ["model/0.weight", "float32", [4, 3]] in layout["tensors"]
    (rank,) = layout["ranks"]
    assert rank["any_world"] is True


def test_state_that_an_optimizer_has_already_is_no_part_of_it(directory):
    """A restore makes it as it is stored."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    ends(unreft.torch.attach(model, optimizer))
    assert not [name for name in names_of(layout_of(directory)) if name.endswith("buffer")]


def test_peek_goes_on_to_the_restore(directory):
    assert unreft.torch.peek(rank=1, world=2) is None
    assert not list(directory.iterdir())
    model = model_of()
    ends(unreft.torch.attach(model, torch.optim.SGD(model.parameters()), rank=1, world=2))
    layout = layout_of(directory, rank=1)
    assert layout["world"] == 2
    # Plain tensors of several ranks without DDP are each rank's own.
    assert "rank*/model/0.weight" in names_of(layout)
    assert "rank*/optim/0.weight/*" in names_of(layout)


def test_what_need_not_be_stored_is_optional(directory):
    model = nn.Linear(3, 4, bias=False, dtype=torch.bfloat16)
    master = nn.Parameter(model.weight.detach().float())
    optimizer = torch.optim.AdamW([master])
    derived = Derived("model/weight", of="master/weight")
    ends(unreft.torch.attach(model, optimizer, masters={"weight": master}, derived=derived))
    names = names_of(layout_of(directory))
    assert "model/weight?" in names and "master/weight" in names


def test_an_order_in_memory_stands_behind_a_pattern(directory):
    model = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
    ends(unreft.torch.attach(model, torch.optim.AdamW(model.parameters())))
    tensors = layout_of(directory)["tensors"]
    assert ["model/weight[memory_order=0,2,3,1]", "float32", [4, 2, 2, 3]] in tensors
    assert ["optim/weight/*[memory_order=0,2,3,1]", "float32", [4, 2, 2, 3]] in tensors


def test_what_attach_refuses_it_refuses(directory):
    with pytest.raises(unreft.InvalidArgument, match="for ever"):
        unreft.torch.attach(model_of(), extras={"note": 7})
    assert not list(directory.iterdir())


def test_a_directory_that_is_not_there_is_an_error(directory, monkeypatch):
    monkeypatch.setenv("UNREFT_DRY_RUN", str(directory / "absent"))
    with unreft.torch.attach(model_of()) as ck, pytest.raises(unreft.NotFound, match="rank-0.json"):
        ck.restore()
