#!/usr/bin/env python3
"""Trains a small GPT with PyTorch DDP so that a run can be stopped and resumed bit for bit.

Start it with torchrun, or with any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT:

    torchrun --nproc-per-node 4 -- train_gpt.py --steps 100 --log steps.jsonl --final final

(Restarts by torchrun need a variable that docs/operations.md explains.)

What makes two runs equal, besides the saved state:

* Gradients are summed in rank order (`sum_in_rank_order`). DDP rebuilds its buckets after the
  first backward of a process, and the order in which gloo adds depends on where in a bucket an
  element lies, so a resumed process would otherwise round its first step differently.
* One thread per rank, and only operations that torch knows to be deterministic. On a GPU
  (--device cuda, one for each rank) also cuBLAS' own workspace, and attention in plain products.
* All random numbers come from generators that are part of the state.
"""

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import inspect
import json
import math
import os
import pathlib
import random
import shutil
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

import gpt

LEARNING_RATE = 1e-3
WARMUP_STEPS = 10
DECAY_STEPS = 1000  # Independent of --steps: a run that stops early follows the same schedule.
GRADIENT_NORM_MAX = 1.0


def sum_in_rank_order(_, bucket):
    """DDP communication hook: the mean gradient, each element added up as ((g0 + g1) + g2) + ...

    Each rank receives its slice of the bucket from all ranks, adds the slices in rank order, and
    all ranks gather the results: as many bytes as a ring all-reduce, but which elements share a
    bucket or a slice cannot change a result. The hook blocks, because a collective issued from a
    completion callback could meet another bucket's on another rank.
    """
    world = dist.get_world_size()
    flat = bucket.buffer()
    # The collectives need equal slices.
    padding = -flat.numel() % world
    padded = nn.functional.pad(flat, (0, padding)) if padding else flat

    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded)
    total, *others = received.view(world, -1)
    for other in others:
        total += other
    total /= world
    dist.all_gather_into_tensor(padded, total)

    if padding:
        flat.copy_(padded[: flat.numel()])
    done = torch.futures.Future(devices=[flat.device] if flat.is_cuda else None)
    done.set_result(flat)
    return done


class GlobalRng:
    """The global generators of torch, NumPy and Python as one piece of state, in plain types."""

    def state_dict(self):
        numpy_state = np.random.get_state(legacy=False)
        numpy_state["state"]["key"] = torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))
        state = {
            "torch": torch.get_rng_state(),
            "numpy": numpy_state,
            "python": random.getstate(),
        }
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state):
        numpy_state = dict(state["numpy"], state=dict(state["numpy"]["state"]))
        numpy_state["state"]["key"] = numpy_state["state"]["key"].numpy().astype(np.uint32)
        torch.set_rng_state(state["torch"])
        np.random.set_state(numpy_state)
        random.setstate(state["python"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])


@dataclasses.dataclass
class Job:
    """All state of one rank's training."""

    rank: int
    world: int
    device: torch.device
    model: nn.Module  # without the DDP wrapper
    ddp: nn.parallel.DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    sampler: gpt.TextSampler

    def extras(self):
        """State besides model, optimizer and global generators: has state_dict and its inverse."""
        return {"scheduler": self.scheduler, "sampler": self.sampler}


class NoCheckpoint:
    """The seam between the training loop and a checkpoint method, and the method that does nothing.

    Steps are counted from 1; a snapshot of step n is the state after its optimizer step. `restore`
    is called once, before the loop; then every step calls `snapshot`.
    """

    def restore(self):
        """Loads the newest snapshot and returns its step, or None if there is none."""
        return None

    def snapshot(self, step):
        """Saves the state after `step`, or starts to."""

    def close(self):
        """Completes what was started."""


