"""What the tests share that cut one matrix in many ways (recut_trainer.py)."""

import pathlib
import sys

from cluster_testing import wait_status

TRAINER = pathlib.Path(__file__).parent / "recut_trainer.py"


def launch(cli, ranks, *args, words=(), restarts=0):
    """`words` are more options of `unreft run`."""
    return cli.launch("--ranks", ranks, "--max-restarts", restarts, *words, "--", sys.executable,
                      TRAINER, *args)


def run(cli, cut, ranks, source_world=None):
    """The step that all ranks restored, and the one that they committed. `source_world`: how many
    ranks have saved what there is, if it is not as many."""
    return result_of(launch(cli, ranks, "--cut", cut), ranks, source_world)


def result_of(job, ranks, source_world=None):
    assert job.wait() == 0, job.output()
    lines = [line for line in job.lines() if "committed" in line]
    assert sorted(line["rank"] for line in lines) == list(range(ranks))
    (restored,) = {line["restored"] for line in lines}
    (committed,) = {line["committed"] for line in lines}
    if restored is not False:
        assert {line["source_world"] for line in lines} == {source_world or ranks}
    return restored, committed


def lose(nodes, lost):
    """Nodes go with their memory, once their loss can be borne."""
    wait_status(nodes, "protection", lambda s: [group["stands"] for group in s["groups"]] == [2])
    for node in lost:
        nodes.json("inject", "kill-node", "--node", node)


def bring_up(nodes, new):
    for node in new:
        nodes.json("up", "--node", node)
    wait_status(nodes, "the new nodes", lambda s: not any(
        s["members"][node]["lost"] or not s["members"][node]["present"] for node in new))


def replace(nodes, lost):
    lose(nodes, lost)
    bring_up(nodes, lost)
