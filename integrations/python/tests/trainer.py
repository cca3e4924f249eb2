"""One rank of a small training job for the end-to-end tests: writes JSON lines to stdout.

DDP when there is more than one rank; each rank has its own data, random numbers and buffers.
"""

import argparse
import hashlib
import os
import random
import signal
import time

import numpy as np
import torch
import torch.distributed as dist
from rank_order import sum_in_rank_order
from saying import say
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


def join(store_per_attempt):
    """The process group; whether its store has what an earlier attempt has left there."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if store_per_attempt:
        store, rank, world = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    else:
        dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    trace = f"trace of rank {dist.get_rank()}"
    found = store.check([trace])
    store.set(trace, "left")
    return found


def until_ready(ck, world):
    """Until a snapshot would start on every rank: these steps are shorter than a commit."""
    deadline = time.monotonic() + 20
    while not ck.status.ready and time.monotonic() < deadline:
        time.sleep(0.005)
    if world > 1:
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0, help="SIGKILL once that is committed")
    parser.add_argument("--stay-after", type=int, default=0, help="as above, until it is killed")
    parser.add_argument("--store-per-attempt", action="store_true")
    parser.add_argument("--differ", action="store_true", help="rank 1 changes its weights alone")
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--restores", type=int, default=1)
    parser.add_argument("--pause-at", type=int, default=0, help="step; until the test says go on")
    parser.add_argument("--buffers", default="equal", help="of attach")
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    stale_store = world > 1 and join(args.store_per_attempt)
    torch.manual_seed(1)
    model = net = Net()
    if world > 1:
        model = nn.parallel.DistributedDataParallel(net, forward_sync_buffers=False)
        model.register_comm_hook(None, sum_in_rank_order)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(100 + rank)

    try:
        extras = {"scheduler": scheduler}
        ck = unreft.torch.attach(model, optimizer, extras=extras, buffers=args.buffers)
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
        # Only what has not been killed yet.
        if args.stay_after and restored is None and step >= args.stay_after and committed:
            say_state(step, net, optimizer, scheduler)
            say(rank=rank, stays=os.getpid(), stale_store=stale_store)
            while True:
                signal.pause()
        if not args.pause_at:
            until_ready(ck, world)
    say_state(args.steps, net, optimizer, scheduler)
    status = ck.status
    say(
        rank=rank,
        bytes_per_snapshot=status.bytes_captured / max(1, status.started - status.given_up),
        connected=status.connected,
        stale_store=stale_store,
        problem=status.last_problem,
    )
    ck.close()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
