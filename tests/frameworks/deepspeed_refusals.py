"""Attaches one engine in ways that are refused: writes JSON lines of what each is told.

    deepspeed_refusals.py
"""

import os
import unittest.mock

import deepspeed_preloaded  # noqa: F401, first
import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
from saying import say
from torch import nn

import unreft
import unreft.deepspeed
import unreft.torch

# Instead of building each, since some need a GPU: by name, what the engine's configuration has.
ZERO = {
    "offload_optimizer to nvme": {"offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}},
    "offload_param to cpu": {"offload_param": {"device": "cpu"}},
    "ZeRO stage 0": {"stage": 0},
    "zero_hpz_partition_size": {"zero_hpz_partition_size": 2},
    "zero_quantized_weights": {"zero_quantized_weights": True},
    "zero_quantized_nontrainable_weights": {"zero_quantized_nontrainable_weights": True},
    "zero_quantized_gradients": {"zero_quantized_gradients": True},
    "round_robin_gradients": {"round_robin_gradients": True},
    "parameter_alignment": {"parameter_alignment": True},
}
ENGINE = {
    "fp16": {"fp16_enabled": lambda: True},
    "torch_autocast": {"torch_autocast_enabled": lambda: True},
    "mixture of experts": {"has_moe_layers": True},
    "autotp_size": {"autotp_size": lambda: 2},
    "managed_gradient_accumulation false": {"managed_gradient_accumulation": lambda: False},
    "bf16_optimizer_states": {"bf16_optimizer_states": lambda: True},
    "deepcompile": {"is_deepcompile_enabled": lambda: True},
    "the optimizer NoneType": {"optimizer": None},
    "base_weight_sharding": {"optimized_linear_base_weight_sharding": True},
    "bf16_master_weights_and_grads": {"bf16_master_weights_and_gradients": lambda: True},
    "an mpu": {"mpu": object()},
}
# What DeepSpeed acts on although the whole is not enabled.
DATA_EFFICIENCY = {
    "data_efficiency": {"enabled": True},
    "curriculum_learning": {
        "data_sampling": {"curriculum_learning": {"enabled": True, "curriculum_metrics": {}}}
    },
    "random_ltd": {
        "data_routing": {
            "random_ltd": {
                "enabled": True,
                "total_layer_num": 2,
                "random_ltd_layer_num": 1,
                "random_ltd_layer_id": [0],
                "model_mask_name": None,
                "model_type": "decoder",
                "hidden_state_order": "batch_seq_dim",
                "random_ltd_schedule": {
                    "min_value": 2,
                    "max_value": 8,
                    "schedule_type": "fixed_linear",
                    "schedule_config": {"require_steps": 4, "seq_per_step": 2},
                },
            }
        }
    },
}
# Of which some compile what they compute with, when they are made.
OPTIMIZERS = [DeepSpeedCPUAdam, FusedAdam, MuonWithAuxAdam]


def attach(name, *args, of=unreft.deepspeed.attach, **options):
    try:
        of(*args, **options).close()
    except unreft.Error as error:
        say(name=name, error=type(error).__name__, message=str(error))
    else:
        say(name=name, error=None, message="")


def engine_of(model, config, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def of_adagrad(config, stage):
    """An engine of two parameter groups, of which DeepSpeed makes one."""
    model = nn.Linear(3, 5)
    optimizer = torch.optim.Adagrad([{"params": [p]} for p in model.parameters()])
    return engine_of(model, {**config, "zero_optimization": {"stage": stage}}, optimizer)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    deepspeed.init_distributed("gloo")
    model = nn.Linear(3, 5)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 2},
    }
    engine = engine_of(model, config)
    kind = type(engine._config.zero_config)
    for name, values in ZERO.items():
        zero = kind(**{"stage": 2, **values})
        with unittest.mock.patch.object(engine._config, "zero_config", zero):
            attach(name, engine)
    for name, values in ENGINE.items():
        with unittest.mock.patch.multiple(engine, **values):
            attach(name, engine)
    for name, values in DATA_EFFICIENCY.items():
        attach(name, engine_of(nn.Linear(3, 5), {**config, "data_efficiency": values}))
    attach("float16 weights", engine_of(nn.Linear(3, 5).half(), config))
    replaced = engine_of(nn.Linear(3, 5), config)
    replaced.module.bias = nn.Parameter(torch.ones(5))
    attach("a parameter replaced", replaced)
    streams = deepspeed.checkpointing.get_cuda_rng_tracker()
    streams.add("model-parallel-rng", 5)
    attach("a random stream", engine)
    streams.reset()
    for kind in OPTIMIZERS:
        inner = kind.__new__(kind)
        torch.optim.Optimizer.__init__(inner, model.parameters(), {"amsgrad": False})
        with unittest.mock.patch.object(engine.optimizer, "optimizer", inner):
            attach(f"DeepSpeed's {kind.__name__}", engine)
    for stage in (2, 3):
        attach(f"groups in one, stage {stage}", of_adagrad(config, stage))
    derived = type("Derived", (type(engine),), {})
    own, engine.__class__ = type(engine), derived
    attach("its class Derived", engine)
    engine.__class__ = own
    with unittest.mock.patch.object(engine, "dp_world_size", 2):
        attach("2 of 1 ranks data parallel", engine)
    pipeline = PipelineModule.__new__(PipelineModule)
    nn.Module.__init__(pipeline)
    with unittest.mock.patch.object(engine, "module", pipeline):
        attach("a PipelineModule", engine)
    with unittest.mock.patch.object(deepspeed, "__version__", "0.20.1"):
        attach("a version", engine)
    attach("a model", model)
    attach("every", engine, every=0)
    attach("of torch", engine, of=unreft.torch.attach)
    ck = unreft.deepspeed.attach(engine)
    attach("twice", engine)
    attach("beside", nn.Linear(1, 1), of=unreft.torch.attach)
    ck.close()
    attach("after close", engine)


if __name__ == "__main__":
    main()
