"""What is refused by name, since it was not tried: what ZeRO then has lies elsewhere."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from deepspeed import DeepSpeedEngine, checkpointing
from deepspeed.ops.adam import FusedAdam
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from unreft.errors import FailedPrecondition, InvalidArgument

TRIED = "0.19"

_OPTIMIZERS = (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)
_WAS_TRIED = (
    "tried are ZeRO stages 1, 2 and 3 of bf16 and fp32 weights over all ranks, with an optimizer "
    "of torch, such as torch.optim.AdamW; engine.save_checkpoint() is there for others"
)


def check(engine: DeepSpeedEngine, world: int) -> None:
    """Raises `FailedPrecondition`, by name, for an engine that would not be restored as it was."""
    if ".".join(deepspeed.__version__.split(".")[:2]) != TRIED:
        raise FailedPrecondition(
            f"unreft.deepspeed was tried with deepspeed {TRIED}, whose ZeRO it reads, and this is "
            f"{deepspeed.__version__}"
        )
    if not isinstance(engine, DeepSpeedEngine):
        raise InvalidArgument(
            f"engine: needed what deepspeed.initialize() returns first, found a "
            f"{type(engine).__name__}"
        )
    for name, is_so in _untried(engine, world).items():
        if is_so:
            raise FailedPrecondition(f"an engine with {name} is not supported: {_WAS_TRIED}")
    check_streams()


def check_streams() -> None:
    """Raises `FailedPrecondition`, by name, if DeepSpeed has random streams of its own."""
    if names := ", ".join(map(repr, checkpointing.get_cuda_rng_tracker().states_)):
        raise FailedPrecondition(
            "deepspeed.checkpointing.get_cuda_rng_tracker(): needed no random streams, which are "
            f"not captured, found {names}; a resumed run would draw other numbers from them"
        )


def _untried(engine: DeepSpeedEngine, world: int) -> dict[str, Any]:
    """Each by its name in the configuration, where it has one; whether the engine has it."""
    config, zero, kind = engine._config, engine._config.zero_config, type(engine.optimizer)
    inner = getattr(engine.optimizer, "optimizer", None)
    offloaded = {
        name: OffloadDeviceEnum(offload.device).value
        for name in ("offload_optimizer", "offload_param")
        if (offload := getattr(zero, name)) is not None and offload.device != OffloadDeviceEnum.none
    }
    return {
        f"its class {type(engine).__name__}": type(engine) is not DeepSpeedEngine,
        "a PipelineModule": isinstance(engine.module, PipelineModule),
        "mixture of experts": engine.has_moe_layers,
        "fp16": engine.fp16_enabled(),
        # DeepSpeed takes a model of them as it is, also where the configuration says nothing.
        "float16 weights": getattr(engine.optimizer, "dtype", None) is torch.float16,
        "torch_autocast": engine.torch_autocast_enabled(),
        f"{', '.join(f'{n} to {d}' for n, d in offloaded.items())}": offloaded,
        "zenflow": zero.zenflow is not None,
        f"ZeRO stage {int(zero.stage)}": int(zero.stage) not in (1, 2, 3),
        "zero_hpz_partition_size": zero.zero_hpz_partition_size > 1,
        "zero_quantized_weights": zero.zero_quantized_weights,
        "zero_quantized_nontrainable_weights": zero.zero_quantized_nontrainable_weights,
        "zero_quantized_gradients": zero.zero_quantized_gradients,
        "round_robin_gradients": zero.round_robin_gradients,
        "parameter_alignment": zero.parameter_alignment,
        "autotp_size": engine.autotp_size() > 1,
        "an mpu": engine.mpu is not None,
        "base_weight_sharding": engine.optimized_linear_base_weight_sharding,
        f"{engine.dp_world_size} of {world} ranks data parallel": engine.dp_world_size != world,
        "managed_gradient_accumulation false": not engine.managed_gradient_accumulation(),
        "bf16_master_weights_and_grads": engine.bf16_master_weights_and_gradients(),
        "bf16_optimizer_states": engine.bf16_optimizer_states(),
        # DeepSpeed acts on the latter two, also where it says that the first is not enabled.
        "data_efficiency": engine.data_efficiency_enabled(),
        "curriculum_learning": engine.curriculum_learning_enabled(),
        "random_ltd": engine.random_ltd_enabled(),
        "deepcompile": engine.is_deepcompile_enabled(),
        f"the optimizer {kind.__name__}": kind not in _OPTIMIZERS,
        f"DeepSpeed's {type(inner).__name__}": _keeps_more(inner),
    }


def _keeps_more(inner: torch.optim.Optimizer | None) -> bool:
    """Whether it is one of DeepSpeed's own, which may keep what its state does not say: on CPUs its
    Adams have running products of the betas, and Muon has state of other tensors. On a GPU its
    FusedAdam has all in its state."""
    if type(inner) is FusedAdam:
        steps_on = (p for group in inner.param_groups for p in group["params"])
        return any(parameter.device.type == "cpu" for parameter in steps_on)
    return any(kind.__module__.partition(".")[0] == "deepspeed" for kind in type(inner).__mro__)
