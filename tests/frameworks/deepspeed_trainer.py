"""One rank that DeepSpeed trains, kept in memory: writes JSON lines to stdout.

    deepspeed_trainer.py --stage N [--fp32] [--steps N] [--die-after STEP] [--accumulated N]
                         [--every STEPS] [--zero-init] [--one-group] [--overflow-at STEP]
                         [--move-at STEP] [--width N] [--bias] [--alone] [--warm-up]
                         [--save-at STEP] [--load [--universal]] [--files DIRECTORY] [--seed-anew]
                         [--late-buffer] [--replace module|tensor|new]

It is killed when that step or a later one is committed, or held where fault_matrix.py says so. It
says the loss and learning rates of every step, and its state when it begins, is held, dies and
ends: of whole tensors, so that it can be compared between numbers of ranks. With --load it loads
from files after it has restored. With --seed-anew it draws from there on as any run does that
begins so. With --warm-up it makes a step before anything is attached. With --replace what is
frozen is another at every step: its module, its tensor, or the tensors of a module that the first
step has not had.
"""

import argparse
import contextlib
import copy
import hashlib
import logging
import os
import signal

import deepspeed_preloaded  # noqa: F401, first
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from holding import is_held, wait_released
from saying import say
from torch import nn

import unreft
import unreft.deepspeed

_OFFLOAD_BUFFER = "exp_avg_offload_buffer"


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if "load_checkpoint" in record.getMessage():
            self.lines.append(record.getMessage())


class Net(nn.Module):
    """Of odd sizes, with a tied and a frozen parameter, and a buffer that forward writes; with
    `late` another, which is not there before."""

    def __init__(self, width, bias, late):
        super().__init__()
        self.embed = nn.Embedding(13, 9)
        self.body = nn.Linear(9, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.2)
        self.frozen = nn.Linear(width, 9, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(9, 13, bias=bias)
        self.head.weight = self.embed.weight
        self.register_buffer("mean", torch.zeros(()))
        self.late = late
        self.register_buffer("largest", None)

    def forward(self, tokens):
        hidden = self.dropout(nn.functional.gelu(self.norm(self.body(self.embed(tokens)))))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(hidden.mean(), alpha=0.1)
            if self.late:
                if self.largest is None:
                    self.largest = torch.zeros((), dtype=hidden.dtype)
                torch.maximum(self.largest, hidden.max(), out=self.largest)
        return self.head(self.frozen(hidden) * self.scale).float()


class Target(nn.Linear):
    """Frozen, with a buffer and with state beside tensors."""

    def __init__(self, value):
        super().__init__(3, 2)
        self.requires_grad_(False)
        nn.init.constant_(self.weight, value)
        nn.init.constant_(self.bias, -value)
        self.register_buffer("scale", torch.full((2,), 10.0 * value))
        self.value = value

    def get_extra_state(self):
        return {"value": self.value}

    def set_extra_state(self, state):
        self.value = state["value"]


def replace(model, args, step):
    what = args.replace
    if what == "module":
        model.frozen = copy.deepcopy(model.frozen)
        model.frozen.weight.mul_(1.25)
    elif what == "tensor":
        model.frozen.load_state_dict({"weight": model.frozen.weight * 1.25}, assign=True)
    elif what == "new" and step > 0:
        target = Target(float(step))
        if args.stage == 3:
            deepspeed.zero.Init(module=target, config_dict_or_path=config_of(args))
        if not hasattr(model, "target"):
            model.target = target
        for name in ("weight", "bias"):
            setattr(model.target, name, getattr(target, name))


def config_of(args):
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": args.accumulated,
        "gradient_clipping": 1.0,
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": args.stage,
            # Several partitions of a group, and both parameters that stay whole and others that do
            # not.
            "sub_group_size": 1000 if args.one_group else 40,
            "stage3_param_persistence_threshold": 12,
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 50},
        },
    }
    if args.universal:
        config["checkpoint"] = {"load_universal": True}
    if not args.fp32:
        config["bf16"] = {"enabled": True, "check_grad_overflow": True}
    return config


