"""Engines whose tensors are moved, replaced or of another type between snapshots: writes JSON lines
of what becomes of these.

    deepspeed_moves.py
"""

import dataclasses
import gc
import os
import unittest.mock
import weakref

import deepspeed_preloaded  # noqa: F401, first
import deepspeed
import torch
from deepspeed.runtime.zero import stage_1_and_2
from saying import say
from torch import nn

import unreft
import unreft.deepspeed


def engine_of(model):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 2},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine):
    engine.backward(engine(torch.ones(1, 30)).sum())
    engine.step()


def attached(engine):
    ck = unreft.deepspeed.attach(engine)
    ck.restore()
    train(engine)
    assert ck.wait(ck.number) and not ck.status.last_problem, ck.status.last_problem
    return ck


# --- engine.offload_states ---


def copy_state(optimizer, *args, **kwargs):
    """As DeepSpeed moves it between devices, of which there is one here."""
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.clone()
    return []


def memory_of(engine):
    """Weak references to what moves, by name."""
    (state,) = engine.optimizer.optimizer.state.values()
    return {key: weakref.ref(value.untyped_storage()) for key, value in state.items()}


def kept(memory):
    gc.collect()
    return [key for key, reference in memory.items() if reference() is not None]


def offload():
    engine = engine_of(nn.Linear(30, 30))
    ck = attached(engine)
    copying, when_moved = [True, True, False], []

    def status(asked=ck._client.status):
        return dataclasses.replace(asked(), copying=len(copying) > 1 and copying.pop(0))

    def offload_state(*args, **kwargs):
        when_moved.append(copying[0])
        copy_state(*args, **kwargs)

    before = memory_of(engine)
    with unittest.mock.patch.object(ck._client, "status", status):
        with unittest.mock.patch.object(stage_1_and_2, "offload_optimizer_states", offload_state):
            engine.offload_states(pin_memory=False)
    found = {"kept": kept(before), "copying": when_moved}
    offloaded = memory_of(engine)
    with unittest.mock.patch.object(stage_1_and_2, "reload_optimizer_states", copy_state):
        engine.reload_states()
    found["kept of offloaded"] = kept(offloaded)
    train(engine)
    found["committed"] = ck.wait(ck.number)
    found["registrations"] = ck.status.layout_generations
    ck.close()
    found["replaced"] = engine.offload_states.__self__ is not engine
    say(name="offload", **found)


# --- what has no place in a snapshot ---


def problem_after(name, change):
    engine = engine_of(nn.Linear(30, 30))
    ck = attached(engine)
    change(engine.module)
    train(engine)
    say(name=name, problem=ck.status.last_problem)
    ck.close()


def replace_bias(module):
    module.load_state_dict({"bias": torch.ones(30)}, strict=False, assign=True)


def add_stream(module):
    deepspeed.checkpointing.get_cuda_rng_tracker().add("model-parallel-rng", 5)


def restore_bfloat16():
    """What an engine of the same model in fp32 has stored; the masters are alike."""
    ck = unreft.deepspeed.attach(engine_of(nn.Linear(30, 30).bfloat16()))
    try:
        ck.restore()
        say(name="bfloat16 weights", problem="")
    except unreft.Error as error:
        say(name="bfloat16 weights", problem=str(error))
    ck.close()


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    deepspeed.init_distributed("gloo")
    offload()
    restore_bfloat16()
    problem_after("a trained parameter", replace_bias)
    problem_after("a random stream", add_stream)


if __name__ == "__main__":
    main()
