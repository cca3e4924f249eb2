"""A state dict with entries of many kinds, for tests of torch.distributed.checkpoint."""

import torch


def state_dict():
    return {
        "model": {"weight": torch.arange(6.0).view(2, 3), "scale": torch.tensor(3.0)},
        "kinds": {
            name: torch.tensor([1, 0, 1]).to(getattr(torch, name))
            for name in ("bool", "int8", "uint8", "int64", "bfloat16", "float16", "complex64")
        },
        "turned": torch.arange(12).view(3, 4).t(),
        "none": torch.empty(0, 5, dtype=torch.int32),
        "progress": {"step": 7, "list": ["a", {"b": 2.5}], "groups": [{"lr": 0.1}]},
    }


def emptied(state):
    """Of the same structure, with nothing of what it holds."""
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [emptied(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


def assert_same(found, needed):
    assert type(found) is type(needed)
    if isinstance(needed, dict):
        assert list(found) == list(needed)
        for key, value in needed.items():
            assert_same(found[key], value)
    elif isinstance(needed, list):
        assert len(found) == len(needed)
        for pair in zip(found, needed):
            assert_same(*pair)
    elif isinstance(needed, torch.Tensor):
        assert found.dtype == needed.dtype and torch.equal(found, needed)
    else:
        assert found == needed
