"""A daemon that is not started like its job is refused before it touches its memory, in words."""

import contextlib
import os
import pathlib
import shutil
import subprocess

import pytest

from cli_testing import BIN_DIR, wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_protected

LAST = NODES - 1


@pytest.fixture
def trained(cli):
    """Four nodes of 2 + 2 with a committed version, the last of them away with its memory."""
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 3)
    job.interrupt()
    cli("down", "--node", LAST, "--keep-memory")
    return cli


def segments_of(cli, node):
    """With their sizes and when they were made."""
    return {segment.name: (segment.stat().st_size, segment.stat().st_ino)
            for segment in cli.segments() if segment.name.startswith(f"unreft.{cli.job}.{node}.")}


def start(cli, *words, node=LAST, store=True, run_dir=None, **variables):
    """A daemon that is refused ends by itself."""
    endpoints = [f"--meta-endpoints=unix://{cli.run_dir}/meta/meta.sock"] if store else []
    return subprocess.run([BIN_DIR / "unreftd", "--job", cli.job, "--node", str(node), "--run-dir",
                           cli.run_dir / (run_dir or f"node{node}"), *endpoints, *map(str, words)],
                          capture_output=True, text=True, timeout=PATIENCE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, **variables})


def comes_back(cli):
    """With what it held, which counts."""
    held = {name: of for name, of in segments_of(cli, LAST).items() if "staging" not in name}
    assert any("guard" in name for name in held)
    cli("up")
    job = train(cli)
    wait_protected(cli, job, cli.committed() + 3)
    job.interrupt()
    assert held.items() <= segments_of(cli, LAST).items()


def test_k_and_m_that_were_forgotten(trained):
    """It dropped its guards, or nothing was committed any more, and nobody said a word."""
    held = segments_of(trained, LAST)
    done = start(trained, "--nodes", NODES)
    assert done.returncode == 1, done.stderr
    assert "data_chunks is 1 here (the default), 2 in the job" in done.stderr
    assert "parity_chunks is 0 here (the default), 2 in the job" in done.stderr
    assert "as that of node " in done.stderr and "peers.sock" in done.stderr
    assert "Start it with --data-chunks 2 --parity-chunks 2." in done.stderr
    assert segments_of(trained, LAST) == held
    log = trained.run_dir / "node1" / "unreftd.log"
    wait_until("the others' word", lambda: "was refused: node 3 of job" in log.read_text(),
               PATIENCE_S)
    assert "parity_chunks is 0 here" in log.read_text()
    (refused,) = trained.json("status", code=1)["refused"]
    assert refused["place"] == LAST and "peers.sock" in refused["address"]
    said = trained("status", code=1)
    assert "problem: the daemon at unix:" in said and "was refused: node 3 of job" in said
    assert "Start it with --data-chunks 2 --parity-chunks 2." in said
    comes_back(trained)
    assert trained.json("status")["refused"] == []


@pytest.mark.parametrize("words, variables, said", [
    (("--parity-chunks=1", "--pins=1"), {},
     ["parity_chunks is 1 here (--parity-chunks), 2 in the job",
      "pins is 1 here (--pins), 0 in the job"]),
    (("--parity-chunks=2",), {"UNREFT_SLOTS_PER_RANK": "4"},
     ["slots_per_rank is 4 here (UNREFT_SLOTS_PER_RANK), 3 in the job"]),
    (("--parity-chunks=2", "--spare", "--node=9"), {"UNREFT_BLOCK_BYTES": "4096"},
     ["block_bytes is 4096 here (UNREFT_BLOCK_BYTES), 1048576 in the job"]),
])
def test_says_where_each_value_is_from(trained, words, variables, said):
    run_dir = "spare" if "--spare" in words else None
    done = start(trained, f"--nodes={NODES}", "--data-chunks=2", *words, run_dir=run_dir,
                 **variables)
    assert done.returncode == 1, done.stderr
    for words in said:
        assert words in done.stderr
    assert done.stderr.count(" here (") == len(said)


def test_without_the_store_the_memory_says_it(trained):
    held = segments_of(trained, LAST)
    trained("inject", "kill-meta")
    done = start(trained, "--nodes", NODES)
    assert done.returncode == 1, done.stderr
    assert "is not started like the memory that lies here" in done.stderr
    assert "parity_chunks is 0 here (the default), 2 in the job" in done.stderr
    alone = start(trained, store=False)
    assert alone.returncode == 1 and "nodes is 1 here (the default), 4 in the job" in alone.stderr
    assert segments_of(trained, LAST) == held
    comes_back(trained)


