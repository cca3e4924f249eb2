"""Reads a copy in safetensors in an interpreter that has PyTorch and knows nothing of Unreft.

    weights_reader.py DIR KEY...

Prints JSON: the shape of every key, the files that an index names, and one digest of the tensors of
the KEYs by each of three ways to read them: dcp.load, safetensors alone, and what
consolidate_safetensors_files makes of them.
"""

import hashlib
import json
import pathlib
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint._consolidate_hf_safetensors import (
    consolidate_safetensors_files,
)

warnings.filterwarnings("ignore")


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def loaded(directory, entries):
    state = {
        key: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for key, entry in entries.items()
    }
    dcp.load(state, storage_reader=HuggingFaceStorageReader(directory))
    return state


def put_together(directory, entries):
    """Each element once."""
    state = {key: torch.zeros(entry.size, dtype=entry.properties.dtype)
             for key, entry in entries.items()}
    left = {key: tensor.numel() for key, tensor in state.items()}
    for path in pathlib.Path(directory).glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for key in file.keys():
                piece = file.get_tensor(key)
                offsets = places[key]["saved_offsets"]
                where = tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape))
                state[key][where] = piece
                left[key] -= piece.numel()
    assert not any(left.values()), left
    return state


def consolidated(directory, keys):
    with tempfile.TemporaryDirectory() as scratch:
        consolidate_safetensors_files(directory, scratch, dict.fromkeys(keys, 1))
        (path,) = pathlib.Path(scratch).glob("*.safetensors")
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in keys}


def main():
    directory, *keys = sys.argv[1:]
    entries = HuggingFaceStorageReader(directory).read_metadata().state_dict_metadata
    index = pathlib.Path(directory) / "model.safetensors.index.json"
    states = {
        "dcp": loaded(directory, entries),
        "safetensors": put_together(directory, entries),
        "consolidated": consolidated(directory, keys),
    }
    said = {name: digest(state[key] for key in keys) for name, state in states.items()}
    said["shapes"] = {key: list(entry.size) for key, entry in entries.items()}
    said["index"] = json.loads(index.read_text())["weight_map"] if index.exists() else None
    assert "unreft" not in sys.modules
    print(json.dumps(said))


if __name__ == "__main__":
    main()
