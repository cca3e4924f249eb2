"""Takes up what sharded_trainer.py has trained, on one rank: from a durable copy, in an interpreter
that knows nothing of Unreft, or from the daemon. Says the state and, a step later, the state.

    copy_trainer.py [--copy DIR] [--tensor-parallel]
"""

import argparse
import hashlib
import json
import sys

import torch
from torch import nn


def digest_of(model, optimizer):
    """As sharded_trainer.py's."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {name: parameter for parameter, name in names.items()}
    for parameter, state in optimizer.state.items():
        tensors.update({f"{names[parameter]}/{key}": value for key, value in state.items()})
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach()
        digest.update(f"{name} {whole.dtype} {tuple(whole.shape)}".encode())
        digest.update(whole.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_copy(directory, model, optimizer):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    assert "unreft" not in sys.modules


def say(model, optimizer):
    rates = [group["lr"] for group in optimizer.param_groups]
    print(json.dumps({"state": digest_of(model, optimizer), "lr": rates}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--copy")
    parser.add_argument("--tensor-parallel", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    if args.tensor_parallel:
        model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 10))
    else:
        model = nn.Sequential(nn.Linear(10, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=7)
    if args.copy:
        load_copy(args.copy, model, optimizer)
    else:
        import unreft.torch

        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
        assert ck.restore()
    say(model, optimizer)
    x = torch.linspace(-1, 1, 80).reshape(8, 10)
    (model(x) - x).square().mean().backward()
    optimizer.step()
    say(model, optimizer)


if __name__ == "__main__":
    main()
