"""One rank that Megatron-Core trains, kept in memory: writes JSON lines to stdout.

    mcore_trainer.py --tp N --pp N [--virtual N] [--steps N] [--die-after STEP] [--fp32]
                     [--swiglu] [--llama] [--untied] [--plain-optimizer] [--fused-adam] [--overlap]
                     [--freeze] [--layers N] [--width N] [--dropout P] [--every STEPS]
                     [--seed-anew] [--move-at STEP] [--sequence-parallel] [--save DIRECTORY]
                     [--load DIRECTORY [--load-at STEP]] [--alone] [--time]

It is killed when that step or a later one is committed, or held where fault_matrix.py says so. It
says the losses of every step, and its state when it begins, is held, dies and ends: digests of
whole tensors, put together by the boxes of Megatron-Core's own checkpoints, so that they can be
compared between sizes of parallelism. --save and --load are of such a checkpoint, of the format
"fully_reshardable". With --seed-anew it draws from there on as any run does that begins so; with
--alone nothing is attached; with --time it says how long the Python of a snapshot takes, without a
daemon.
"""

import argparse
import dataclasses
import functools
import hashlib
import logging
import os
import signal
import time

import mcore_fused
import mcore_model
import torch
import torch.distributed as dist
from holding import is_held, wait_released
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.utils import unwrap_model
from saying import say

import unreft
import unreft.mcore


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if "random streams" in record.getMessage():
            self.lines.append(record.getMessage())


# --- the whole state, by what Megatron-Core's own checkpoints have of it ---


def metadata():
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": False,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


def models_of(chunks):
    """What a checkpoint has of each virtual stage, of one as of a model without."""
    states = [model.sharded_state_dict(metadata=metadata()) for model in unwrap_model(chunks)]
    if len(states) == 1:
        return {"model": states[0]}
    return {f"model{stage}": state for stage, state in enumerate(states)}


@torch.no_grad()
def sharded(chunks, optimizer, is_loading=False):
    state = models_of(chunks)
    state["optimizer"] = optimizer.sharded_state_dict(
        state, is_loading=is_loading, metadata=metadata()
    )
    return state


@torch.no_grad()
def put_together(chunks, optimizer):
    """As `sharded`, but for a DistributedOptimizer from what each data-parallel rank has: where
    buckets are padded, "fully_reshardable" of 0.19.2 takes what is in later ones from the wrong
    places."""
    if not chunks[0].ddp_config.use_distributed_optimizer:
        return sharded(chunks, optimizer)
    (distributed,) = optimizer.chained_optimizers
    state = models_of(chunks)
    mains = {each.parameter: each for each in unreft.mcore.main_parameters.mains_of(distributed)}
    for value in list(nested_values(state)):
        parameter = value.data
        if not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad:
            continue
        main = mains.get(parameter)
        for key in ("param", "exp_avg", "exp_avg_sq"):
            data = torch.zeros(parameter.numel())
            if main is not None:
                inner = distributed.optimizer.state[main.main]
                data[main.begin : main.end] = main.main if key == "param" else inner[key]
            dist.all_reduce(data, group=parallel_state.get_data_parallel_group())
            whole = {"key": f"optimizer.state.{key}.{value.key}", "data": data.view_as(parameter)}
            if isinstance(value, ShardedTensor):
                whole["dtype"] = torch.float32
            state[f"{key}.{value.key}.{id(parameter)}"] = dataclasses.replace(value, **whole)
    return state


def whole_tensors(state):
    """By key, from the boxes of all ranks, without what is padded of the vocabulary."""
    apply_factories(state)
    own = [
        (each.key, each.global_shape, each.global_offset,
         each.data.detach().reshape((1,) * each.prepend_axis_num + each.local_shape).clone())
        for each in nested_values(state)
        if isinstance(each, ShardedTensor)
    ]
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, own)
    found = {}
    for boxes in of_all:
        for key, shape, offset, data in boxes:
            whole = found.setdefault(key, torch.full(shape, float("nan"), dtype=data.dtype))
            place = whole[tuple(slice(o, o + n) for o, n in zip(offset, data.shape))]
            known = ~torch.isnan(place)
            # Replicas are alike.
            assert torch.equal(place[known], data[known]), key
            place.copy_(data)
    assert not any(torch.isnan(whole).any() for whole in found.values())
    for key in found:
        if "word_embeddings" in key or "output_layer" in key:
            found[key] = found[key][: mcore_model.VOCABULARY]
    return found


