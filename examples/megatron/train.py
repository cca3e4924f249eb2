"""Trains a small GPT under Megatron-Core, and goes on where it was killed.

    unreft run --up --ranks 4 -- python train.py [--tp 2] [--pp 1] [--steps 24]

Kill a rank at any moment: it ends with the losses of a run that nobody has touched. Started again
with other sizes of parallelism, or another number of ranks, it goes on with the sample that comes
next. Prints the loss of each step. Needs a GPU for each rank, as Megatron-Core does.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

import unreft.mcore

BATCH, LENGTH, WORDS = 8, 16, 64  # samples of a step on all ranks, tokens, vocabulary

parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--pp", type=int, default=1)
parser.add_argument("--steps", type=int, default=24)
args = parser.parse_args()
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
mpu.initialize_model_parallel(args.tp, args.pp, create_gloo_process_groups=False)
torch.manual_seed(1)
tensor_parallel.model_parallel_cuda_manual_seed(1 + 100 * mpu.get_pipeline_model_parallel_rank())
bf16 = {"bf16": True, "params_dtype": torch.bfloat16}
config = TransformerConfig(
    num_layers=4, hidden_size=32, num_attention_heads=4, pipeline_dtype=torch.bfloat16,
    tensor_model_parallel_size=args.tp, pipeline_model_parallel_size=args.pp,
    use_cpu_initialization=True, gradient_accumulation_fusion=False, **bf16,
)
model = GPTModel(
    config, get_gpt_layer_local_spec(), WORDS, LENGTH, share_embeddings_and_output_weights=True,
    pre_process=mpu.is_pipeline_first_stage(), post_process=mpu.is_pipeline_last_stage(),
).cuda()
for parameter in model.parameters():
    tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
chunks = [DistributedDataParallel(config, ddp, Float16Module(config, model))]
chunks[0].broadcast_params()
optimizer = get_megatron_optimizer(
    OptimizerConfig(lr=3e-3, min_lr=3e-4, use_distributed_optimizer=True, **bf16), chunks,
    use_gloo_process_groups=False,
)
scheduler = OptimizerParamScheduler(
    optimizer, 0.0, 3e-3, 3e-4, 8 * BATCH, 1000 * BATCH, "cosine", 0.01, 0.01, 0, "constant"
)
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss

consumed = 0
ck = unreft.mcore.attach(
    chunks, optimizer, opt_param_scheduler=scheduler, extras={"consumed": lambda: consumed}
)
iteration = ck.restore() or 0
consumed = ck.extras.get("consumed", 0)


def forward(rows, chunk):
    row, at = next(rows), torch.arange(LENGTH, device="cuda")[None]
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
    return chunk(row[:, :-1], at, mask, labels=row[:, 1:]), lambda losses: (
        losses.float().mean(), losses.detach().float().mean())


while iteration < args.steps:
    rounds = BATCH // mpu.get_data_parallel_world_size()
    first = consumed + mpu.get_data_parallel_rank() * rounds
    # Each row counts up from another number.
    rows = ((first + torch.arange(rounds)[:, None] + torch.arange(LENGTH + 1)) % WORDS).cuda()
    chunks[0].zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward, data_iterator=iter(rows.split(1)), model=chunks,
        num_microbatches=rounds, seq_length=LENGTH, micro_batch_size=1, forward_only=False,
    )
    optimizer.step()
    scheduler.step(increment=BATCH)
    iteration, consumed = iteration + 1, consumed + BATCH
    loss = torch.tensor([float(sum(losses)) if losses else 0.0]).cuda()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        loss = loss.item() / BATCH / args.tp  # whose ranks have the same
        print(json.dumps({"step": iteration, "loss": loss}), flush=True)
    ck.snapshot(iteration)
ck.close()
dist.destroy_process_group()
