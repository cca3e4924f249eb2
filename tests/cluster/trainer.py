"""One rank of the lab's training job: DDP on CPU, a snapshot every step, a line for each step.

    torchrun ... trainer.py --step-log FILE --until FILE     under torchrun, protected by Unreft
    trainer.py --undisturbed 4 --step-log FILE               all ranks in turn, in this process

A line has the digests of weights, optimizer and generators after its step: a run that is disturbed
equals one that is not if they agree at every step of every rank. That one has no launcher, no
network and no Unreft; it adds gradients up in the same order. The other ends with the step at which
rank 0 sees the file --until; the undisturbed one trains up to each step that it reads on standard
input, and says so.
"""

import argparse
import datetime
import hashlib
import json
import logging
import marshal
import os
import pathlib
import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import unreft
import unreft.torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "integrations/python/tests"))
from rank_order import sum_in_rank_order  # noqa: E402

SEED = 7
HIDDEN = 128
# A host that is cut off says nothing: the others notice after so long.
COLLECTIVE_TIMEOUT_S = 30


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, hidden), nn.Tanh(), nn.Dropout(),
                                    nn.Linear(hidden, 32))
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layers(x - self.mean)


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


class Generators:
    """The global ones, of one rank."""

    def __init__(self):
        self.state = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()

    def take_over(self):
        torch.set_rng_state(self.state[0])
        np.random.set_state(self.state[1])
        random.setstate(self.state[2])


class Job:
    """All state of one rank: the same weights on all, random numbers of its own."""

    def __init__(self, rank, wrap=lambda net: net, hidden=HIDDEN):
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.net = Net(hidden)
        self.model = wrap(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(100 + rank)

    def backward(self):
        x = torch.randn(8, 32) + random.random() + np.random.rand()
        self.model(x).sub(x).square().mean().backward()

    def step(self):
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def digests(self):
        states = self.optimizer.state.values()
        numbers = np.random.get_state()
        plain = marshal.dumps((random.getstate(), numbers[1].tobytes(), numbers[2:]))
        return {
            "weights": digest([*self.net.parameters(), *self.net.buffers()]),
            "optimizer": digest(t for state in states for _, t in sorted(state.items())),
            "generators": digest([torch.get_rng_state()]) + hashlib.sha256(plain).hexdigest(),
            "rate": self.scheduler.get_last_lr(),
        }


def data_parallel(net):
    model = nn.parallel.DistributedDataParallel(net, forward_sync_buffers=False)
    model.register_comm_hook(None, sum_in_rank_order)
    return model


def all_see(path):
    """Whether rank 0 sees it: all ranks end with the same step."""
    seen = torch.tensor([float(os.path.exists(path))])
    dist.broadcast(seen, src=0)
    return bool(seen.item())


def train_protected(args):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    log, job = Log(args.step_log), Job(dist.get_rank(), data_parallel, args.hidden)
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
        job.backward()
        job.step()
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
    jobs, generators = [], []
    for rank in range(args.undisturbed):
        jobs.append(Job(rank))
        generators.append(Generators())
    step = 0
    with open(args.step_log, "w") as log:
        for line in sys.stdin:
            while step < int(line):
                step += 1
                train_in_turn(jobs, generators)
                for rank, job in enumerate(jobs):
                    generators[rank].take_over()
                    record = {"rank": rank, "step": step, **job.digests()}
                    log.write(json.dumps(record) + "\n")
            log.flush()
            print("done", flush=True)


def train_in_turn(jobs, generators):
    for rank, job in enumerate(jobs):
        generators[rank].take_over()
        job.backward()
        generators[rank] = Generators()
    for of_all in zip(*(job.net.parameters() for job in jobs), strict=True):
        mean = sum(weight.grad for weight in of_all) / len(jobs)
        for weight in of_all:
            weight.grad.copy_(mean)
    for job in jobs:
        job.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-log", required=True)
    parser.add_argument("--until", help="trains until that file is there")
    parser.add_argument("--step-s", type=float, default=0.2, help="a step takes no less")
    parser.add_argument("--unprotected-after", type=float)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="another number: another model")
    parser.add_argument("--undisturbed", type=int, metavar="RANKS", help="without torchrun")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    if args.undisturbed:
        train_undisturbed(args)
    else:
        train_protected(args)


if __name__ == "__main__":
    main()
