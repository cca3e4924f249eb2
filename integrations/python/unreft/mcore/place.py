"""Where a rank is among those of Megatron-Core: by pipeline stage, data and tensor parallelism."""

from megatron.core import parallel_state

from unreft.torch.mesh_place import Place


def place_of() -> Place:
    """This rank's, in a mesh of pp x dp x tp."""
    return Place(
        ("pp", "dp", "tp"),
        (
            parallel_state.get_pipeline_model_parallel_world_size(),
            parallel_state.get_data_parallel_world_size(),
            parallel_state.get_tensor_model_parallel_world_size(),
        ),
        (
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_data_parallel_rank(),
            parallel_state.get_tensor_model_parallel_rank(),
        ),
    )