class TorchSaveCheckpoint(NoCheckpoint):
    """`torch.save` to a directory that all ranks share, every `every` steps; blocks while it saves.

    Layout: DIR/step-00000042/rank-3.pt. A step is complete when every rank's file is there; a
    file gets its name only when it is written in full. The two newest steps are kept, because the
    newest may not be complete yet.
    """

    KEPT_STEPS = 2

    def __init__(self, job, directory, every):
        self._job = job
        self._directory = pathlib.Path(directory)
        self._every = every
        self._state = {
            "model": job.model,
            "optimizer": job.optimizer,
            "rng": GlobalRng(),
            **job.extras(),
        }

    def restore(self):
        # One rank looks, all use its answer: they must not read different steps.
        answer = [self._newest_complete() if self._job.rank == 0 else None]
        dist.broadcast_object_list(answer, src=0)
        if (step := answer[0]) is None:
            return None
        saved = torch.load(self._path(step, self._job.rank), weights_only=True)
        for name, part in self._state.items():
            part.load_state_dict(saved[name])
        return step

    def snapshot(self, step):
        if step % self._every:
            return
        path = self._path(step, self._job.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        torch.save({name: part.state_dict() for name, part in self._state.items()}, unfinished)
        unfinished.replace(path)
        if self._job.rank == 0:
            # The ranks are at most one step apart, so nobody needs what is older than two.
            for old in self._steps()[: -self.KEPT_STEPS]:
                shutil.rmtree(self._path(old, 0).parent, ignore_errors=True)

    def _path(self, step, rank):
        return self._directory / f"step-{step:08d}" / f"rank-{rank}.pt"

    def _steps(self):
        return sorted(int(path.name.split("-")[1]) for path in self._directory.glob("step-*"))

    def _newest_complete(self):
        for step in reversed(self._steps()):
            if all(self._path(step, rank).exists() for rank in range(self._job.world)):
                return step
        return None


class UnreftCheckpoint(NoCheckpoint):
    """Snapshots in the memory of this node, which outlives the process: `unreft up` starts it.

    Everything but the extras is found by Unreft: weights, buffers, optimizer and global generators.
    """

    def __init__(self, job, every):
        import unreft.torch  # Only here: the other methods run without it.

        self._checkpointer = unreft.torch.attach(job.ddp, job.optimizer, extras=job.extras())
        self._every = every

    def restore(self):
        return self._checkpointer.restore()

    def snapshot(self, step):
        if step % self._every == 0:
            self._checkpointer.snapshot(step)

    def close(self):
        self._checkpointer.close()


class StepLog:
    """The loss curve as JSON lines, one per finished step, appended so that kill -9 loses none.

    A restarted run repeats steps: of several lines of a step the last one counts. A line that was
    cut short is ended by the next writer and skipped by `read`.
    """

    def __init__(self, path):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def write(self, record):
        # One write per line and no buffer of ours: once it returns, the kernel has the line.
        os.write(self._fd, (json.dumps(record) + "\n").encode())

    def close(self):
        os.close(self._fd)

    @staticmethod
    def read(path):
        """All whole records of the file, in the order they were written."""
        records = []
        for line in pathlib.Path(path).read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return records

    @staticmethod
    def losses(path):
        """step -> loss as a hexadecimal float, exact to the last bit."""
        return {r["step"]: r["loss_hex"] for r in StepLog.read(path) if r["event"] == "step"}


def hash_value(digest, value):
    """Feeds nested state (tensors, mappings, sequences, plain values) to a hash, order-stable."""
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)}:".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)}:".encode())
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            hash_value(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)}:".encode())
        for item in value:
            hash_value(digest, item)
    else:
        digest.update(repr(value).encode())


def state_parts(job):
    """All state of one rank, by the names that a verdict has for its parts."""
    rng = GlobalRng().state_dict()
    return {
        "weights": dict(job.model.named_parameters()),
        "buffers": dict(job.model.named_buffers()),
        "optimizer": job.optimizer.state_dict(),
        **{f"rng_{name}": state for name, state in rng.items()},
        **{name: extra.state_dict() for name, extra in job.extras().items()},
    }


def digests_of(parts):
    """SHA-256 of each part of the state, so that a difference names the part it is in."""
    digests = {}
    for name, value in parts.items():
        digest = hashlib.sha256()
        hash_value(digest, value)
        digests[name] = digest.hexdigest()
    return digests


def write_final(prefix, rank, step, state):
    """Writes PREFIX.rank<n>.json: one digest over everything, and the digests of the parts."""
    parts = digests_of(state)
    whole = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    record = {"rank": rank, "step": step, "digest": whole, "parts": parts}
    path = pathlib.Path(f"{prefix}.rank{rank}.json")
    path.write_text(json.dumps(record, indent=2) + "\n")


def learning_rate_factor(step):
    """Linear warm-up, then a cosine down to a tenth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = min(1.0, (step - WARMUP_STEPS) / (DECAY_STEPS - WARMUP_STEPS))
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * progress))


def init_process(timeout_s, device_type):
    """Joins the process group that the launcher's environment describes; rank, world, device."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    device = init_cuda() if device_type == "cuda" else torch.device("cpu")
    # All ranks are on this node; they would otherwise use the interface of the host name.
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
    return dist.get_rank(), dist.get_world_size(), device


def init_cuda():
    """This rank's GPU, and kernels that give the same bits every time."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before cuBLAS is used
    index, found = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if index >= found:
        raise RuntimeError(f"rank {index} of this node: needed {index + 1} CUDA devices, "
                           f"found {found}")
    torch.cuda.set_device(index)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", index)


def buffers_argument():
    """What DDP calls the copying of rank 0's buffers: releases of PyTorch have two names for it."""
    newer = "forward_sync_buffers"
    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    return newer if newer in known else "broadcast_buffers"


