"""Reads a durable copy in an interpreter that has PyTorch and knows nothing of Unreft.

    export_reader.py DIR WHAT...       prints JSON

    keys                    all keys, with the shape of each tensor
    digest KEY              of that tensor's bytes, loaded by dcp.load
    value KEY               of an entry that is no tensor
    weights                 digests of all tensors of a copy in safetensors, by key
    torch_save              digests of what dcp_to_torch_save makes of it, by path
"""

import hashlib
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

warnings.filterwarnings("ignore")


def digest(tensor):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + data).hexdigest()


def flat(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value):
        for index, inner in enumerate(value):
            yield from flat(inner, (*path, str(index)))
    else:
        yield "/".join(path), digest(value) if isinstance(value, torch.Tensor) else repr(value)


def weights(directory):
    entries = HuggingFaceStorageReader(directory).read_metadata().state_dict_metadata
    state = {key: torch.zeros(entry.size, dtype=entry.properties.dtype)
             for key, entry in entries.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(directory))
    return {key: digest(tensor) for key, tensor in state.items()}


def main():
    assert "unreft" not in sys.modules
    directory, what, *words = sys.argv[1:]
    if what == "weights":
        print(json.dumps(weights(directory)))
        return
    entries = FileSystemReader(directory).read_metadata().state_dict_metadata
    if what == "keys":
        said = {key: list(entry.size) if isinstance(entry, TensorStorageMetadata) else None
                for key, entry in entries.items()}
    elif what == "digest":
        entry = entries[words[0]]
        state = {words[0]: torch.empty(entry.size, dtype=entry.properties.dtype)}
        dcp.load(state, checkpoint_id=directory)
        said = digest(state[words[0]])
    elif what == "value":
        state = {words[0]: None}
        dcp.load(state, checkpoint_id=directory)
        said = repr(state[words[0]])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "whole.pt")
            dcp_to_torch_save(directory, path)
            said = dict(flat(torch.load(path, weights_only=True)))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
