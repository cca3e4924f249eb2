"""What protection costs before and after a change: CPU seconds of the daemons per GB moved.

    protect_against.py --before BIN_DIR --after BIN_DIR [--rounds 5]

Runs integrations/python/bench/protect.py with the programs of two builds in turns, as RS(2,2) and
RS(3,1), and prints the medians of each and their ratio. Needs the Python package of one of them.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = ((2, 2), (3, 1))


def measure(bin_dir, k, m):
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, ROOT / "integrations/python/bench/protect.py", "--out", out]
        command += ["--rounds", 1, "--data-chunks", k, "--parity-chunks", m]
        env = os.environ | {"UNREFT_BIN_DIR": str(bin_dir.resolve())}
        subprocess.run([str(part) for part in command], env=env, check=True, capture_output=True)
        rows = json.loads((pathlib.Path(out) / "protect.json").read_text())
    return next(row["value"] for row in rows if row["name"] == "protect_cpu_unix")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    builds = {"before": args.before, "after": args.after}
    values = {(shape, build): [] for shape in SHAPES for build in builds}
    for _ in range(args.rounds):
        for shape in SHAPES:
            for build, bin_dir in builds.items():
                values[shape, build].append(measure(bin_dir, *shape))
    for k, m in SHAPES:
        medians = {build: statistics.median(values[(k, m), build]) for build in builds}
        spread = {b: f"{min(v):.2f} to {max(v):.2f}" for (s, b), v in values.items() if s == (k, m)}
        print(
            f"RS({k},{m}), CPU s per GB moved: before {medians['before']:.3f}"
            f" ({spread['before']}), after {medians['after']:.3f} ({spread['after']}),"
            f" ratio {medians['after'] / medians['before']:.2f}"
        )


if __name__ == "__main__":
    main()
