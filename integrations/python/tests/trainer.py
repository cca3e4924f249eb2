"""One rank of a small training job for the end-to-end tests: writes JSON lines to stdout.

DDP when there is more than one rank; each rank has its own data, random numbers and buffers.
"""

import argparse
import hashlib
import json
import os
import random
import signal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import unreft
import unreft.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(), nn.Linear(256, 64))
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layers(x - self.mean)


def say(**record):
    print(json.dumps(record), flush=True)


def digest(values):
    sha = hashlib.sha256()
    for value in values:
        sha.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def optimizer_tensors(optimizer):
    return [t for state in optimizer.state.values() for _, t in sorted(state.items())]


def say_state(step, model, optimizer, scheduler):
    say(
        step=step,
        weights=digest(model.parameters()),
        buffers=digest(model.buffers()),
        optimizer=digest(optimizer_tensors(optimizer)),
        lr=scheduler.get_last_lr(),
        generators=[
            digest([torch.get_rng_state()]),
            repr(random.getstate()),
            repr(np.random.get_state(legacy=False)),
        ],
    )


def in_forked_child(ck):
    """A data loader's worker inherits the checkpointer: nothing it does may reach the store."""
    child = os.fork()
    if child == 0:
        with ck.fence():
            inert = not (ck.snapshot(10**6) or ck.wait(1, 0.1) or ck.status.connected)
        ck.close()
        del ck
        os._exit(0 if inert else 1)
    return os.waitpid(child, 0)[1] == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0, help="SIGKILL once that is committed")
    parser.add_argument("--differ", action="store_true", help="rank 1 changes its weights alone")
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--restores", type=int, default=1)
    parser.add_argument("--pause-at", type=int, default=0, help="step; until the test says go on")
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = net = Net()
    if world > 1:
        model = nn.parallel.DistributedDataParallel(net, forward_sync_buffers=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(100 + rank)

    try:
        ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
        for _ in range(args.restores):
            restored = ck.restore()
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
        return
    say(restored=restored)
    if restored is not None:
        say_state(restored, net, optimizer, scheduler)
    if args.differ and restored is None and rank == 1:
        with torch.no_grad():
            net.layers[0].weight += 1.0

    for step in range((restored or 0) + 1, args.steps + 1):
        if step == args.pause_at:
            say(paused=True)
            GO_ON.wait()  # noqa: F821: given by real_store.py
        x = torch.randn(8, 64)
        model(x).sub(x).square().mean().backward()
        with ck.fence():
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        started = ck.snapshot(step)
        if args.fork:
            say(inert=in_forked_child(ck))
        committed = started and not args.pause_at and ck.wait(step, 20)
        say(started=started, committed=committed)
        if args.die_after and step >= args.die_after and committed:
            say_state(step, net, optimizer, scheduler)
            os.kill(os.getpid(), signal.SIGKILL)
    say_state(args.steps, net, optimizer, scheduler)
    status = ck.status
    say(
        bytes_per_snapshot=status.bytes_captured / max(1, status.started - status.given_up),
        connected=status.connected,
        problem=status.last_problem,
    )
    ck.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
