"""One rank that trains with torchdata's StatefulDataLoader: writes JSON lines to stdout.

    loader_trainer.py --workers N --die-after STEP

It is killed when that step or a later one is committed. It says which samples each step has
trained, and the weights at the end.
"""

import argparse
import os
import signal

import torch
from saying import say
from torchdata.stateful_dataloader import StatefulDataLoader

import unreft.torch

STEPS = 13


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 20  # five batches: an epoch ends between

    def __getitem__(self, index):
        return index, torch.full((4,), float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--die-after", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = StatefulDataLoader(Data(), batch_size=4, shuffle=True, num_workers=args.workers)
    ck = unreft.torch.attach(model, optimizer, extras={"loader": loader})
    step = ck.restore() or 0
    say(restored=step)
    while step < STEPS:
        for numbers, x in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            say(step=step, numbers=numbers.tolist())
            ck.snapshot(step)
            # One may be skipped, while the daemon frees memory.
            if args.die_after and step >= args.die_after and ck.wait(step, 20):
                os.kill(os.getpid(), signal.SIGKILL)
            if step == STEPS:
                break
    say(final=[parameter.tolist() for parameter in model.parameters()])
    ck.close()


if __name__ == "__main__":
    main()