def engine_of(args):
    config = config_of(args)
    # Another model at each restart: what is restored is not there before.
    torch.manual_seed(1 + int(os.environ["UNREFT_ATTEMPT"]))
    init = deepspeed.zero.Init(config_dict_or_path=config, enabled=args.zero_init)
    with init if args.zero_init else contextlib.nullcontext():
        model = Net(args.width, args.bias, args.late_buffer)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if args.one_group:
        groups = [{"params": [p for _, p in named]}]
    else:
        no_decay = [p for name, p in named if "norm" in name or "bias" in name]
        others = [p for name, p in named if not ("norm" in name or "bias" in name)]
        groups = [
            {"params": others, "weight_decay": 0.1},
            {"params": no_decay, "weight_decay": 0.0, "betas": (0.8, 0.95)},
        ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


# --- the whole state, from all ranks' parts, by what ZeRO does with them ---


def gathered(flat):
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat.detach())
    return parts


def whole_tensors(engine, like_flat):
    """Name to the whole of what `like_flat(flat)` gives for each partition."""
    zero, found = engine.optimizer, {}
    names = {p: name for name, p in engine.module.named_parameters()}
    if engine.zero_optimization_stage() < 3:
        for flat, group in zip(zero.single_partition_of_fp32_groups, zero.bit16_groups):
            whole, at = torch.cat(gathered(like_flat(flat))), 0
            for parameter in group:
                found[names[parameter]] = whole[at : at + parameter.numel()]
                at += parameter.numel()
        return found
    for flat, group in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups):
        parts, at = gathered(like_flat(flat)), 0
        for parameter in group:
            size = -(-parameter.ds_numel // dist.get_world_size())
            whole = torch.cat([part[at : at + size] for part in parts])
            found[names[parameter]] = whole[: parameter.ds_numel]
            at += size
    return found


def digest(tensors):
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]


def weights_of(engine):
    """What the model computes with, also what is not trained."""
    named = list(engine.module.named_parameters())
    sharded = [p for _, p in named if hasattr(p, "ds_id")]
    with deepspeed.zero.GatheredParameters(sharded, enabled=bool(sharded)):
        return {name: p.detach().clone().reshape(-1) for name, p in named}


def state_of(engine):
    inner = engine.optimizer.optimizer
    keys = {k for state in inner.state.values() for k, v in state.items() if v.dim()}
    keys = sorted(keys - {_OFFLOAD_BUFFER})
    steps = {k: v.item() for s in inner.state.values() for k, v in s.items() if not v.dim()}
    moments = {key: digest(whole_tensors(engine, lambda f: inner.state[f][key])) for key in keys}
    return {
        "master": digest(whole_tensors(engine, lambda flat: flat)),
        "moments": moments,
        "adam_steps": steps,
        "weights": digest(weights_of(engine)),
        "groups": [{k: v for k, v in g.items() if k != "params"} for g in inner.param_groups],
        "counts": [engine.global_steps, engine.skipped_steps],
        "scheduler": engine.lr_scheduler.state_dict(),
    }


def check_views(engine):
    """DeepSpeed's own of the state, which are to be of what is restored."""
    master = whole_tensors(engine, lambda flat: flat)
    state = engine.optimizer.optimizer.state
    averages = whole_tensors(engine, lambda flat: state[flat]["exp_avg"]) if state else {}
    for name, parameter in engine.module.named_parameters():
        if name in master:
            assert torch.equal(safe_get_full_fp32_param(parameter).flatten(), master[name]), name
        if name in averages:
            average = safe_get_full_optimizer_state(parameter, "exp_avg")
            assert torch.equal(average.flatten(), averages[name]), name


def own_state_of(engine):
    """Of this rank alone."""
    rng = torch.get_rng_state()
    drawn = torch.rand(3).tolist()
    torch.set_rng_state(rng)
    return {
        "drawn": drawn,
        "buffer": engine.module.mean.item(),
        "late": None if engine.module.largest is None else engine.module.largest.item(),
        "target": of_target(getattr(engine.module, "target", None)),
        "samples": [
            engine.global_samples, engine.micro_steps % engine.gradient_accumulation_steps()
        ],
    }


