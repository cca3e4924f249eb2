"""Loads a durable copy of nested_state.py's state dict in an interpreter without Unreft.

    dcp_copy_reader.py DIR     prints {"loaded": true, "whole": true}

By dcp.load, into a state dict of the same structure, and by dcp_to_torch_save.
"""

import json
import pathlib
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from nested_state import assert_same, emptied, state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save



def by_key(value):
    """The keys of a dict that is put together come in another order."""
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value)}
    return value


assert "unreft" not in sys.modules
directory = sys.argv[1]
loaded = emptied(state_dict())
dcp.load(loaded, checkpoint_id=directory)
assert_same(loaded, state_dict())
with tempfile.TemporaryDirectory() as scratch:
    path = pathlib.Path(scratch) / "whole.pt"
    dcp_to_torch_save(directory, path)
    whole = torch.load(path, weights_only=True)
extras = whole.pop("unreft")["rank0"]["extras"]
assert extras.dtype == torch.uint8
assert_same(by_key(whole), by_key(state_dict()))
print(json.dumps({"loaded": True, "whole": True}))