def build_job(args, rank, world, device):
    """The state at step 0: the same weights on all ranks, different random numbers on each."""
    config = gpt.CONFIGS[args.size]
    torch.manual_seed(args.seed)
    model = gpt.GPT(config).to(device)
    ddp = nn.parallel.DistributedDataParallel(
        model,
        bucket_cap_mb=args.bucket_cap_mb,
        # On a GPU the order in which a norm adds depends on how its input is aligned, and where in
        # a bucket a gradient lies differs in the first step of a process.
        gradient_as_bucket_view=device.type == "cpu",
        # Each rank's running average is its own.
        **{buffers_argument(): False},
    )
    ddp.register_comm_hook(None, sum_in_rank_order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    sampler = gpt.TextSampler(gpt.load_corpus(), config, args.seed, rank, world)

    own_seed = args.seed * world + rank
    torch.manual_seed(own_seed)
    np.random.seed(own_seed % 2**32)
    random.seed(own_seed)
    return Job(rank, world, device, model, ddp, optimizer, scheduler, sampler)


def build_checkpoint(args, job):
    if args.checkpoint == "torch-save":
        return TorchSaveCheckpoint(job, args.checkpoint_dir, args.checkpoint_every)
    if args.checkpoint == "unreft":
        return UnreftCheckpoint(job, args.checkpoint_every)
    return NoCheckpoint()


def mean_in_rank_order(value, world):
    """The mean over ranks of a scalar tensor, as a Python float."""
    values = [torch.empty_like(value) for _ in range(world)]
    dist.all_gather(values, value)
    return sum(v.item() for v in values) / world


def require_same_step(step, world):
    """Fails on every rank if the ranks restored different steps: training on would mix states."""
    steps = [None] * world
    dist.all_gather_object(steps, step)
    if len(set(steps)) != 1:
        raise RuntimeError(f"ranks restored different steps: {dict(enumerate(steps))}")


def train_step(job, checkpoint):
    """One optimizer step; returns the loss, averaged over the ranks."""
    tokens, targets = (rows.to(job.device) for rows in job.sampler.next())
    loss = job.ddp(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(job.model.parameters(), GRADIENT_NORM_MAX)
    job.optimizer.step()
    job.scheduler.step()
    job.optimizer.zero_grad()
    return mean_in_rank_order(loss.detach().cpu(), job.world)


def train(args, job, checkpoint, log):
    """Restores, trains to the last step asked for and returns it."""
    restored = checkpoint.restore()
    require_same_step(restored, job.world)
    attempt = int(os.environ.get("UNREFT_ATTEMPT", 0))
    log({"event": "start", "attempt": attempt, "restored_step": restored, "unix_s": time.time()})

    last = args.steps if args.stop_after is None else min(args.steps, args.stop_after)
    step = restored or 0
    while step < last:
        begin = time.perf_counter()
        loss = train_step(job, checkpoint)
        step += 1
        record = {"event": "step", "step": step, "loss": loss, "loss_hex": loss.hex()}
        # Before the snapshot: a step counts as finished as soon as it could be lost.
        log({**record, "step_s": time.perf_counter() - begin, "unix_s": time.time()})
        checkpoint.snapshot(step)
        time.sleep(max(0.0, begin + args.step_s_min - time.perf_counter()))
    return step


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, required=True, help="train up to this step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", choices=gpt.CONFIGS, default="demo")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--log", metavar="FILE", help="append the loss curve (rank 0)")
    parser.add_argument("--final", metavar="PREFIX", help="write PREFIX.rank<n>.json at the end")
    parser.add_argument("--checkpoint", choices=["none", "torch-save", "unreft"], default="none")
    parser.add_argument("--checkpoint-dir", metavar="DIR")
    parser.add_argument("--checkpoint-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="exit early, no --final")
    parser.add_argument("--step-s-min", type=float, default=0, help="wait if a step is shorter")
    parser.add_argument("--bucket-cap-mb", type=float, default=25, help="DDP's gradient buckets")
    parser.add_argument("--timeout-s", type=float, default=60, help="limit of one collective")
    args = parser.parse_args()
    if args.checkpoint == "torch-save" and not args.checkpoint_dir:
        parser.error("--checkpoint torch-save needs --checkpoint-dir")
    if args.checkpoint_every < 1:
        parser.error("--checkpoint-every must be at least 1")
    return args


def main():
    args = parse_args()
    rank, world, device = init_process(args.timeout_s, args.device)
    job = build_job(args, rank, world, device)
    checkpoint = build_checkpoint(args, job)
    step_log = StepLog(args.log) if args.log and rank == 0 else None
    log = step_log.write if step_log else lambda record: None
    step = train(args, job, checkpoint, log)
    checkpoint.close()
    if args.final and step >= args.steps:
        write_final(args.final, rank, step, state_parts(job))
    if step_log:
        step_log.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