def state_of(chunks, optimizer, scheduler):
    for chunk in chunks:
        if chunk.ddp_config.overlap_param_gather:  # as before a checkpoint of its own
            chunk.start_param_sync(force_sync=True)
    whole = whole_tensors(put_together(chunks, optimizer))
    masters = {k: v for k, v in whole.items() if "fp32_param." in k or ".param." in k}
    for key, master in masters.items():
        weight = whole[key.partition("param.")[2]]
        assert torch.equal(master.to(weight.dtype), weight), key
    parts = {"master": masters}
    for moment in ("exp_avg", "exp_avg_sq"):
        parts[moment] = {k: v for k, v in whole.items() if f".{moment}." in k}
    others = [key for part in parts.values() for key in part]
    parts["weights"] = {k: v for k, v in whole.items() if k not in others}
    assert all(parts[name] for name in parts if name != "master")
    inner = [each.optimizer for each in unreft.mcore.main_parameters.optimizers_of(optimizer)]
    counts = {s["step"].item() for each in inner for s in each.state.values() if "step" in s}
    counts |= {g["step"] for each in inner if is_fused(each) for g in each.param_groups}
    return {
        **{name: digest(part) for name, part in parts.items()},
        "counts": [len(part) for part in parts.values()],
        "adam_steps": sorted(counts),
        "groups": [  # Megatron-Core notes the count of steps in each, once it has loaded
            {k: v for k, v in group.items() if k not in ("params", "step")}
            for group in optimizer.param_groups
        ],
        "scheduler": scheduler.state_dict(),
    }


def digest(tensors):
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]


def own_state_of():
    """Of this rank alone: what its generators draw next."""
    kept = torch.get_rng_state()
    drawn = torch.rand(3).tolist()
    tracker = tensor_parallel.get_cuda_rng_tracker()
    states = tracker.get_states()
    with tracker.fork():
        drawn += torch.rand(3).tolist()
    tracker.set_states(states)
    torch.set_rng_state(kept)
    return {"drawn": drawn}


def save(chunks, optimizer, directory):
    state = sharded(chunks, optimizer)
    os.makedirs(directory, exist_ok=True)
    dist_checkpointing.save(state, directory, content_metadata=metadata_of_file())


def metadata_of_file():
    return {k: v for k, v in metadata().items() if k != "dp_cp_group"}


@torch.no_grad()
def load(chunks, optimizer, directory):
    """Without Apex, Megatron-Core neither makes the optimizer's state nor finds its count of steps.
    """
    inner = [each.optimizer for each in optimizer.chained_optimizers]
    of_torch = not any(map(is_fused, inner))
    if of_torch:
        for each in optimizer.chained_optimizers:
            copy = each._set_main_param_and_optimizer_states
            each._set_main_param_and_optimizer_states = functools.partial(without_step, copy)
        for main, state in mains_and_states(inner):
            state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(main),
                      "exp_avg_sq": torch.zeros_like(main)}
    loaded = dist_checkpointing.load(sharded(chunks, optimizer, is_loading=True), directory)
    (step,) = {group["step"] for group in loaded["optimizer"]["optimizer"]["param_groups"]}
    for name, model in zip(models_of(chunks), unwrap_model(chunks), strict=True):
        model.load_state_dict(loaded[name])
    optimizer.load_state_dict(loaded["optimizer"])
    for _, state in mains_and_states(inner) if of_torch else ():
        state["step"] = torch.tensor(float(step))
    return int(step)


def is_fused(inner):
    return isinstance(inner, mcore_fused.FusedAdam)


def without_step(copy, parameter, tensors):
    copy(parameter, {**tensors, "step": None})


def mains_and_states(inner):
    return [
        (main, each.state[main])
        for each in inner
        for group in each.param_groups
        for main in group["params"]
    ]


def move(optimizer):
    """What is stepped on, and moments, to other memory."""
    for each in unreft.mcore.main_parameters.optimizers_of(optimizer):
        for main, state in each.optimizer.state.items():
            main.data = main.data.clone()
            state["exp_avg"].data = state["exp_avg"].data.clone()


class Client:
    """Stands for that of a daemon: takes what it is given."""

    tensors = 0
    registrations = 0

    def register(self, tensors, *_):
        self.tensors = len(tensors)
        self.registrations += 1

    def wait_ready(self, timeout_s):
        pass

    def fence(self, stream=0):
        pass

    def status(self):
        return unreft.Status(ready=True)

    def snapshot(self, step, extras=b"", stream=0):
        return unreft.Snapshot(started=True)


