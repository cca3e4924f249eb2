"""What the daemon's log says of its start and of the trainers that come and go."""

import os
import re
import signal

from cli_testing import wait_until
from cluster_testing import up_nodes


def lines_of(path, who):
    """Its lines, each of which says whose it is."""
    lines = [line for line in path.read_text().splitlines() if line]
    assert lines and all(f" {who}: " in line for line in lines), lines
    return lines


def test_trainers_come_and_go(cli):
    cli("up")
    job = cli.train()
    cli.wait_committed(job, 1)
    pids = job.pids()
    os.kill(pids[1], signal.SIGKILL)
    log, who = cli.run_dir / "unreftd.log", f"job {cli.job}, node 0"
    wait_until("the log of the loss",
               lambda: f"rank 1 (pid {pids[1]}) is gone: its process has ended" in log.read_text())
    job.interrupt()
    text = "\n".join(lines_of(log, who))
    for rank, pid in enumerate(pids):
        assert re.search(rf"rank {rank} of 2 \(pid {pid}\) is connected, attempt 0", text)


def test_the_first_lines_say_how_it_was_started(cli):
    cli("up", "--", "--slots-per-rank", 4, "--memory-bytes-max", "64MiB")
    first = lines_of(cli.run_dir / "unreftd.log", f"job {cli.job}, node 0")[0]
    for part in ("no other node", "4 slots per rank", "0 pins", "bytes free in /dev/shm",
                 "at most 67108864 bytes"):
        assert part in first, first


def test_the_first_lines_of_several_nodes(cli):
    up_nodes(cli, up_words=("--spares", 1))
    for node in (0, 3, 4):
        kind = "spare" if node == 4 else "node"
        path = cli.run_dir / f"node{node}" / "unreftd.log"
        first = lines_of(path, f"job {cli.job}, {kind} {node}")[0]
        assert "4 nodes, groups of 2 + 2" in first
        assert "a socket file to peers, a socket file to the meta store" in first
