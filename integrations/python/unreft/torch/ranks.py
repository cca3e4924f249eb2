"""What the ranks of a job tell each other through the default process group."""

import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

_TEXT_BYTES_MAX = 1024  # of one rank


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """As given, or of the default process group, or of the launcher's environment."""
    if connected():
        found = dist.get_rank(), dist.get_world_size()
    else:
        found = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    return found[0] if rank is None else rank, found[1] if world is None else world


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


def gather_texts(text: str) -> list[str]:
    """A short text of every rank, by rank; all ranks call it together."""
    data = text.encode()[:_TEXT_BYTES_MAX]
    length = max(own for (own,) in gather([len(data)]))
    rows = gather([len(data), *data.ljust(length, b"\0")])
    return [bytes(row[1 : 1 + row[0]]).decode(errors="replace") for row in rows]


def common_attempt() -> int | None:
    """A number of this attempt, the same on all ranks and no other attempt's.

    What launchers count comes again: with each job of a batch system, with each torchrun, and with
    each of torchrun's agents, one per node, which starts its ranks anew with the old number after a
    failure on another node. None: the environment's will do, or is all there is.
    """
    if os.environ.get("UNREFT_ATTEMPT") or not connected():
        return None
    # Ascending, which nothing needs, for people who read logs.
    return max(own for (own,) in gather([time.time_ns() // 1_000_000]))


def counted_by_agents() -> bool:
    """Whether several agents of torchrun count attempts, each its own."""
    agents = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    given = os.environ.get("UNREFT_ATTEMPT")
    return not given and agents > 1 and "TORCHELASTIC_RESTART_COUNT" in os.environ
