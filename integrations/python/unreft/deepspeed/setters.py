"""What DeepSpeed makes of the fp32 partitions: to be made anew after these were restored."""

from typing import Any


def renew_weights(optimizer: Any) -> None:
    """Of a ZeRO optimizer: the weights that the model computes with, and the views of fp32 state
    that parameters have. All ranks call it together."""
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        _renew_stage_1_or_2(optimizer)
    else:
        _renew_stage_3(optimizer)


def _renew_stage_1_or_2(optimizer: Any) -> None:
    optimizer._link_all_hp_params()
    # It links the optimizer's state once only, after the step of the first group, when the others
    # have none yet; with all there it is done for all.
    optimizer._hp_optimizer_states_linked = False
    state = optimizer.optimizer.state
    if all(state.get(flat) for flat in optimizer.single_partition_of_fp32_groups):
        optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.update_lp_params()


def _renew_stage_3(optimizer: Any) -> None:
    # What is gathered is of the weights from before: small parameters are so at all times.
    optimizer.checkpoint_event_prologue()
    for index in range(len(optimizer.fp16_groups)):
        optimizer._reassign_or_swap_out_partitioned_parameters(index)
    optimizer.checkpoint_event_epilogue()
