"""One rank for the tests of the CLI: snapshots a NumPy array every step, without PyTorch.

Prints a JSON line when it has restored and at each committed step; trains until it is killed, or up
to --steps or --commits. A step is committed only if all ranks captured it, and each of them waits
for that: all ranks count the same commits, and none is under way when a job has ended. With
--free-running nothing synchronises the ranks: each trains on at its own pace, and says what was
committed when it sees it. Refused for want of memory it says so, and trains on.
"""

import argparse
import contextlib
import json
import os
import random
import time

import numpy as np

import unreft

BEGIN_TIMEOUT_S = 120  # of a test that is gone by then


def say(**record):
    # One write: print writes the newline apart, and another rank's line may come between.
    os.write(1, (json.dumps({"rank": int(os.environ["RANK"]), **record}) + "\n").encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=3 << 20)
    parser.add_argument("--begin", help="trains as soon as that file is there")
    parser.add_argument("--free-running", action="store_true")
    parser.add_argument("--at-or-before", help="a file: the newest step to restore")
    args = parser.parse_args()

    rank = os.environ["RANK"]
    # Of no other rank, place or step.
    first = (int(rank) + 1) * 2.0**32 + np.arange(args.bytes // 8)
    weights = np.zeros_like(first)
    tensors = [unreft.Tensor.of_array(f"weights{rank}", weights)]
    with unreft.Client() as client:
        decision = client.restore_begin(newest_step(args.at_or_before))
        if decision.restored:
            client.restore_read(tensors)
            assert (weights == first + decision.step * 2.0**24).all()
        client.restore_end()
        step = decision.step if decision.restored else 0
        where = {"durable_copy": decision.durable_copy} if decision.durable_copy else {}
        say(restored=step, attempt=int(os.environ["UNREFT_ATTEMPT"]), **where)
        try:
            client.register(tensors, extras_bytes=64)
            if args.begin:
                say(registered=True)
        except unreft.errors.ResourceExhausted as error:
            say(registered=False, why=str(error))  # and trains on unprotected
        deadline = time.monotonic() + BEGIN_TIMEOUT_S
        while args.begin and not os.path.exists(args.begin):
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {BEGIN_TIMEOUT_S} s for {args.begin}")
            time.sleep(0.01)
        train = run_freely if args.free_running else run_in_step
        train(client, args, step, lambda at: np.add(first, at * 2.0**24, out=weights))


def newest_step(path):
    if path is None or not os.path.exists(path):
        return None
    with open(path) as file:
        return int(file.read())


def run_in_step(client, args, step, update):
    commits = 0
    while step < args.steps and commits < args.commits:
        client.fence()
        step += 1
        update(step)
        if client.snapshot(step, b"extras of a rank"):
            # Another rank may have skipped the step, and a job goes on without a snapshot.
            with contextlib.suppress(unreft.Error):
                client.wait_committed(step, 3600)
                say(committed=step)
                commits += 1
        time.sleep(0.01)


def run_freely(client, args, step, update):
    """Steps of no two ranks take equally long; over many all are as fast."""
    said = step
    while step < args.steps:
        client.fence()
        step += 1
        update(step)
        client.snapshot(step, b"extras of a rank")
        committed = client.status().last_committed_step or 0
        if committed > said:
            say(committed=committed)
            said = committed
        time.sleep(random.uniform(0, 0.02))


if __name__ == "__main__":
    main()
