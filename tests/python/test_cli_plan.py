"""`unreft plan`: what registered ranks would restore, from where, said before anybody does."""

import sys

from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes
from recut_trainer import SHAPE, share_of
from recut_testing import TRAINER, launch, replace, run

ITEM = 8
MATRIX_BYTES = SHAPE[0] * SHAPE[1] * ITEM


def registered(cli, cut, ranks, snapshot_when):
    """A job whose ranks have registered, and take no snapshot before that file is there."""
    job = launch(cli, ranks, "--cut", cut, "--snapshot-when", snapshot_when)

    def ready():
        assert job.process.poll() is None, job.output()
        return sum("registered" in line for line in job.lines()) == ranks

    wait_until("all ranks to register", ready, PATIENCE_S)
    return job


def bytes_of(ranks):
    return [sum(rank[key] for rank in ranks)
            for key in ("local_bytes", "peer_bytes", "decoded_bytes")]


def columns_of(rank, world):
    begin, end = share_of(SHAPE[1], rank, world)
    return (end - begin) * SHAPE[0] * ITEM


def test_of_one_node_all_is_there(cli, tmp_path):
    cli("up")
    cli("plan", code=1)
    assert "nothing is committed" in cli.stderr
    committed = run(cli, "rows", 2)[1]
    assert cli.json("plan")["ranks"] == []
    assert "no rank has registered" in cli("plan")
    job = registered(cli, "columns", 3, tmp_path / "go")
    plan = cli.json("plan")
    assert plan["version"]["step"] == committed
    assert (plan["source_world"], plan["world"]) == (2, 3)
    assert bytes_of(plan["ranks"]) == [MATRIX_BYTES, 0, 0]
    assert [rank["local_bytes"] for rank in plan["ranks"]] == [columns_of(r, 3) for r in range(3)]
    said = cli("plan", "--memory-gib-s", 0.001)
    assert "stored by 2 ranks; 3 of 3 ranks have registered" in said
    assert f"about {MATRIX_BYTES / 2**30 / 0.001:.1f} s on node 0" in said
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output()


def test_what_two_lost_nodes_had_is_decoded(cli, tmp_path):
    nodes = up_nodes(cli)
    run(nodes, "columns", NODES)
    replace(nodes, [1, 3])
    job = registered(nodes, "rows", NODES - 1, tmp_path / "go")
    plan = nodes.json("plan")
    ranks = [rank for node in plan["nodes"] for rank in node["ranks"]]
    assert sorted(rank["rank"] for rank in ranks) == list(range(NODES - 1))
    assert [rank["problem"] for rank in ranks] == [""] * (NODES - 1)
    local, peer, decoded = bytes_of(ranks)
    assert decoded == columns_of(1, NODES) + columns_of(3, NODES)
    assert local + peer + decoded == MATRIX_BYTES
    assert local > 0 and peer > 0
    before = nodes.json("versions")["versions"]
    assert nodes.json("plan")["nodes"] == plan["nodes"]
    assert nodes.json("versions")["versions"] == before
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output()


def test_who_would_be_refused_is_named(cli, tmp_path):
    """A matrix of another shape is registered, and was committed by nobody."""
    cli("up")
    run(cli, "rows", 2)
    job = cli.launch("--ranks", 1, "--max-restarts", 0, "--", sys.executable,
                     TRAINER.with_name("other_shape_trainer.py"), tmp_path / "go")

    def ready():
        assert job.process.poll() is None, job.output()
        return [line for line in job.lines() if "registered" in line]

    wait_until("the rank to register", ready, PATIENCE_S)
    said = cli("plan", code=1)
    assert "rank 0 would not restore: tensor 'matrix'" in said
    assert "rank 0: 1 of its tensors is not stored: vector" in said
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output()
