"""What `unreft run` starts in place of a rank: has it forked, and ends as it ends.

    forked_rank.py SOCKET

The other side is ForkedRanks, which ends the rank if this process is ended.
"""

import multiprocessing.connection
import os
import sys


def main():
    with multiprocessing.connection.Client(sys.argv[1], "AF_UNIX") as ranks:
        ranks.send(dict(os.environ))
        code = ranks.recv()
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