def of_target(target):
    return target and [target.scale.tolist(), target.value]


def move(engine):
    """Partitions and moments, to other memory; with a buffer, as `engine.offload_states` has."""
    for flat, state in engine.optimizer.optimizer.state.items():
        flat.data = flat.data.clone()
        state["exp_avg"].data = state["exp_avg"].data.clone()
        state[_OFFLOAD_BUFFER] = torch.zeros_like(state["exp_avg"])


def check_keys(engine):
    keys = set().union(*engine.optimizer.optimizer.state.values())
    assert keys <= {"exp_avg", "exp_avg_sq", "step"}, keys


def train(args, engine, ck, seen, log):
    numbers = set()  # of snapshots
    while engine.global_steps < args.steps:
        tokens = torch.randint(13, (3, 5))
        loss = nn.functional.cross_entropy(engine(tokens).view(-1, 13), tokens.view(-1))
        if engine.global_steps + 1 == args.move_at:
            move(engine)
        overflows = engine.global_steps + 1 == args.overflow_at
        engine.backward(loss * float("inf") if overflows else loss)
        seen["batches"] += 1
        with torch.no_grad():
            replace(engine.module, args, engine.global_steps)
        before = engine.global_steps
        engine.step()
        say(step=engine.global_steps, loss=loss.item(), lr=engine.get_lr(), seen=seen["batches"])
        step = engine.global_steps
        if step == before:
            continue
        if ck is not None:
            numbers.add(ck.number)
        if step == args.save_at:
            engine.save_checkpoint(args.files)
            say(saved=step, state=state_of(engine))
        if ck is None or step % args.every or not ck.wait(ck.number, 20):
            continue
        if is_held(step):
            say(held=step, state=state_of(engine), own=own_state_of(engine))
            wait_released(step)
        if args.die_after and step >= args.die_after:
            say(died=step, state=state_of(engine), own=own_state_of(engine), log=log.lines,
                numbers=sorted(numbers))
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, required=True)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--accumulated", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--zero-init", action="store_true")
    parser.add_argument("--one-group", action="store_true")
    parser.add_argument("--overflow-at", type=int, default=0)
    parser.add_argument("--move-at", type=int, default=0)
    parser.add_argument("--width", type=int, default=11)
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--save-at", type=int, default=0)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--universal", action="store_true")
    parser.add_argument("--files")
    parser.add_argument("--seed-anew", action="store_true")
    parser.add_argument("--late-buffer", action="store_true")
    parser.add_argument("--replace", choices=["module", "tensor", "new"])
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    deepspeed.utils.logger.setLevel(logging.ERROR)
    log = Lines()
    logging.getLogger("unreft").addHandler(log)
    logging.getLogger("unreft").setLevel(logging.INFO)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    engine = engine_of(args)
    if args.warm_up:  # after which stage 3 has small parameters gathered
        engine.backward(engine(torch.zeros(3, 5, dtype=torch.long)).sum())
        engine.step()
    seen, ck, step = {"batches": 0}, None, None
    if not args.alone:
        try:
            ck = unreft.deepspeed.attach(
                engine, extras={"seen": lambda: seen["batches"]}, every=args.every, buffers="first"
            )
            if os.environ["UNREFT_ATTEMPT"] != "0":  # as the state has it
                replace(engine.module, args, 100)
            step = ck.restore()
            seen["batches"] = ck.extras.get("seen", 0)
        except unreft.Error as error:
            say(error=type(error).__name__, message=str(error))
            return
        say(restored=step, reshaped_from=ck.status.reshaped_from)
        if step is not None:
            check_views(engine)
            check_keys(engine)
    if args.load:
        path, _ = engine.load_checkpoint(args.files)
        say(loaded=path is not None)
    if step is not None or args.load:
        say(state=state_of(engine), own=own_state_of(engine))
    if args.seed_anew:
        torch.manual_seed(200 + dist.get_rank())
    train(args, engine, ck, seen, log)
    problem = ck.status.last_problem if ck else ""
    say(final=state_of(engine), own=own_state_of(engine), problem=problem)
    if ck:
        ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
