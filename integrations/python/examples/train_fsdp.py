#!/usr/bin/env python3
"""Trains the small GPT under FSDP2, so that another number of ranks can go on with it.

    torchrun --nproc-per-node 4 -- train_fsdp.py --steps 12 --save files
    torchrun --nproc-per-node 3 -- train_fsdp.py --steps 24 --load files --final final

With --checkpoint unreft the state is snapshotted every step in the memory of the nodes, and
restored by as many ranks as there are then. With --save and --load it goes by files of torch alone
(torch.distributed.checkpoint); what each rank has of its own goes the same ways by both:

* Parameters and optimizer state are the same tensors, cut as the ranks are now. No tensor has rows
  that both 4 and 3 divide.
* The one buffer that changes is a running mean over all ranks, so it is equal on them.
* The position in the data is divided anew (`divide`).
* Every rank has its own random numbers; rank r goes on with those of rank r.

Two runs of the same numbers of ranks are equal bit for bit: gloo sums what it is given in an order
that depends on the number of ranks and on sizes alone, and FSDP2 always gives it the same.
"""

import argparse
import dataclasses
import os
import pathlib
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gpt
import train_gpt

CONFIG = gpt.Config(n_layer=3, n_head=2, n_embd=94, context=33, batch=2, vocab=259)
GRADIENT_NORM_MAX = 1.0


