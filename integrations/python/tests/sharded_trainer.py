"""One rank of a job whose number of ranks changes, under FSDP2: writes JSON lines to stdout.

    sharded_trainer.py --steps N [--die-after STEP] [--tensor-parallel RANKS] [--replicas SETS]
                       [--until-world RANKS] [--seed-by-set]

With --tensor-parallel, if only by one rank, the model is one that can be cut so, and FSDP2 is on
top of it, over the ranks that hold the same part. With --replicas, if only of one set, FSDP2 is
hybrid (HSDP): each set of ranks holds all that is sharded, and replicates the others'.

With --until-world it trains until there are so many ranks, and these train N steps.

With --seed-by-set ranks that hold parts of the same draw alike, and others not: it says what is
drawn next.

What it says of its state is of whole tensors, so that it can be compared between worlds.
"""

import argparse
import contextlib
import math
import os
import random
import signal

import torch
import torch.distributed as dist
from saying import say
from state_digest import digest_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import unreft.torch


def next_draws():
    """Those of torch and of Python, which are drawn again after it."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        drawn = torch.rand(4).tolist(), random.random()
    random.setstate(state)
    return drawn


def sharded_model(tensor_parallel, replicas):
    """The model, and what has to be resharded before a snapshot."""
    shard = dist.get_world_size() // max(1, replicas) // max(1, tensor_parallel)
    sizes = {"replicate": replicas, "shard": shard, "tensor": tensor_parallel}
    sizes = {name: size for name, size in sizes.items() if size}
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if tensor_parallel:
        model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 10))
    else:
        model = nn.Sequential(nn.Linear(10, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 10))
    if tensor_parallel > 1:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
    data = mesh[tuple(name for name in sizes if name != "tensor")]
    if tensor_parallel and data.size() == 1:
        return model, []
    parts = [model[0], model[-1], model]
    for part in parts:
        fully_shard(part, mesh=data)
    return model, parts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--tensor-parallel", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=0)
    parser.add_argument("--until-world", type=int, default=0)
    parser.add_argument("--seed-by-set", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model, parts = sharded_model(args.tensor_parallel, args.replicas)
    place = dist.get_rank() // max(1, args.tensor_parallel)
    if args.seed_by_set:
        torch.manual_seed(100 + place)
        random.seed(100 + place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
    step = ck.restore() or 0
    committed = step
    say(restored=step, reshaped_from=ck.status.reshaped_from)
    if args.seed_by_set:
        say(next=next_draws())
    if step:
        say(step=step, state=digest_of(model, optimizer), lr=scheduler.get_last_lr())
    last = args.steps
    if args.until_world:
        last = step + args.steps if dist.get_world_size() >= args.until_world else math.inf
    while step < last:
        x = torch.randn(8, 10) + place  # no two sets of tensor-parallel peers have the same
        (model(x) - x).square().mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        for part in parts:
            part.reshard()
        ck.snapshot(step)
        if ck.wait(step, 20):
            committed = step
        if args.die_after and args.die_after <= step == committed:
            if args.seed_by_set:
                say(next=next_draws())
            say(step=step, state=digest_of(model, optimizer), lr=scheduler.get_last_lr())
            with contextlib.suppress(RuntimeError):  # of one that waits for who is killed already
                dist.barrier()  # others may still gather
            os.kill(os.getpid(), signal.SIGKILL)
    say(step=step, committed=committed, problem=ck.status.last_problem)
    ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
