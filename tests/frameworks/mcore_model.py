"""A small GPT under Megatron-Core, on CPUs: what the programs of these tests train."""

import logging
import os
import random

import mcore_cpu  # first
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

VOCABULARY, LENGTH = 37, 8
SAMPLES = 4  # of all ranks, in a step
SEED = 7


def begin(tp, pp, virtual=None):
    """Of the process that it is called in, one rank of several; `virtual`: stages on each."""
    mcore_cpu.install()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tp, pp, virtual, create_gloo_process_groups=False)


def padded(tp):
    """The size of the vocabulary, which that many ranks can share."""
    return -(-VOCABULARY // (4 * tp)) * 4 * tp


def seed(number):
    """As megatron.training does: ranks of a stage draw alike, but for what is tensor-parallel."""
    number += 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(number)
    torch.manual_seed(number)
    tensor_parallel.model_parallel_cuda_manual_seed(number)


def config_of(
    fp32=False, swiglu=False, dropout=0.1, layers=4, width=16, llama=False, sequence_parallel=False
):
    """`llama`: with grouped queries and the norms that models of that kind have.
    `sequence_parallel`: where there is tensor parallelism."""
    options, tp = {}, parallel_state.get_tensor_model_parallel_world_size()
    if llama:
        options = {"normalization": "RMSNorm", "num_query_groups": 2, "qk_layernorm": True}
    options = {"add_bias_linear": not swiglu, "gated_linear_unit": swiglu, **options}
    if swiglu:
        options["activation_func"] = torch.nn.functional.silu
    if not fp32:
        options |= {"bf16": True, "params_dtype": torch.bfloat16,
                    "pipeline_dtype": torch.bfloat16}
    else:
        options["pipeline_dtype"] = torch.float32
    return TransformerConfig(
        num_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        ffn_hidden_size=24,
        tensor_model_parallel_size=tp,
        sequence_parallel=sequence_parallel and tp > 1,
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        virtual_pipeline_model_parallel_size=(
            parallel_state.get_virtual_pipeline_model_parallel_world_size()
        ),
        hidden_dropout=dropout,
        attention_dropout=dropout,
        use_cpu_initialization=True,
        attention_softmax_in_fp32=True,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        **options,
    )


def model_of(config, untied=False, freeze=False, rope=False, **ddp_options):
    """The chunks of the model, one for each virtual stage, as megatron.training's get_model has
    them.

    `freeze`: its position embeddings, and the layer norms before the MLPs.
    """
    virtual = config.virtual_pipeline_model_parallel_size
    stages = [None] if virtual is None else range(virtual)
    options = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True, "bucket_size": 3000}
    ddp = DistributedDataParallelConfig(**{**options, **ddp_options})
    chunks = []
    for stage in stages:
        model = _stage_of(config, stage, untied, freeze, rope)
        wrapped = DistributedDataParallel(config, ddp, model, disable_bucketing=bool(chunks))
        wrapped.broadcast_params()
        chunks.append(wrapped)
    return chunks


def _stage_of(config, stage, untied, freeze, rope):
    tp = parallel_state.get_tensor_model_parallel_world_size()
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization
        ),
        position_embedding_type="rope" if rope else "learned_absolute",
        vocab_size=padded(tp),
        max_sequence_length=LENGTH,
        pre_process=_is_first(stage),
        post_process=_is_last(config, stage),
        share_embeddings_and_output_weights=not untied,
        vp_stage=stage,
    )
    for parameter in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    for name, parameter in model.named_parameters():
        if freeze and ("position_embeddings" in name or "pre_mlp_layernorm" in name):
            parameter.requires_grad_(False)
    return Float16Module(config, model) if config.bf16 else model


def _is_first(stage):
    return parallel_state.is_pipeline_first_stage() and not stage


def _is_last(config, stage):
    virtual = config.virtual_pipeline_model_parallel_size
    return parallel_state.is_pipeline_last_stage() and (stage is None or stage == virtual - 1)


def optimizer_of(chunks, distributed=True, **options):
    bf16 = chunks[0].config.bf16
    config = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        min_lr=1e-3,
        weight_decay=0.1,
        bf16=bf16,
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
        use_distributed_optimizer=distributed,
        clip_grad=1.0,
        **options,
    )
    optimizer = get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=1e-2,
        min_lr=1e-3,
        lr_warmup_steps=8,
        lr_decay_steps=200,
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=200,
        wd_incr_style="constant",
    )
    return optimizer, scheduler


def train_step(chunks, optimizer, scheduler, step):
    """Of all ranks; returns the loss of this rank's samples, on the last stage, and whether the
    optimizer has stepped."""
    dp, replicas = (
        parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    )
    rounds = SAMPLES // replicas
    rows = [sample(step, dp * rounds + each) for each in range(rounds)]
    iterators = [iter(rows) for _ in chunks]
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=chunks,
        num_microbatches=rounds,
        seq_length=LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )
    stepped, _, _ = optimizer.step()
    if stepped:
        scheduler.step(increment=1)
    return [round(loss["loss"].item(), 9) for loss in losses], stepped


def set_up(chunks, optimizer):
    """What the loop of megatron.training gives the configuration."""
    config = chunks[0].config
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if chunks[0].ddp_config.overlap_grad_reduce:
        of_each = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = of_each if len(chunks) > 1 else of_each[0]


def sample(step, number):
    drawn = torch.Generator().manual_seed(1000 * step + number)
    return torch.randint(VOCABULARY, (1, LENGTH + 1), generator=drawn)


def _forward(rows, model):
    row = next(rows)
    tokens, labels = row[:, :-1], row[:, 1:]
    at = torch.arange(LENGTH)[None]
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    losses = model(tokens, at, mask, labels=labels)

    def reduced(losses):
        loss = losses.float().mean()
        return loss, {"loss": loss.detach()}

    return losses, reduced
