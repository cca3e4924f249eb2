"""What optimizers and modules hold beside tensors, of all ranks that stored a version."""

import copy

import pytest
import torch

import unreft
from unreft.torch import joined_scalars
from unreft.torch.plain import dumps


def group(*names, **options):
    return {"params": list(names), "lr": 0.1, **options}


def scalars(*groups, states=None, modules=None):
    return {
        "optimizers": [{"groups": list(groups), "states": states or {}}],
        "modules": modules or {},
    }


def four(made):
    return [copy.deepcopy(made) for _ in range(4)]


def refused(stored, match):
    with pytest.raises(unreft.FailedPrecondition, match=match):
        joined_scalars.join(stored)


def test_what_is_alike_is_taken():
    made = scalars(
        group("a", "b", betas=(0.9, 0.99), lr=torch.tensor(0.5)),
        group("c", foreach=None),
        states={"a": {"step": 3}},
        modules={"norm": {"amax": torch.ones(2)}},
    )
    joined = joined_scalars.join(four(made))
    assert dumps(joined) == dumps(joined_scalars.join([made]))
    assert joined["optimizers"][0]["states"] == {"a": {"step": 3}}
    assert torch.equal(joined["modules"]["norm"]["amax"], torch.ones(2))


def test_states_are_united_by_parameter():
    """A rank without elements of a parameter may have no state of it."""
    stored = four(scalars(group("a", "b")))
    stored[1]["optimizers"][0]["states"] = {"a": {"step": 3}}
    stored[2]["optimizers"][0]["states"] = {"b": {"step": 4}, "a": {"step": 3}}
    assert joined_scalars.join(stored)["optimizers"][0]["states"] == {
        "a": {"step": 3},
        "b": {"step": 4},
    }
    stored[3]["optimizers"][0]["states"] = {"a": {"step": 5}}
    refused(stored, "optimizer 0: 'step' of parameter 'a' needs .*rank 1 has 3, rank 3 5; rank 3 d")
    stored[3]["optimizers"][0]["states"] = {"a": {"step": 3, "more": 1}}
    refused(stored, "'more' of parameter 'a' needs.* rank 1 has none, rank 3 1")


def test_numbers_of_optimizers_and_groups():
    stored = four(scalars(group("a")))
    stored[2]["optimizers"].append(stored[2]["optimizers"][0])
    refused(stored, "the number of optimizers needs to be alike.*rank 0 has 1, rank 2 2")
    stored = four(scalars(group("a")))
    stored[3]["optimizers"][0]["groups"].append(group("b"))
    refused(stored, "optimizer 0: the number of its parameter groups .*rank 0 has 1, rank 3 2")


def test_parameters_of_a_group():
    stored = four(scalars(group("a", "b")))
    stored[1]["optimizers"][0]["groups"][0]["params"] = ["b", "a"]
    refused(stored, r"optimizer 0, group 0: the order of its .*\['a', 'b'\], rank 1 \['b', 'a'")


def test_hyperparameters():
    stored = four(scalars(group("a"), group("b", lr=0.2)))
    stored[2]["optimizers"][0]["groups"][1]["lr"] = 0.3
    stored[3]["optimizers"][0]["groups"][1]["lr"] = 0.3
    refused(
        stored,
        "optimizer 0, group 1: 'lr' needs .*rank 0 has 0.2, rank 2 0.3; rank 2, 3 differ. Restart",
    )
    stored = four(scalars(group("a")))
    stored[0]["optimizers"][0]["groups"][0]["nesterov"] = True
    refused(stored, "group 0: 'nesterov' needs .*rank 0 has True, rank 1 none")


def test_extra_state_of_modules():
    stored = four(scalars(modules={"norm": {"amax": 1.0}}))
    stored[3]["modules"]["norm"] = {"amax": 2.0}
    refused(stored, "module 'norm': its extra state needs.*all 4 ranks.* on rank 3 it is not .*R")
    stored[3]["modules"] = {}
    refused(stored, "module 'norm'")
    stored = four(scalars())
    stored[2]["modules"] = {"late": None}
    refused(stored, "module 'late'.*rank 2")
