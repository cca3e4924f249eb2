"""One rank of the lab's training job: DDP on CPU, a snapshot every step, a line for each step.

    torchrun ... trainer.py --step-log FILE --until FILE     under torchrun, protected by Unreft
    trainer.py --undisturbed 4 --steps 100 --step-log FILE   four ranks, with neither of them

A line has the digests of weights, optimizer and generators after its step: a run that is disturbed
equals one that is not if they agree at every step of every rank. Both train by the same function.
A run ends with the step at which rank 0 sees the file --until.
"""

import argparse
import datetime
import hashlib
import json
import logging
import os
import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import unreft
import unreft.torch

SEED = 7
# A host that is cut off says nothing: the others notice after so long.
COLLECTIVE_TIMEOUT_S = 30


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(), nn.Linear(256, 64))
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layers(x - self.mean)


def sum_in_rank_order(_, bucket):
    """gloo adds in an order that depends on what shares a bucket: bits would differ by attempt."""
    flat = bucket.buffer()
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    flat.copy_(sum(parts) / len(parts))
    done = torch.futures.Future()
    done.set_result(flat)
    return done


def digest(values):
    sha = hashlib.sha256()
    for value in values:
        sha.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


class Log:
    """JSON lines, each by one write, so that a kill loses none and cuts none."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(self, **record):
        line = {"rank": dist.get_rank(), "pid": os.getpid(), "unix_s": time.time(), **record}
        os.write(self._fd, (json.dumps(line) + "\n").encode())


class Job:
    """All state of one rank: the same weights on all, random numbers of its own."""

    def __init__(self):
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.net = Net()
        self.model = nn.parallel.DistributedDataParallel(self.net, forward_sync_buffers=False)
        self.model.register_comm_hook(None, sum_in_rank_order)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(100 + dist.get_rank())

    def train_step(self):
        x = torch.randn(8, 64) + random.random() + np.random.rand()
        self.model(x).sub(x).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def digests(self):
        states = self.optimizer.state.values()
        generators = [torch.get_rng_state()]
        plain = repr((random.getstate(), np.random.get_state(legacy=False)))
        return {
            "weights": digest([*self.net.parameters(), *self.net.buffers()]),
            "optimizer": digest(t for state in states for _, t in sorted(state.items())),
            "generators": digest(generators) + hashlib.sha256(plain.encode()).hexdigest(),
            "rate": self.scheduler.get_last_lr(),
        }


def all_see(path):
    """Whether rank 0 sees it: all ranks end with the same step."""
    seen = torch.tensor([float(os.path.exists(path))])
    dist.broadcast(seen, src=0)
    return bool(seen.item())


def train_protected(args):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    log, job = Log(args.step_log), Job()
    try:
        ck = unreft.torch.attach(job.model, job.optimizer, extras={"scheduler": job.scheduler},
                                 unprotected_after=args.unprotected_after)
        restored = ck.restore()
    except unreft.Error as error:
        log.say(error=type(error).__name__, message=str(error))
        raise
    step = restored or 0
    log.say(restored=restored, **(job.digests() if restored else {}))
    while not all_see(args.until):
        begin = time.monotonic()
        job.train_step()
        step += 1
        try:
            ck.snapshot(step)
        except unreft.Unprotected as error:
            log.say(error="Unprotected", message=str(error))
            raise
        status = ck.status
        log.say(step=step, protecting=status.protecting, why=status.why_unprotected,
                **job.digests())
        time.sleep(max(0.0, begin + args.step_s - time.monotonic()))
    ck.close()
    log.say(ended=step)


def train_undisturbed(args):
    """The ranks are forked, since most of their time is that of importing torch."""
    store = dist.TCPStore("127.0.0.1", 0, args.undisturbed, is_master=True,
                          wait_for_workers=False)
    ranks = []
    for rank in range(args.undisturbed):
        if (child := os.fork()) == 0:
            run_undisturbed(args, rank, store.port)
        ranks.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks)


def run_undisturbed(args, rank, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, args.undisturbed, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.undisturbed)
    log, job = Log(args.step_log), Job()
    for step in range(1, args.steps + 1):
        job.train_step()
        log.say(step=step, **job.digests())
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-log", required=True)
    parser.add_argument("--until", help="trains until that file is there")
    parser.add_argument("--step-s", type=float, default=0.2, help="a step takes no less")
    parser.add_argument("--unprotected-after", type=float)
    parser.add_argument("--undisturbed", type=int, metavar="RANKS")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    return train_undisturbed(args) if args.undisturbed else train_protected(args)


if __name__ == "__main__":
    sys.exit(main())
