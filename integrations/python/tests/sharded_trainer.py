"""One rank of a job under FSDP2 whose number of ranks changes: writes JSON lines to stdout.

    sharded_trainer.py --steps N [--die-after STEP]

What it says of its state is of whole tensors, so that it can be compared between worlds.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import unreft.torch


def say(**record):
    print(json.dumps(record), flush=True)


def digests(model, optimizer):
    """Of parameters and optimizer state by name; all ranks gather them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {name: parameter for parameter, name in names.items()}
    for parameter, state in optimizer.state.items():
        tensors.update({f"{names[parameter]}/{key}": value for key, value in state.items()})
    found = {}
    for name, tensor in sorted(tensors.items()):
        whole = tensor.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        data = whole.contiguous().reshape(-1).view(torch.uint8).numpy()
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 10))
    for part in (model[0], model[3], model):
        fully_shard(part, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
    step = ck.restore() or 0
    say(restored=step, reshaped_from=ck.status.reshaped_from)
    if step:
        say(step=step, state=digests(model, optimizer), lr=scheduler.get_last_lr())
    while step < args.steps:
        x = torch.randn(8, 10)
        (model(x) - x).square().mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        for part in (model[0], model[3], model):
            part.reshard()
        ck.snapshot(step)
        committed = ck.wait(step, 20)
        if args.die_after and step >= args.die_after and committed:
            say(step=step, state=digests(model, optimizer), lr=scheduler.get_last_lr())
            with contextlib.suppress(RuntimeError):  # of one that waits for who is killed already
                dist.barrier()  # others may still gather
            os.kill(os.getpid(), signal.SIGKILL)
    say(step=step, problem=ck.status.last_problem)
    ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
