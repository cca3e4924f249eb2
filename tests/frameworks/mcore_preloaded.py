"""What the server that forks ranks has imported for Megatron-Core: it takes longer than cases."""

import mcore_cpu  # noqa: F401, first
import megatron.core.dist_checkpointing
import megatron.core.distributed
import megatron.core.models.gpt
import megatron.core.models.gpt.gpt_layer_specs
import megatron.core.optimizer
import megatron.core.pipeline_parallel  # noqa: F401
