"""A digest of what a trainer of the tests trains, for comparing it between worlds and programs."""

import hashlib

import torch


def digest_of(model, optimizer):
    """Of parameters and optimizer state by name; all ranks gather them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {name: parameter for parameter, name in names.items()}
    for parameter, state in optimizer.state.items():
        tensors.update({f"{names[parameter]}/{key}": value for key, value in state.items()})
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        digest.update(f"{name} {whole.dtype} {tuple(whole.shape)}".encode())
        digest.update(whole.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
