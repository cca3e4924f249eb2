"""One rank for the tests of the CLI: snapshots a NumPy array every step, without PyTorch.

Prints a JSON line when it has restored and at each committed step; trains until it is killed, or up
to --steps or --commits. A step is committed only if all ranks captured it, and each of them waits
for that: all ranks count the same commits, and none is under way when a job has ended. Refused for
want of memory it says so, and trains on.
"""

import argparse
import contextlib
import json
import os
import time

import numpy as np

import unreft


def say(**record):
    # One write: print writes the newline apart, and another rank's line may come between.
    os.write(1, (json.dumps({"rank": int(os.environ["RANK"]), **record}) + "\n").encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=3 << 20)
    parser.add_argument("--begin", help="trains as soon as that file is there")
    args = parser.parse_args()

    rank = os.environ["RANK"]
    # Of no other rank, place or step.
    first = (int(rank) + 1) * 2.0**32 + np.arange(args.bytes // 8)
    weights = np.zeros_like(first)
    tensors = [unreft.Tensor.of_array(f"weights{rank}", weights)]
    with unreft.Client() as client:
        decision = client.restore_begin()
        if decision.restored:
            client.restore_read(tensors)
            assert (weights == first + decision.step * 2.0**24).all()
        client.restore_end()
        step = decision.step if decision.restored else 0
        say(restored=step, attempt=int(os.environ["UNREFT_ATTEMPT"]))
        try:
            client.register(tensors, extras_bytes=64)
            if args.begin:
                say(registered=True)
        except unreft.errors.ResourceExhausted as error:
            say(registered=False, why=str(error))  # and trains on unprotected
        while args.begin and not os.path.exists(args.begin):
            time.sleep(0.01)
        commits = 0
        while step < args.steps and commits < args.commits:
            client.fence()
            step += 1
            np.add(first, step * 2.0**24, out=weights)
            if client.snapshot(step, b"extras of a rank"):
                # Another rank may have skipped the step, and a job goes on without a snapshot.
                with contextlib.suppress(unreft.Error):
                    client.wait_committed(step, 3600)
                    say(committed=step)
                    commits += 1
            time.sleep(0.01)


if __name__ == "__main__":
    main()
