"""One of two ranks, of which some have no daemon. Prints what attach and restore said, as JSON.

    agreeing_trainer.py --without RANK [RANK ...] [--not-required]
"""

import argparse
import logging
import os

import torch
import torch.distributed as dist
from saying import say
from torch import nn

import unreft
import unreft.torch


class Lines(logging.Handler):
    def emit(self, record):
        say(line=record.getMessage())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", type=int, nargs="*", default=[])
    parser.add_argument("--not-required", action="store_true")
    parser.add_argument("--bad-model", type=int, default=-1, help="a rank whose model is refused")
    args = parser.parse_args()
    logging.getLogger("unreft").addHandler(Lines(logging.WARNING))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank in args.without:
        os.environ["UNREFT_SOCKET"] = f"/nonexistent/{rank}.sock"
    torch.manual_seed(1)
    model = nn.Linear(4, 4, device="meta" if rank == args.bad_model else "cpu")
    try:
        ck = unreft.torch.attach(model, required=not args.not_required, connect_timeout_s=2)
        step = ck.restore() or 0
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
        dist.destroy_process_group()
        return
    say(restored=step)
    committed = False
    for step in range(step + 1, step + 50):
        with torch.no_grad(), ck.fence():
            model.weight.add_(1)
        committed = ck.snapshot(step) and ck.wait(step, 20)
        if committed:
            break
    say(committed=committed, protecting=ck.status.protecting)
    dist.barrier()
    ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
