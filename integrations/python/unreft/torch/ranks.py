"""What the ranks of a job tell each other through the default process group."""

import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist


def connected() -> bool:
    return dist.is_available() and dist.is_initialized()


def gather(values: Sequence[int]) -> list[list[int]]:
    """The values of every rank, by rank; all ranks call it together."""
    if not connected():
        return [list(values)]
    device = "cpu"
    if not any(backend in dist.get_backend_config() for backend in ("gloo", "mpi", "cpu:")):
        device = torch.device("cuda", torch.cuda.current_device())
    own = torch.tensor(values, dtype=torch.int64, device=device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [found.tolist() for found in gathered]


def common_attempt() -> int | None:
    """A number of this attempt that is the same on all ranks, where no launcher gives one.

    Each of torchrun's agents, one per node, counts its own restarts: after a failure on one node
    the others start their ranks anew with the old number. None: the environment's will do.
    """
    agents = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    if os.environ.get("UNREFT_ATTEMPT") or agents == 1 or not connected():
        return None
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ:
        return None
    # Later attempts have larger numbers, also after an agent was replaced and counts from 0.
    return max(own for (own,) in gather([time.time_ns() // 1_000_000]))
