"""What trainer programs of tests say: JSON lines on stdout, which ranks may share."""

import json
import sys


def say(**record):
    # One write: unbuffered, print writes the newline apart, and another rank's line comes between.
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
