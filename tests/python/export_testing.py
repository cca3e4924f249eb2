"""What the tests of `unreft export` share: a reader that knows nothing of Unreft."""

import json
import os
import pathlib
import subprocess
import sys

READER = pathlib.Path(__file__).with_name("export_reader.py")
READER_TIMEOUT_S = 120


def read(directory, *words):
    """What the reader says, in an interpreter that cannot import unreft."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and "UNREFT" not in k}
    done = subprocess.run([sys.executable, "-s", str(READER), str(directory), *map(str, words)],
                          capture_output=True, text=True, env=environment, check=False,
                          timeout=READER_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
