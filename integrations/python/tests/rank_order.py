"""The communication hook of the tests' DDP jobs, those of tests/cluster too."""

import torch
import torch.distributed as dist


def sum_in_rank_order(_, bucket):
    """gloo adds in an order that depends on what shares a bucket: bits would differ by attempt."""
    flat = bucket.buffer()
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    flat.copy_(sum(parts) / len(parts))
    done = torch.futures.Future()
    done.set_result(flat)
    return done