def test_a_store_that_was_wiped_has_the_settings_again(trained):
    trained("inject", "kill-meta")
    shutil.rmtree(trained.run_dir / "meta")
    trained("up")
    trained("down", "--node", LAST, "--keep-memory")
    done = start(trained, "--nodes", NODES)
    assert done.returncode == 1, done.stderr
    assert "parity_chunks is 0 here (the default), 2 in the job" in done.stderr
    comes_back(trained)


@pytest.fixture
def wiped(trained):
    """All daemons away with their memory, and a meta store that knows nothing."""
    for node in range(LAST):
        trained("down", "--node", node, "--keep-memory")
    trained("inject", "kill-meta")
    shutil.rmtree(trained.run_dir / "meta")
    meta = subprocess.Popen([BIN_DIR / "unreftd", "--role=meta", "--run-dir", trained.run_dir],
                            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield trained
    meta.kill()
    meta.wait(PATIENCE_S)


def test_a_wiped_store_is_not_given_others_than_the_memory_has(wiped):
    held = segments_of(wiped, LAST)
    done = start(wiped, "--nodes", NODES)
    assert done.returncode == 1, done.stderr
    assert "is not started like the memory that lies here" in done.stderr
    assert segments_of(wiped, LAST) == held
    for node in range(NODES):
        wiped("up", "--node", node)
    job = train(wiped)
    wait_protected(wiped, job, wiped.committed() + 3)
    job.interrupt()


def test_a_wiped_store_has_the_settings_of_those_who_remember(wiped):
    """Whoever is new and was first there ends, and the job trains."""
    shutil.rmtree(wiped.run_dir / f"node{LAST}")
    for segment in segments_of(wiped, LAST):
        (pathlib.Path("/dev/shm") / segment).unlink()
    wrong = subprocess.Popen(
        [BIN_DIR / "unreftd", "--job", wiped.job, f"--node={LAST}", f"--nodes={NODES}",
         "--run-dir", wiped.run_dir / f"node{LAST}",
         f"--meta-endpoints=unix://{wiped.run_dir}/meta/meta.sock"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    line = ""
    while " leads" not in line:
        line = wrong.stderr.readline()
        assert line, "it has ended"
    for node in range(LAST):
        wiped("up", "--node", node)
    assert wrong.wait(PATIENCE_S) == 1
    assert "parity_chunks is 0 here (the default), 2 in the job" in wrong.stderr.read()
    wiped("up", "--node", LAST)
    job = train(wiped)
    wait_protected(wiped, job, 4)
    job.interrupt()


@contextlib.contextmanager
def begun_with_two(cli):
    """The first of a job of two nodes; yields its log, line by line."""
    daemon = subprocess.Popen(
        [BIN_DIR / "unreftd", "--job", cli.job, "--node=0", "--nodes=2", "--run-dir",
         cli.run_dir / "node0", f"--meta-endpoints=unix://{cli.run_dir}/meta/meta.sock"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield daemon.stderr
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE_S)


def line_with(log, text):
    for line in log:
        if text in line:
            return line
    raise AssertionError(f"it has ended without '{text}'")


def test_a_job_that_has_nothing_to_lose_takes_others(cli):
    up_nodes(cli)
    for node in range(NODES):
        cli("down", "--node", node)
    with begun_with_two(cli) as log:
        assert "nodes is 2 here (--nodes), 4 in the job" in line_with(log, "has new settings")


def test_a_job_that_was_forgotten_takes_others(trained):
    """Also where no daemon runs any more that could order a fresh start."""
    for node in range(NODES):
        trained("down", "--node", node)
    assert start(trained, "--nodes", 2, node=0).returncode == 1
    store = f"unix://{trained.run_dir}/meta/meta.sock"
    wait_until("they are gone", lambda: trained("forget", "--", "--meta-endpoints", store,
                                                code=(0, 1)), PATIENCE_S)
    with begun_with_two(trained) as log:
        assert f"node 0 of job {trained.job}: session" in line_with(log, "session 1")
        line_with(log, "node 0 leads")
