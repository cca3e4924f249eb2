"""Run directories that other users have prepared, and what `down` may remove."""

import json
import os
import pathlib
import stat
import subprocess
import tempfile

import pytest
from cli_testing import BIN_DIR

ANOTHER = 65533  # a user of whom nothing here is


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def outside():
    """A directory as /tmp is: everybody may put something there."""
    with tempfile.TemporaryDirectory(prefix="unreft-") as name:
        os.chmod(name, 0o1777)
        yield pathlib.Path(name)


@pytest.fixture
def theirs(outside):
    """As above; gives what is in it to another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    return lambda path: os.lchown(path, ANOTHER, ANOTHER)


def unreft(run_dir, *words, job="strangers"):
    return subprocess.run([BIN_DIR / "unreft", "--job", job, "--run-dir", run_dir, *words],
                          capture_output=True, text=True, timeout=60)


COMMANDS = [["up"], ["status"], ["down"], ["run", "--", "true"], ["metrics"], ["fresh-start"]]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_another_users_directory_is_not_believed(outside, theirs, words):
    """It may hold a socket, or name the program that is to be started."""
    ran = outside / "ran"
    (outside / "parent").mkdir()
    (outside / "parent/job").mkdir(mode=0o700)
    cluster = {"job": "strangers", "nodes": 1, "data_chunks": 1, "parity_chunks": 0,
               "meta_address": f"unix:{outside}/meta.sock", "daemon_path": f"{outside}/program",
               "daemon_words": [], "supervise": False}
    (outside / "parent/job/cluster.json").write_text(json.dumps(cluster))
    (outside / "program").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (outside / "program").chmod(0o755)
    theirs(outside / "parent")
    done = unreft(outside / "parent/job", *words)
    assert done.returncode not in (0, 2), done.stdout
    assert f"{outside}/parent belongs to user {ANOTHER}" in done.stderr, done.stderr
    assert "--run-dir" in done.stderr
    assert not ran.exists()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_another_users_link_is_not_followed(outside, theirs, words):
    victim = outside / "victim"
    victim.mkdir(mode=0o700)
    (victim / "unreftd.log").write_text("precious")
    (outside / "job").symlink_to(victim)
    theirs(outside / "job")
    done = unreft(outside / "job", *words)
    assert done.returncode not in (0, 2), done.stdout
    assert f"{outside}/job belongs to user {ANOTHER}" in done.stderr, done.stderr
    assert os.listdir(victim) == ["unreftd.log"]
    assert (victim / "unreftd.log").read_text() == "precious"


def test_a_daemon_refuses_it_too(outside, theirs):
    (outside / "run").mkdir(mode=0o700)
    theirs(outside / "run")
    done = subprocess.run([BIN_DIR / "unreftd", "--job", "strangers", "--run-dir", outside / "run"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{outside}/run belongs to user {ANOTHER}" in done.stderr


def test_what_is_made_is_this_users_alone_whatever_the_umask(cli):
    """Also the parent, of which the next job's directory is a part."""
    run_dir = cli.run_dir / "parent" / "job"
    mask = os.umask(0)
    try:
        up = unreft(run_dir, "up", job=cli.job)
    finally:
        os.umask(mask)
    assert up.returncode == 0, up.stderr
    try:
        made = [run_dir.parent, run_dir, *run_dir.rglob("*")]
        assert {path.name for path in made} > {"unreftd.log", "unreftd.lock", "records"}
        open_to_others = {str(path): oct(mode_of(path)) for path in made if mode_of(path) & 0o077}
        assert open_to_others == {}
    finally:
        unreft(run_dir, "down", job=cli.job)


def test_down_removes_what_it_made_alone(cli):
    """Files of the user's, in directories of the names that Unreft uses."""
    kept = []
    for place in ("records", "meta", "meta/records", "node0", "node1/records"):
        (cli.run_dir / place).mkdir(parents=True, exist_ok=True)
        kept.append(cli.run_dir / place / "mine.txt")
        kept[-1].write_text("mine")
    cli("up", "--nodes", 2, "--data-chunks", 1, "--parity-chunks", 1)
    cli("down")
    left = sorted(path for path in cli.run_dir.rglob("*") if path.is_file())
    assert left == sorted([*kept, cli.run_dir / "meta.log"])
    assert all(path.read_text() == "mine" for path in kept)


def test_names_in_shared_memory_that_another_user_has_taken(cli):
    """They kept a daemon from starting and a rank from registering, and `down` left the memory."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    shm = pathlib.Path("/dev/shm")
    taken = [shm / f"unreft.{cli.job}.0.{name}"
             for name in ("node", "slot0", "slot1", "slot2", "staging", "guard0", "control.0.1.1")]
    try:
        for path in taken:
            path.write_bytes(b"theirs")
            os.chmod(path, 0o666)
            os.chown(path, ANOTHER, ANOTHER)
        cli("up")
        first = cli.json("status")
        log = (cli.run_dir / "unreftd.log").read_text()
        assert f"segment /{taken[0].name} belongs to user {ANOTHER}" in log, log
        cli.train_to_end(3)
        committed = cli.json("status")["committed"]
        assert committed is not None, log
        # What it has is found again.
        cli("down", "--keep-memory")
        cli("up")
        assert cli.json("status")["committed"] == committed
        assert first["committed"] is None
        cli("down")
        left = sorted(path for path in shm.iterdir() if cli.job in path.name)
        assert left == sorted(taken)
        assert all(path.read_bytes() == b"theirs" for path in taken)
    finally:
        for path in taken:
            path.unlink(missing_ok=True)
