"""`unreft run --dry-run` and `unreft plan --layout`: what ranks that do not run would restore."""

import json
import pathlib
import sys

import pytest
from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes
from recut_testing import TRAINER, launch, replace, run
from recut_trainer import SHAPE, share_of
from test_cli_recut import SHARDED_TRAINER, check_goes_on, run_sharded

DDP_TRAINER = SHARDED_TRAINER.with_name("trainer.py")
HERE = pathlib.Path(__file__).parent
ITEM = 8
MATRIX_BYTES = SHAPE[0] * SHAPE[1] * ITEM


def dry_run(cli, ranks, file, *command):
    """The layout that it leaves; needs no daemon."""
    job = cli.launch("--ranks", ranks, "--dry-run", file, "--", sys.executable, *command)
    assert job.process.wait(PATIENCE_S) == 0, job.output()
    return json.loads(file.read_text())


def dry_recut(cli, ranks, cut, file):
    return dry_run(cli, ranks, file, TRAINER, "--cut", cut)


def ranks_of(plan):
    return [rank for node in plan["nodes"] for rank in node["ranks"]]


def bytes_of(ranks):
    return [sum(rank[key] for rank in ranks)
            for key in ("local_bytes", "peer_bytes", "decoded_bytes")]


def columns_of(rank, world):
    begin, end = share_of(SHAPE[1], rank, world)
    return (end - begin) * SHAPE[0] * ITEM


def records_of(cli):
    """What the daemon knows and keeps of the job, but for what counts time."""
    versions = cli.json("versions")
    status = cli.status()
    return versions, status["committed"], status["ranks"], cli.segments()


def rewritten(file, change):
    """Another file, of a layout that `change` has changed."""
    layout = json.loads(file.read_text())
    change(layout)
    other = file.with_name("changed.json")
    other.write_text(json.dumps(layout))
    return other