class Timer:
    """Of what a snapshot does in Python."""

    def __init__(self, chunks, optimizer, scheduler):
        from unreft.mcore.checkpointer import ModelCheckpointer
        from unreft.mcore.model_state import ModelState
        from unreft.mcore.place import place_of
        from unreft.mcore.training_extras import extras_of
        from unreft.torch.extras import Extras

        self.client, self.seconds = Client(), []
        state = ModelState(chunks, optimizer, 0, 1, place_of())
        extras = Extras(extras_of(scheduler, place_of(), True))
        self._ck = ModelCheckpointer(chunks, optimizer, self.client, state, extras, False)
        self._ck._restored = True

    def look(self, step):
        with torch._C.DisableTorchFunction():  # which is only of tests
            for number in range(10 * step, 10 * step + 10):
                begin = time.perf_counter()
                started = self._ck.snapshot(number)
                self.seconds.append(time.perf_counter() - begin)
                assert started, self._ck.status.last_problem


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--pp", type=int, required=True)
    parser.add_argument("--virtual", type=int)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--swiglu", action="store_true")
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--fused-adam", action="store_true")
    parser.add_argument("--plain-optimizer", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed-anew", action="store_true")
    parser.add_argument("--move-at", type=int, default=0)
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--load-at", type=int, default=0)
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--alone", action="store_true")
    return parser.parse_args()


def main():
    args = parsed()
    log = Lines()
    logging.getLogger("unreft").addHandler(log)
    logging.getLogger("unreft").setLevel(logging.INFO)
    mcore_model.begin(args.tp, args.pp, args.virtual)
    # Another model at each restart: what is restored is not there before.
    mcore_model.seed(mcore_model.SEED + int(os.environ["UNREFT_ATTEMPT"]))
    config = mcore_model.config_of(
        args.fp32, args.swiglu, args.dropout, args.layers, args.width, args.llama,
        args.sequence_parallel
    )
    if args.fused_adam:
        mcore_fused.install()
    distributed = not args.plain_optimizer
    overlap = {"overlap_param_gather": True} if args.overlap else {}
    chunks = mcore_model.model_of(
        config, args.untied, args.freeze, args.llama, use_distributed_optimizer=distributed,
        overlap_grad_reduce=args.overlap, **overlap
    )
    optimizer, scheduler = mcore_model.optimizer_of(chunks, distributed, **overlap)
    mcore_model.set_up(chunks, optimizer)
    ck, step, seen = None, 0, {"samples": 0}
    if not args.alone:
        try:
            ck = unreft.mcore.attach(
                chunks,
                optimizer,
                opt_param_scheduler=scheduler,
                extras={"samples": lambda: seen["samples"]},
            )
            restored = ck.restore()
        except unreft.Error as error:
            say(error=type(error).__name__, message=str(error))
            return
        step, seen["samples"] = restored or 0, ck.extras.get("samples", 0)
        say(restored=restored, reshaped_from=ck.status.reshaped_from, log=log.lines)
    if args.load and not args.load_at:
        step = load(chunks, optimizer, args.load)
        scheduler.step(increment=step)
    if step:
        say(state=state_of(chunks, optimizer, scheduler), own=own_state_of())
    timer = Timer(chunks, optimizer, scheduler) if args.time else None
    if args.seed_anew:
        mcore_model.seed(200)
    while step < args.steps:
        if step + 1 == args.move_at:
            move(optimizer)
        if step == args.load_at and args.load:
            ck.fence()
            load(chunks, optimizer, args.load)
            say(loaded=step, state=state_of(chunks, optimizer, scheduler))
        losses, _ = mcore_model.train_step(chunks, optimizer, scheduler, step)
        step += 1
        seen["samples"] += mcore_model.SAMPLES
        say(step=step, losses=losses, lr=optimizer.param_groups[0]["lr"], seen=seen["samples"])
        if timer:
            timer.look(step)
        if ck is None or step % args.every:
            continue
        ck.snapshot(step)
        if not ck.wait(step, 20):
            continue
        if is_held(step):
            say(held=step, state=state_of(chunks, optimizer, scheduler), own=own_state_of())
            wait_released(step)
        if args.die_after and step >= args.die_after:
            if args.save:
                save(chunks, optimizer, args.save)
            say(died=step, state=state_of(chunks, optimizer, scheduler), own=own_state_of(),
                problem=ck.status.last_problem)
            dist.barrier()
            if args.save:  # which has started a process that would outlive this one
                break
            os.kill(os.getpid(), signal.SIGKILL)
    problem = ck.status.last_problem if ck else ""
    if timer:
        client = timer.client
        say(tensors=client.tensors, registrations=client.registrations, least_s=min(timer.seconds))
        return
    say(final=state_of(chunks, optimizer, scheduler), own=own_state_of(), problem=problem)
    if ck:
        ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
