"""The memory budget that a daemon prints before the first step is what its segments then take."""

import re

from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_protected

BUDGET = re.compile(
    r"memory budget: (\d+) slots of (\d+) ranks take (\d+) bytes .*, "
    r"(\d+) guards .* (\d+), if those are as large, the staging of restores (\d+), "
    r"records and control pages (\d+): (\d+) bytes together"
)
MADE = re.compile(r"memory budget: (\d+) guards take (\d+) bytes")


def printed(pattern, cli, node):
    """The numbers in the one line of the node's log that says so."""
    log = cli.run_dir / f"node{node}" / "unreftd.log"
    (found,) = wait_until("the budget", lambda: pattern.findall(log.read_text()), PATIENCE_S)
    return [int(number) for number in found]


def held(cli, node, kind):
    """Number and bytes of the node's segments of that kind."""
    segments = [s for s in cli.segments() if re.fullmatch(rf".*\.{node}\.{kind}", s.name)]
    return len(segments), sum(s.stat().st_size for s in segments)


def test_what_was_printed_is_what_is_taken(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 1)
    for node in range(NODES):
        slots, ranks, slot_bytes, guards, guard_bytes, *rest = printed(BUDGET, cli, node)
        staging, control, together = rest
        assert ranks == 1 and together == slot_bytes + guard_bytes + staging + control
        assert held(cli, node, r"slot\d+") == (slots, slot_bytes)
        # Each rank of this job captures as much as any other.
        assert held(cli, node, r"guard\d+") == (guards, guard_bytes)
        assert held(cli, node, "staging") == (1, staging)
        assert held(cli, node, r"(node|records|control\..*)") == (3, control)
        assert printed(MADE, cli, node) == [guards, guard_bytes]
        status = cli.json("status", "--node", node)
        assert status["bytes"] == together and status["guard_bytes"] == guard_bytes
        assert status["staging_bytes"] == staging
    job.interrupt()