def test_of_three_ranks_before_they_restart_on_one_node(cli, tmp_path):
    file = tmp_path / "layout.json"
    told = cli.json("run", "--ranks", 3, "--dry-run", file, "--", sys.executable, TRAINER, "--cut",
                    "columns")  # before there is a daemon
    assert told == {"job": cli.job, "file": str(file), "world": 3, "tensors": 1, "shards": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["layout.json"]
    cli("plan", "--layout", file, code=3)
    cli("up")
    cli("plan", "--layout", file, code=1)
    assert "nothing is committed" in cli.stderr
    committed = run(cli, "rows", 4)[1]
    before = records_of(cli)
    plan = cli.json("plan", "--layout", file)
    assert plan["version"]["step"] == committed
    assert (plan["source_world"], plan["world"]) == (4, 3)
    ranks = ranks_of(plan)
    assert [rank["local_bytes"] for rank in ranks] == [columns_of(r, 3) for r in range(3)]
    assert bytes_of(ranks) == [MATRIX_BYTES, 0, 0]
    said = cli("plan", "--layout", file, "--memory-gib-s", 0.001)
    assert "stored by 4 ranks; the layout has 3 ranks" in said
    assert f"about {MATRIX_BYTES / 2**30 / 0.001:.1f} s on node 0" in said
    assert records_of(cli) == before
    # And so it is.
    assert run(cli, "columns", 3, source_world=4)[0] == committed


def test_while_ranks_train(cli, tmp_path):
    cli("up")
    run(cli, "rows", 2)
    job = launch(cli, 2, "--cut", "rows", "--snapshot-when", tmp_path / "go")
    wait_until("both ranks", lambda: sum("registered" in line for line in job.lines()) == 2)
    file = tmp_path / "layout.json"
    dry_recut(cli, 5, "ranges", file)
    assert bytes_of(ranks_of(cli.json("plan", "--layout", file))) == [MATRIX_BYTES, 0, 0]
    assert len(cli.json("plan")["ranks"]) == 2
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output()


def test_of_fewer_ranks_when_two_nodes_are_lost(cli, tmp_path):
    nodes = up_nodes(cli)
    committed = run(nodes, "columns", NODES)[1]
    replace(nodes, [1, 3])
    file = tmp_path / "layout.json"
    layout = dry_recut(nodes, NODES - 1, "rows", file)
    assert [rank["node"] for rank in layout["ranks"]] == [0, 1, 2]
    before = nodes.json("versions")["versions"]
    plan = nodes.json("plan", "--layout", file)
    ranks = ranks_of(plan)
    assert [node["node"] for node in plan["nodes"]] == [0, 1, 2]
    assert [rank["problem"] for rank in ranks] == [""] * (NODES - 1)
    local, peer, decoded = bytes_of(ranks)
    assert decoded == columns_of(1, NODES) + columns_of(3, NODES)
    assert local + peer + decoded == MATRIX_BYTES
    # Nodes 0 and 2 have what they stored; node 1 has lost its own.
    assert [rank["local_bytes"] > 0 for rank in ranks] == [True, False, True]
    assert nodes.json("versions")["versions"] == before
    # Ranks that have restored it and registered are told the same.
    job = launch(nodes, NODES - 1, "--cut", "rows", "--snapshot-when", tmp_path / "go")

    def ready():
        return sum("registered" in line for line in job.lines()) == NODES - 1

    wait_until("all ranks", ready, PATIENCE_S)
    registered = nodes.json("plan")
    assert registered["nodes"][0]["version"] == plan["version"]
    assert plan["version"]["step"] == committed
    assert [rank for node in registered["nodes"] for rank in node["ranks"]] == ranks
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output()


def test_which_tensors_do_not_fit_is_said_by_name_and_number(cli, tmp_path):
    cli("up")
    run(cli, "rows", 2)
    file = tmp_path / "layout.json"
    dry_run(cli, 1, file, HERE / "many_tensors_trainer.py", "25")
    said = cli("plan", "--layout", file, code=1)
    first = ", ".join(f"tensor{index:02}" for index in range(10))
    assert f"rank 0 would not restore: 25 of its tensors are not stored: {first}, ..." in said
    assert "1 of the stored tensors is in no rank of the layout: matrix" in said
    plan = cli.json("plan", "--layout", file, code=1)
    assert plan["unwanted"] == 1 and plan["unwanted_names"] == ["matrix"]
    (rank,) = ranks_of(plan)
    assert rank["not_stored"] == 25 and len(rank["not_stored_names"]) == 10

    dry_recut(cli, 2, "rows", file)
    for change, why in [
        (lambda tensor: tensor.__setitem__(0, "renamed"), "not stored: renamed"),
        (lambda tensor: tensor.__setitem__(1, "float64"),
         "of another kind than stored: matrix (int64 [1201, 1603] was stored, found float64"),
        (lambda tensor: tensor.__setitem__(2, [2000, 1603]), "found int64 [2000, 1603])"),
    ]:
        other = rewritten(file, lambda layout, change=change: change(layout["tensors"][0]))
        assert why in cli("plan", "--layout", other, code=1)


def test_who_takes_only_as_many_ranks_is_told_so(cli, tmp_path):
    cli("up")
    run(cli, "rows", 2)
    file = tmp_path / "layout.json"
    dry_run(cli, 3, file, TRAINER, "--cut", "rows", "--same-world")
    said = cli("plan", "--layout", file, code=1)
    assert "was saved by 2 ranks, and it is one of 3" in said
    dry_run(cli, 2, file, TRAINER, "--cut", "rows", "--same-world")
    cli("plan", "--layout", file)


def test_fully_sharded_training_on_fewer_ranks(cli, tmp_path):
    """No rank has optimizer state in a dry run; what is stored of it is planned for anyway."""
    cli("up")
    before = run_sharded(cli, 4, "--die-after", 2)
    file = tmp_path / "layout.json"
    assert dry_run(cli, 3, file, SHARDED_TRAINER)["world"] == 3
    plan = cli.json("plan", "--layout", file)
    ranks = ranks_of(plan)
    assert [rank["problem"] for rank in ranks] == [""] * 3
    assert plan["unwanted"] == 0
    parameters, moments, count = (10 * 7 + 7) + (7 + 7) + (7 * 10 + 10), 2, 6
    steps = count * 3  # that of each parameter is read whole by each rank
    assert bytes_of(ranks) == [4 * (parameters * (1 + moments) + steps), 0, 0]
    check_goes_on(before, run_sharded(cli, 3, "--die-after", 4))


@pytest.mark.parametrize("target", [2, 3])
def test_replicas_with_buffers_of_their_own(cli, tmp_path, target):
    """Those of every rank that stored some are read among another number, to be compared."""
    cli("up")
    job = cli.launch("--ranks", 2, "--max-restarts", 0, "--", sys.executable, DDP_TRAINER,
                     "--die-after", 3)
    job.wait()
    file = tmp_path / "layout.json"
    layout = dry_run(cli, target, file, DDP_TRAINER, "--buffers", "first")
    assert any(name.startswith("rank*/buffer/") for name, _, _ in layout["tensors"])
    plan = cli.json("plan", "--layout", file)
    assert plan["unwanted"] == 0
    assert [rank["problem"] for rank in ranks_of(plan)] == [""] * target
    assert all(rank["not_stored"] == 0 and rank["local_bytes"] > 0 for rank in ranks_of(plan))
    job = cli.launch("--ranks", target, "--max-restarts", 0, "--", sys.executable, DDP_TRAINER,
                     "--buffers", "first")
    assert job.wait() == 0, job.output()
    assert [line["restored"] for line in job.lines() if "restored" in line] == [3] * target


def test_another_model(cli, tmp_path):
    cli("up")
    run_sharded(cli, 2, "--die-after", 2)
    file = tmp_path / "layout.json"
    dry_run(cli, 2, file, SHARDED_TRAINER, "--tensor-parallel", 1)
    said = cli("plan", "--layout", file, code=1)
    assert "2 of its tensors are not stored: model/2.weight, model/2.bias" in said
    assert "model/0.weight (float32 [7, 10] was stored, found float32 [20, 10])" in said
    assert "of the stored tensors are in no rank of the layout: model/1.bias" in said


@pytest.mark.parametrize(("change", "code", "why"), [
    (lambda x: x.update(job="another"), 2, "the layout is of job 'another', needed one of job"),
    (lambda x: x.update(world=0), 2, "world: needed 1 to 1048576 ranks, found 0"),
    (lambda x: x.update(world=4), 1, "of the world's 4 ranks 2 lack: 2, 3"),
    (lambda x: x.update(world="2"), 2, "world: needed a whole number"),
    (lambda x: x.pop("tensors"), 2, "tensors lacks"),
    (lambda x: x["ranks"].append(x["ranks"][0]), 2, "rank 0 is there twice"),
    (lambda x: x["ranks"][1].update(rank=2), 2, "rank 2: needed one below the world's 2 ranks"),
    (lambda x: x["ranks"][1].update(node=7), 2, "rank 1 on node 7, needed one below"),
    (lambda x: x["ranks"][0].update(shards=[[9]]), 2, "shards[0]: needed the number of one of 1"),
    (lambda x: x["ranks"][0].update(shards=[[0, [0, 0], [9999, 1]]]), 2, "tensor 'matrix'"),
    (lambda x: x["tensors"][0].__setitem__(1, "float99"), 2, "tensors[0]: needed a dtype"),
    (lambda x: x["unreft_layout"].update(min_reader=2), 1, "is for readers of format 2"),
    (lambda x: x.pop("unreft_layout"), 2, "it is no layout"),
])
def test_what_is_no_layout_of_the_job_is_refused_by_name(cli, tmp_path, change, code, why):
    cli("up")
    run(cli, "rows", 2)
    file = tmp_path / "layout.json"
    dry_recut(cli, 2, "rows", file)
    cli("plan", "--layout", rewritten(file, change), code=code)
    assert why in cli.stderr, cli.stderr


def test_files_that_are_broken_or_not_there(cli, tmp_path):
    file = tmp_path / "layout.json"
    dry_recut(cli, 2, "rows", file)
    whole = file.read_bytes()
    for text in (b"", b"no JSON", whole[: len(whole) // 2], b"[1, 2]", b"[" * 100000,
                 whole.replace(b"matrix", b"\xff\xfe")):
        file.write_bytes(text)
        cli("plan", "--layout", file, code=2)
        assert "it is no layout" in cli.stderr
    cli("plan", "--layout", tmp_path / "absent", code=1)
    assert "there is no such file" in cli.stderr
    cli("plan", "--layout", tmp_path, code=1)
    assert "no rank has written its layout" in cli.stderr


def test_a_dry_run_of_which_nothing_comes(cli, tmp_path):
    file = tmp_path / "layout.json"

    def fails(*command, code, ranks=2):
        cli("run", "--ranks", ranks, "--dry-run", file, "--", sys.executable, "-c", *command,
            code=code)
        assert not list(tmp_path.iterdir())
        return cli.stderr

    assert "no rank has written its layout" in fails("pass", code=1)
    assert "exited with code 7" in fails("raise SystemExit(7)", code=7)
    one = ("import os, unreft, numpy\n"
           "if os.environ['RANK'] == '1':\n"
           "    unreft.Client().register([unreft.Tensor.of_array('x', numpy.zeros(3))])\n")
    assert "of the world's 2 ranks 1 lack: 0" in fails(one, code=1)
    cli("run", "--up", "--dry-run", file, "--", sys.executable, code=2)
    assert "needs no daemon" in cli.stderr


def test_whoever_goes_on_after_its_layout_is_ended(cli, tmp_path):
    """As a program does that takes the end of a dry run for an error that may be ignored."""
    program = ("import time, unreft, numpy\n"
               "try:\n"
               "    unreft.Client().register([unreft.Tensor.of_array('x', numpy.zeros(3))])\n"
               "except BaseException:\n"
               "    time.sleep(3600)\n")
    told = dry_run(cli, 2, tmp_path / "layout.json", "-c", program)
    assert [rank["shards"] for rank in told["ranks"]] == [[[0]], [[0]]]


def test_files_of_ranks_that_another_launcher_started(cli, tmp_path, monkeypatch):
    cli("up")
    run(cli, "rows", 2)
    monkeypatch.setenv("UNREFT_DRY_RUN", str(tmp_path))
    job = launch(cli, 2, "--cut", "columns")
    assert job.wait() == 0, job.output()
    assert "has written its layout, 1 tensors" in job.output()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.json", "rank-1.json"]
    plan = cli.json("plan", "--layout", tmp_path)
    assert bytes_of(ranks_of(plan)) == [MATRIX_BYTES, 0, 0]
