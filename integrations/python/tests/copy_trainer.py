"""Takes up what sharded_trainer.py has trained, on one rank: from a durable copy, in an interpreter
that knows nothing of Unreft, or from the daemon. Says the state and, a step later, the state.

With --weights the model's parameters come out of a copy in safetensors in the place of the other's.

    copy_trainer.py [--copy DIR [--weights DIR]] [--tensor-parallel]
"""

import argparse
import sys

import torch
from saying import say
from state_digest import digest_of
from torch import nn


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


@torch.no_grad()
def load_weights(directory, model):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    for parameter in model.parameters():
        parameter.zero_()
    dcp.load(model.state_dict(), storage_reader=HuggingFaceStorageReader(directory))
    assert "unreft" not in sys.modules


def say_state(model, optimizer):
    rates = [group["lr"] for group in optimizer.param_groups]
    say(state=digest_of(model, optimizer), lr=rates)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--copy")
    parser.add_argument("--weights")
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
        if args.weights:
            load_weights(args.weights, model)
    else:
        import unreft.torch

        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
        assert ck.restore()
    say_state(model, optimizer)
    x = torch.linspace(-1, 1, 80).reshape(8, 10)
    (model(x) - x).square().mean().backward()
    optimizer.step()
    say_state(model, optimizer)


if __name__ == "__main__":
    main()
