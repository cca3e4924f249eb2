"""What is refused by name, since it was not tried: what training then has lies elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import megatron.core
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.utils import unwrap_model

from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.mcore.group_scalars import is_fused_adam
from unreft.mcore.main_parameters import KINDS, optimizers_of

TRIED = "0.19"

_INNER = (torch.optim.Adam, torch.optim.AdamW)

_WAS_TRIED = (
    "tried are a GPTModel of bf16 or fp32 weights under tensor, pipeline and data parallelism, "
    "with virtual pipeline stages and sequence_parallel or without, in DistributedDataParallel, "
    "with torch's Adam or AdamW or FusedAdam, in a DistributedOptimizer or without one; "
    "Megatron-Core's own checkpoints are there for others"
)


def check(chunks: Sequence[Any], optimizer: Any, world: int) -> None:
    """Raises `FailedPrecondition`, by name, for what would not be restored as it was."""
    found = megatron.core.__version__
    if ".".join(found.split(".")[:2]) != TRIED:
        raise FailedPrecondition(
            f"unreft.mcore was tried with megatron-core {TRIED}, whose DistributedOptimizer it "
            f"reads, and this is {found}"
        )
    if not isinstance(chunks, (list, tuple)) or not chunks:
        raise InvalidArgument(
            "model_chunks: needed the list that megatron.training's get_model returns, found a "
            f"{type(chunks).__name__}"
        )
    if not isinstance(optimizer, (*KINDS, ChainedOptimizer)):
        raise InvalidArgument(
            "optimizer: needed what get_megatron_optimizer returns, one of "
            f"{', '.join(kind.__name__ for kind in (*KINDS, ChainedOptimizer))}, found a "
            f"{type(optimizer).__name__}"
        )
    if not parallel_state.model_parallel_is_initialized():
        raise FailedPrecondition("attach() needs parallel_state.initialize_model_parallel() before")
    for name, is_so in _untried(chunks, optimizer, world).items():
        if is_so:
            raise FailedPrecondition(f"training with {name} is not supported: {_WAS_TRIED}")


def _untried(chunks: Sequence[Any], optimizer: Any, world: int) -> dict[str, Any]:
    """Each by its name in the configuration, where it has one; whether that has it."""
    wrappers = [type(chunk) for chunk in chunks if type(chunk) is not DistributedDataParallel]
    if wrappers:
        return {f"a {wrappers[0].__name__} as model chunk": True}
    models = [type(unwrap_model(chunk)) for chunk in chunks]
    others = [kind.__name__ for kind in models if not issubclass(kind, GPTModel)]
    config, ddp = chunks[0].config, chunks[0].ddp_config
    sizes = {
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
    }
    if optimizer.is_stub_optimizer:
        return {"an optimizer that steps on nothing": True}
    optimizers = optimizers_of(optimizer)
    settings = optimizers[0].config
    inner = {
        type(each.optimizer).__name__
        for each in optimizers
        if type(each.optimizer) not in _INNER and not is_fused_adam(each.optimizer)
    }
    tracker = tensor_parallel.get_cuda_rng_tracker()
    return {
        f"a {', '.join(others)}": others,
        "mixture of experts": config.num_moe_experts is not None,
        "expert parallelism": parallel_state.get_expert_model_parallel_world_size() > 1,
        "context parallelism": parallel_state.get_context_parallel_world_size() > 1,
        f"{sizes} of {world} ranks": sizes["tp"] * sizes["pp"] * sizes["dp"] != world,
        "multi-token prediction": config.mtp_num_layers,
        "tensor_parallel_num_weight_shards": config.gtp_weight_remat_size > 1,
        "qk_clip": config.qk_clip,
        "fp8": config.fp8 or ddp.fp8_param_gather,
        "fp4": config.fp4 or ddp.fp4_param_gather,
        "quant_recipe": config.quant_recipe is not None,
        "use_kitchen": config.use_kitchen,
        "use_kitchen_attention": config.use_kitchen_attention,
        "fp16": config.fp16 or any(each.config.fp16 for each in optimizers),
        "Megatron-FSDP": ddp.use_megatron_fsdp,
        "num_distributed_optimizer_instances": ddp.num_distributed_optimizer_instances > 1,
        "use_layer_wise_distributed_optimizer": settings.use_layer_wise_distributed_optimizer,
        "optimizer_cpu_offload": settings.optimizer_cpu_offload,
        "overlap_param_gather_with_optimizer_step": (
            settings.overlap_param_gather_with_optimizer_step
        ),
        "optimizer_cuda_graph": settings.optimizer_cuda_graph,
        "use_precision_aware_optimizer": settings.use_precision_aware_optimizer,
        f"the optimizers {', '.join(sorted(type(o).__name__ for o in optimizers))}": any(
            type(each) not in KINDS for each in optimizers
        ),
        f"the optimizer {', '.join(sorted(inner))}": inner,
        f"the generators of a {type(tracker).__name__}": type(tracker) is not CudaRNGStatesTracker,
        "use_cudagraphable_rng": getattr(tracker, "use_cudagraphable_rng", False),
    }
