"""One rank of a job that saves by torch.distributed.checkpoint: writes JSON lines to stdout.

    dcp_trainer.py --steps N [--die-after STEP] [--how save|async|stager|default]
                   [--layout ddp|fsdp] [--tensor-parallel RANKS] [--no-load] [--fresh]
                   [--rank-0-alone]

With --rank-0-alone it saves without the others.

What it says of its state is of whole tensors, so that it can be compared between worlds.
"""

import argparse
import hashlib
import os
import signal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from saying import say
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import unreft
import unreft.dcp


def build(layout, tensor_parallel):
    torch.manual_seed(1)
    # Of four ranks one has no row of the last.
    model = nn.Sequential(nn.Linear(10, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))
    if tensor_parallel > 1:
        model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 10))
        mesh = init_device_mesh(
            "cpu",
            (dist.get_world_size() // tensor_parallel, tensor_parallel),
            mesh_dim_names=("data", "tensor"),
        )
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        fully_shard(model, mesh=mesh["data"])
    elif layout == "fsdp":
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def digest_of(state):
    """Of what state_dict() has, by name; all ranks gather it."""
    digest = hashlib.sha256()

    def add(path, value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                add(f"{path}.{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for i, of in enumerate(value):
                add(f"{path}.{i}", of)
        elif isinstance(value, torch.Tensor):
            whole = value.detach()
            whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            digest.update(f"{path} {whole.dtype} {tuple(whole.shape)}".encode())
            digest.update(whole.contiguous().reshape(-1).view(torch.uint8).numpy())
        else:
            digest.update(f"{path} {value!r}".encode())

    add("", state)
    return digest.hexdigest()


def state_of(model, optimizer, scheduler, step):
    model_state, optim_state = get_state_dict(model, optimizer)
    return {
        "model": model_state,
        "optim": optim_state,
        "scheduler": scheduler.state_dict(),
        "progress": {"step": step, "names": ["a", {"b": step}], "nothing": torch.zeros(0, 3)},
        "strided": torch.arange(12.0).view(3, 4).t() * step,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--how", default="save")
    parser.add_argument("--layout", default="fsdp")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--no-load", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--rank-0-alone", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(args)
    except (unreft.Error, dcp.api.CheckpointException) as error:
        say(error=type(error).__name__, message=str(error))
    dist.destroy_process_group()


def train(args):
    model, optimizer = build(args.layout, args.tensor_parallel)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    reader = unreft.dcp.Reader()
    step = 0
    if reader.step is not None and not args.no_load:
        state = state_of(model, optimizer, scheduler, 0)
        dcp.load(state, storage_reader=reader)
        step = state["progress"]["step"]
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        scheduler.load_state_dict(state["scheduler"])
        assert state["progress"]["names"] == ["a", {"b": step}]
        assert torch.equal(state["strided"], torch.arange(12.0).view(3, 4).t() * step)
        say(loaded=step, digest=digest_of(state_of(model, optimizer, scheduler, step)))
    else:
        say(loaded=None)
    stager = None
    if args.how == "stager":
        stager = unreft.dcp.Stager(overlap=True)
    elif args.how == "default":
        stager = DefaultStager(StagingOptions(False, False, False, False))
    while step < args.steps:
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(4, 10, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        step += 1
        state = state_of(model, optimizer, scheduler, step)
        digest = digest_of(state)
        save(args, state, step, stager)
        say(step=step, digest=digest)
        if step == args.die_after:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    if stager is not None:
        stager.close()


def save(args, state, step, stager):
    writer = unreft.dcp.Writer(f"runs/step_{step}", fresh=args.fresh)
    if args.rank_0_alone:
        group = dist.new_group([0])
        if dist.get_rank() == 0:
            dcp.save({"step": step}, storage_writer=writer, process_group=group)
        return
    if args.how == "save":
        dcp.save(state, storage_writer=writer)
        return
    if args.how == "stager":
        stager.step = step
    begun = dcp.async_save(state, storage_writer=writer, async_stager=stager)
    if args.how == "stager":
        begun.staging_completion.result()
        begun = begun.upload_completion
    state["strided"].zero_()  # it was copied
    begun.result()


if __name__ == "__main__":
    main()
