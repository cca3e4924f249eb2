"""`make demo` builds what it runs and nothing else: no test, no benchmark, no simulation."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")


def said(*command):
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=True).stdout


def test_the_demo_asks_for_the_programs_alone():
    builds = [line for line in said("make", "-n", "demo").splitlines() if "--build" in line]
    assert len(builds) == 1
    assert builds[0].endswith("--target programs")


def test_the_programs_need_no_tests():
    inputs = said("ninja", "-C", BIN_DIR.parent, "-t", "inputs", "programs").splitlines()
    assert {"lib/libunreft_daemon.a", "lib/libunreft_cli.a", "lib/libunreft.so"} <= set(inputs)
    extra = [path for path in inputs if path.startswith(("tests", "tools/bench", "bin/unreft_"))]
    assert extra == []