def divide(states, rank, world):
    """Where each of another number of ranks goes on: up to world - 1 samples are left out, and none
    is repeated."""
    seen = sum(state["position"] for state in states)
    return {**states[0], "position": -(-seen // world)}


class RunningScaleOfAll(gpt.RunningScale):
    """The running average is that of all ranks, so it is equal on them."""

    def forward(self, x):
        if self.training:
            self.batches += 1
            own = x.detach().square().mean()
            square = train_gpt.mean_in_rank_order(own, dist.get_world_size())
            self.rms += (square**0.5 - self.rms) / self.batches
        return x / self.rms


@dataclasses.dataclass
class Job:
    """All state of one rank's training."""

    rank: int
    world: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    sampler: gpt.TextSampler


def build_job(seed, rank, world):
    """The state at step 0: the same weights for any number of ranks."""
    torch.manual_seed(seed)
    model = gpt.GPT(CONFIG)
    model.scale = RunningScaleOfAll()
    for part in [*model.blocks, model]:
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=train_gpt.LEARNING_RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, train_gpt.learning_rate_factor)
    sampler = gpt.TextSampler(gpt.load_corpus(), CONFIG, seed, rank, world)

    own_seed = seed * world + rank
    torch.manual_seed(own_seed)
    np.random.seed(own_seed % 2**32)
    random.seed(own_seed)
    return Job(rank, world, model, optimizer, scheduler, sampler)


class Unreft:
    """Snapshots in the memory of the nodes."""

    def __init__(self, job):
        import unreft.torch  # Only here: files need nothing but torch.

        sampler = unreft.torch.Reshard(job.sampler, divide)
        extras = {"scheduler": job.scheduler, "sampler": sampler}
        self._checkpointer = unreft.torch.attach(job.model, job.optimizer, extras=extras)

    def restore(self):
        """The restored step, or None."""
        return self._checkpointer.restore()

    def snapshot(self, step):
        self._checkpointer.snapshot(step)

    def close(self):
        self._checkpointer.close()


class Files(train_gpt.NoCheckpoint):
    """Restores what `save` has written, with torch alone.

    Layout: DIR/sharded is torch.distributed.checkpoint's; DIR/rank-3.pt is what a rank has of its
    own.
    """

    def __init__(self, job, directory):
        self._job = job
        self._directory = pathlib.Path(directory) if directory else None

    def restore(self):
        if self._directory is None:
            return None
        job, sharded = self._job, self._sharded()
        dcp.load(sharded, checkpoint_id=self._directory / "sharded")
        set_state_dict(job.model, job.optimizer, model_state_dict=sharded["model"],
                       optim_state_dict=sharded["optimizer"])
        of_ranks = [torch.load(self._of_rank(rank), weights_only=True)
                    for rank in range(len(list(self._directory.glob("rank-*.pt"))))]
        job.scheduler.load_state_dict(of_ranks[0]["scheduler"])
        positions = [of_rank["sampler"] for of_rank in of_ranks]
        job.sampler.load_state_dict(divide(positions, job.rank, job.world))
        train_gpt.GlobalRng().load_state_dict(of_ranks[job.rank]["rng"])
        return of_ranks[0]["step"]

    def save(self, step):
        job = self._job
        self._directory.mkdir(parents=True, exist_ok=True)
        own = {"step": step, "rng": train_gpt.GlobalRng().state_dict(),
               "scheduler": job.scheduler.state_dict(), "sampler": job.sampler.state_dict()}
        torch.save(own, self._of_rank(job.rank))
        dcp.save(self._sharded(), checkpoint_id=self._directory / "sharded")

    def _sharded(self):
        model, optimizer = get_state_dict(self._job.model, self._job.optimizer)
        return {"model": model, "optimizer": optimizer}

    def _of_rank(self, rank):
        return self._directory / f"rank-{rank}.pt"


def whole(value):
    """Nested state with each sharded tensor gathered; all ranks call it for the same."""
    if isinstance(value, DTensor):
        return value.detach().full_tensor()
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value


def state_parts(job):
    """All state of one rank, whole: each of any number of ranks has the same weights."""
    names = {parameter: name for name, parameter in job.model.named_parameters()}
    state = {names[parameter]: whole(state) for parameter, state in job.optimizer.state.items()}
    groups = [{**group, "params": [names[parameter] for parameter in group["params"]]}
              for group in job.optimizer.param_groups]
    rng = train_gpt.GlobalRng().state_dict()
    return {
        "weights": whole(dict(job.model.named_parameters())),
        "buffers": dict(job.model.named_buffers()),
        "optimizer": [state, groups],
        **{f"rng_{name}": generator for name, generator in rng.items()},
        "scheduler": job.scheduler.state_dict(),
        "sampler": job.sampler.state_dict(),
    }


def gathered(values, world):
    """The numbers of all ranks, in rank order."""
    own = torch.tensor(values, dtype=torch.int64)
    of_all = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(of_all, own)
    return torch.cat(of_all).tolist()


def train_step(job):
    """One optimizer step; returns the loss, averaged over the ranks."""
    tokens, targets = job.sampler.next()
    loss = job.model(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(job.model.parameters(), GRADIENT_NORM_MAX)
    job.optimizer.step()
    job.scheduler.step()
    job.optimizer.zero_grad()
    return train_gpt.mean_in_rank_order(loss.detach(), job.world)


def train(args, job, checkpoint, log):
    """Restores, trains to the last step and returns it."""
    restored = checkpoint.restore()
    train_gpt.require_same_step(restored, job.world)
    attempt = int(os.environ.get("UNREFT_ATTEMPT", 0))
    log({"event": "start", "attempt": attempt, "world": job.world, "restored_step": restored,
         "unix_s": time.time()})

    step = restored or 0
    while step < args.steps:
        begin = time.perf_counter()
        loss = train_step(job)
        samples = gathered(job.sampler.taken, job.world)
        step += 1
        log({"event": "step", "step": step, "world": job.world, "samples": samples, "loss": loss,
             "loss_hex": loss.hex(), "step_s": time.perf_counter() - begin, "unix_s": time.time()})
        checkpoint.snapshot(step)
        time.sleep(max(0.0, begin + args.step_s_min - time.perf_counter()))
    return step


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, required=True, help="train up to this step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", metavar="FILE", help="append the loss curve (rank 0)")
    parser.add_argument("--final", metavar="PREFIX", help="write PREFIX.rank<n>.json at the end")
    parser.add_argument("--checkpoint", choices=["none", "unreft"], default="none")
    parser.add_argument("--load", metavar="DIR", help="begin with these files")
    parser.add_argument("--save", metavar="DIR", help="write them at the end")
    parser.add_argument("--step-s-min", type=float, default=0, help="wait if a step is shorter")
    parser.add_argument("--timeout-s", type=float, default=60, help="limit of one collective")
    args = parser.parse_args()
    if args.checkpoint == "unreft" and args.load:
        parser.error("--load is for a run without --checkpoint unreft")
    return args


def main():
    args = parse_args()
    rank, world, _ = train_gpt.init_process(args.timeout_s, "cpu")
    job = build_job(args.seed, rank, world)
    checkpoint = Unreft(job) if args.checkpoint == "unreft" else Files(job, args.load)
    step_log = train_gpt.StepLog(args.log) if args.log and rank == 0 else None
    log = step_log.write if step_log else lambda record: None
    step = train(args, job, checkpoint, log)
    checkpoint.close()
    if args.save:
        Files(job, args.save).save(step)
    if args.final:
        train_gpt.write_final(args.final, rank, step, state_parts(job))
    if step_log:
        step_log.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
