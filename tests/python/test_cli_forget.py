"""`unreft forget`: the records of a job that has ended go, those of one that has not stay."""

from cluster_testing import up_nodes, wait_status


def test_a_job_that_has_not_ended_keeps_its_records(cli):
    up_nodes(cli)
    view = wait_status(cli, "all nodes", lambda s: all(m["present"] for m in s["members"]))["view"]
    store = ["--", "--meta-endpoints", cli.up["meta"]["address"]]
    cli("forget", *store, code=1)
    assert f"job {cli.job} has not ended: leader, node/0, node/1" in cli.stderr
    assert cli.json("status")["view"] == view
    removed = cli.json("forget", "--force", *store)["removed"]
    assert {"leader", "node/0", "node/3", "store", "view"} <= set(removed)


def test_another_job_has_nothing_there(cli):
    up_nodes(cli)
    store = ["--", "--job", "nobodys", "--meta-endpoints", cli.up["meta"]["address"]]
    assert "has no record" in cli("forget", *store)


def test_it_has_to_know_the_store(cli):
    cli("forget", code=1)
    assert "role forget: needed meta_endpoints" in cli.stderr
