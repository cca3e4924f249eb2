"""A plain loop whose data come from torchdata's StatefulDataLoader, which is an extra.

    unreft run --up -- python stateful_loader.py [--steps 24] [--workers 2]

Killed at any moment it goes on with the sample that comes next. Prints the samples of each step and
their loss, and at the end a digest of the weights.
"""

import argparse
import hashlib
import json

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import unreft.torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 20  # five batches

    def __getitem__(self, index):
        return index, torch.full((4,), float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    loader = StatefulDataLoader(Numbers(), 4, shuffle=True, num_workers=args.workers)

    ck = unreft.torch.attach(model, optimizer, extras={"loader": loader})
    step = ck.restore() or 0
    while step < args.steps:
        for numbers, x in loader:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            said = {"step": step, "samples": numbers.tolist(), "loss": loss.item()}
            print(json.dumps(said), flush=True)
            ck.snapshot(step)
            if step == args.steps:
                break
    ck.close()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(json.dumps({"weights": hashlib.sha256(weights).hexdigest()}), flush=True)


if __name__ == "__main__":
    main()
