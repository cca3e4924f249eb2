"""Attaches one model in ways that are refused: writes JSON lines of what each is told.

    mcore_refusals.py
"""

import contextlib
import unittest.mock

import mcore_fused
import mcore_model
import megatron.core
import torch
from megatron.core import parallel_state, rerun_state_machine, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.optimizer import DistributedOptimizer
from megatron.core.quantization.quant_config import RecipeConfig
from megatron.core.rerun_state_machine import RerunState
from saying import say
from torch import nn

import unreft
import unreft.mcore
import unreft.torch
from unreft.mcore.group_scalars import scalars_of
from unreft.mcore.model_state import ModelState
from unreft.mcore.place import place_of

# Instead of building each, since some need a GPU or other packages: by name, what there is then.
CONFIG = {
    "mixture of experts": {"num_moe_experts": 2},
    "multi-token prediction": {"mtp_num_layers": 1},
    "fp8": {"fp8": "hybrid"},
    "fp4": {"fp4": "e2m1"},
    "quant_recipe": {"quant_recipe": RecipeConfig([], {})},
    "use_kitchen": {"use_kitchen": True},
    "use_kitchen_attention": {"use_kitchen_attention": True},
    "fp16": {"fp16": True},
    "tensor_parallel_num_weight_shards": {"gtp_weight_remat_size": 2},
    "qk_clip": {"qk_clip": True},
}
DDP = {
    "Megatron-FSDP": {"use_megatron_fsdp": True},
    "num_distributed_optimizer_instances": {"num_distributed_optimizer_instances": 2},
}
OPTIMIZER = [
    "use_layer_wise_distributed_optimizer",
    "optimizer_cpu_offload",
    "optimizer_cuda_graph",
    "overlap_param_gather_with_optimizer_step",
    "use_precision_aware_optimizer",
]
SIZES = {
    "expert parallelism": {"get_expert_model_parallel_world_size": lambda: 2},
    "context parallelism": {"get_context_parallel_world_size": lambda: 2},
    "{'tp': 1, 'pp': 1, 'dp': 2} of 1 ranks": {"get_data_parallel_world_size": lambda: 2},
}


class Other(DistributedOptimizer):
    pass


def attach(name, *args, of=unreft.mcore.attach, **options):
    try:
        of(*args, **options)
    except unreft.Error as error:
        say(name=name, error=type(error).__name__, message=str(error))
    else:
        say(name=name, error=None, message="")


def patched(target, **values):
    return unittest.mock.patch.multiple(target, **values)


def main():
    mcore_model.begin(1, 1)
    mcore_model.seed(mcore_model.SEED)
    chunks = mcore_model.model_of(mcore_model.config_of())
    optimizer, scheduler = mcore_model.optimizer_of(chunks)
    (chunk,), (distributed,) = chunks, optimizer.chained_optimizers
    model = chunk.module.module
    cases = [
        *((name, chunk.config, values) for name, values in CONFIG.items()),
        *((name, chunk.ddp_config, values) for name, values in DDP.items()),
        *((name, distributed.config, {name: True}) for name in OPTIMIZER),
        *((name, parallel_state, values) for name, values in SIZES.items()),
        ("a Linear", chunk.module, {"module": nn.Linear(1, 1)}),
        ("the optimizer SGD", distributed, {"optimizer": torch.optim.SGD(model.parameters())}),
        ("an optimizer that steps on nothing", optimizer, {"is_stub_optimizer": True}),
        ("a version", megatron.core, {"__version__": "0.20.1"}),
        ("use_cudagraphable_rng", tensor_parallel.get_cuda_rng_tracker(),
         {"use_cudagraphable_rng": True}),
    ]
    for name, target, values in cases:
        with patched(target, **values):
            attach(name, chunks, optimizer)
    with patched(distributed.config, fp16=True):
        attach("fp16 of the optimizer", chunks, optimizer)
    weight = next(model.parameters())
    weight.requires_grad_(False)
    attach("frozen", chunks, optimizer)
    weight.requires_grad_(True)
    distributed.__class__ = Other
    attach("the optimizers Other", chunks, optimizer)
    distributed.__class__ = DistributedOptimizer
    attach("a GPTModel as model chunk", [model], optimizer)
    attach("a model", chunk, optimizer)
    attach("an optimizer", chunks, torch.optim.AdamW(model.parameters()))
    with without(distributed, "shard_fp32_groups"):
        attach("other insides", chunks, optimizer)
    with patched(chunk.config, params_dtype=torch.float32):  # as where it is not given
        (scalars,) = ModelState(chunks, optimizer, 0, 1, place_of()).optimizer_scalars(known=True)
        types = {group["unreft/weights"] for group in scalars["groups"]}
        say(name="weights cast by Float16Module", error=None, message=" ".join(types))
    with patched(distributed, shard_fp32_from_float16_groups=halves_of(distributed)):
        attach("bf16 main parameters", chunks, optimizer)
    model.register_buffer("mean", torch.zeros(3))
    attach("a buffer", chunks, optimizer)
    del model.mean
    own = model.sharded_state_dict
    state = ShardedObject("decoder._extra_state", {"scale": 1}, (1,), (0,))
    with patched(model, sharded_state_dict=lambda **words: {**own(**words), "": state}):
        attach("an extra state", chunks, optimizer)
    attach("of torch", chunk, optimizer, of=unreft.torch.attach)
    ck = unreft.mcore.attach(chunks, optimizer, opt_param_scheduler=scheduler)
    attach("twice", chunks, optimizer)
    attach("beside", nn.Linear(1, 1), of=unreft.torch.attach)
    ck.restore()
    rerun_state_machine.initialize_rerun_state_machine()
    machine = rerun_state_machine.get_rerun_state_machine()
    machine.state = RerunState.RERUNNING_IN_PLACE
    assert not ck.snapshot(1)
    say(name="rerun", error="FailedPrecondition", message=ck.status.last_problem)
    machine.state = RerunState.NOT_RUNNING_YET
    assert ck.snapshot(2), ck.status.last_problem
    ck.close()
    attach("after close", chunks, optimizer)
    attach("counts", of=fused_of_two_counts().check_shared)


def fused_of_two_counts():
    groups = [{"params": [torch.zeros(2)], "step": step} for step in (3, 4)]
    options = {"lr": 0.1, "weight_decay": 0.0, "betas": (0.9, 0.99), "eps": 1e-8}
    optimizer = mcore_fused.FusedAdam(groups, **options, capturable=False, adam_w_mode=True)
    return scalars_of(optimizer, [], "bfloat16")


def halves_of(optimizer):
    return [[p.bfloat16() for p in group] for group in optimizer.shard_fp32_from_float16_groups]


@contextlib.contextmanager
def without(target, name):
    kept = vars(target).pop(name)
    yield
    vars(target)[name] = kept


if __name__ == "__main__":
    main()
