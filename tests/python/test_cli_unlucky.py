"""`unreft` where something beside it goes wrong: who read its output is gone, or a signal comes."""

import os
import signal
import subprocess
import sys

import pytest

from cli_testing import BIN_DIR, COMMAND_TIMEOUT_S, is_alive, wait_until
from cluster_testing import up_nodes
from test_cli_export import begun, job  # noqa: F401, a fixture

FAILED = 1
# Names itself once it has said more than is taken between it and a reader, but for its own pipe.
TALKS = """
import itertools, os, pathlib, sys
for lines in itertools.count(1):
    os.write(1, b"x" * 999 + b"\\n")
    if lines == 50:
        pathlib.Path(sys.argv[1]).touch()
"""


def run(cli, *words, **options):
    return subprocess.Popen(cli.command("run", *words), stdin=subprocess.DEVNULL, **options)


def test_a_signal_that_it_was_started_to_ignore_is_ignored(cli):
    """As by nohup."""
    launcher = run(cli, "--", "sleep", 600, stderr=subprocess.PIPE, text=True,
                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    for line in launcher.stderr:
        if "1 ranks started" in line:
            break
    launcher.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(0.5)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(COMMAND_TIMEOUT_S) == 128 + signal.SIGTERM


def test_nobody_has_to_read_its_lines(cli, tmp_path):
    go = tmp_path / "go"
    rank = f"while [ ! -e {go} ]; do sleep 0.01; done; exit 7"
    launcher = run(cli, "--json", "--max-restarts", 2, "--", "sh", "-c", rank,
                   stderr=subprocess.PIPE)
    launcher.stderr.readline()
    launcher.stderr.close()
    go.touch()
    assert launcher.wait(COMMAND_TIMEOUT_S) == 7, "after the restarts"


@pytest.mark.parametrize("reads", [True, False], ids=["slowly", "not"])
def test_a_rank_that_talks_without_end_holds_up_nothing(cli, tmp_path, reads):
    talked = tmp_path / "talked"
    launcher = run(cli, "--prefix-output", "--", sys.executable, "-c", TALKS, talked,
                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pipesize=4096)
    assert launcher.stdout.readline().startswith(b"[0] xxx")
    wait_until("it to have talked", talked.exists)
    launcher.send_signal(signal.SIGTERM)
    if reads:
        while launcher.stdout.read(1 << 16):
            pass
        assert launcher.wait(COMMAND_TIMEOUT_S) == 128 + signal.SIGTERM
        return
    # What the rank has said before it ended waits for a reader, who gives up with the next signal.
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(2)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(COMMAND_TIMEOUT_S) == 128 + signal.SIGTERM


def test_lines_of_ranks_are_not_mixed(cli):
    """Though they are longer than what is written at once, and the reader is slower."""
    talks = ("import os\nline = b'ab'[int(os.environ['RANK']):][:1] * 9000 + b'\\n'\n"
             "for _ in range(200): os.write(1, line)")
    launcher = run(cli, "--ranks", 2, "--prefix-output", "--", sys.executable, "-c", talks,
                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    said = b"".join(iter(lambda: launcher.stdout.read(5000), b""))
    assert launcher.wait(COMMAND_TIMEOUT_S) == 0
    lines = said.splitlines()
    assert sorted(set(lines)) == [b"[0] " + b"a" * 9000, b"[1] " + b"b" * 9000]
    assert len(lines) == 400


def test_what_a_rank_leaves_behind_is_not_waited_for(cli, tmp_path):
    """It has the rank's output yet, and another process group."""
    pid = tmp_path / "pid"
    left = f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600"
    rank = (f"setsid sh -c '{left}' & while [ ! -e {pid} ]; do sleep 0.01; done; "
            "printf 'no end of line'")
    launcher = run(cli, "--prefix-output", "--", "sh", "-c", rank, stdout=subprocess.PIPE,
                   stderr=subprocess.DEVNULL)
    try:
        assert launcher.wait(COMMAND_TIMEOUT_S) == 0
        assert launcher.stdout.read1() == b"[0] no end of line\n"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_the_first_signal_leaves_the_grace_that_a_failure_began(cli, tmp_path):
    heard, saved = tmp_path / "heard", tmp_path / "saved"
    rank = (f"[ $RANK = 1 ] && exit 3; trap 'touch {heard}; sleep 1; touch {saved}; exit 0' TERM; "
            "while true; do sleep 0.01; done")
    launcher = run(cli, "--ranks", 2, "--grace-ms", 60_000, "--", "sh", "-c", rank,
                   stderr=subprocess.DEVNULL)
    wait_until("the stop after the failure", heard.exists)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(COMMAND_TIMEOUT_S) == 128 + signal.SIGTERM
    assert saved.exists()


def test_up_leaves_a_supervisor_its_daemon(cli):
    first = cli.json("up", "--supervise")
    for _ in range(4):  # the next one comes later after each
        pid = cli.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        wait_until("its end", lambda: not is_alive(pid))
        for words in ([], ["--supervise"]):
            assert cli.json("up", *words)["already_up"] is True
        assert is_alive(first["supervisor_pid"])
    assert cli.json("down")["supervisor_pid"] == first["supervisor_pid"]


def test_a_node_is_not_destroyed_from_another_run_directory(cli, tmp_path):
    cli("up")
    held = cli.segments()
    other = ["--job", cli.job, "--node", "0", "--run-dir", str(tmp_path / "other")]
    for words in (["inject", "kill-node", "--force"], ["down"]):
        done = subprocess.run([BIN_DIR / "unreft", *words, *other], capture_output=True, text=True,
                              timeout=COMMAND_TIMEOUT_S, check=False)
        assert done.returncode == FAILED and "serves its memory" in done.stderr, done
    assert cli.segments() == held and cli.daemon_pid()


def test_other_words_are_not_taken_for_daemons_that_run(cli):
    up_nodes(cli, "--pins", 1)
    cli("up", "--", "--pins", 2, code=FAILED)
    assert "--pins 1' after '--', found '--pins 2', and node 0 runs" in cli.stderr
    cli("up")


def test_memory_is_not_taken_from_an_export(cli, job, tmp_path):  # noqa: F811
    process = begun(cli, tmp_path / "copy")
    job.interrupt()
    job.wait()
    cli("down", code=FAILED)
    assert f"writes a durable copy to {tmp_path / 'copy'}" in cli.stderr
    cli("export", "--cancel")
    process.communicate(timeout=COMMAND_TIMEOUT_S)
    cli("down")


def test_for_ever_is_no_shorter_than_a_while(cli):
    cli("up")
    assert cli.json("down", "--timeout-ms", 2**64 - 1)["killed"] is False


def test_an_answer_that_is_cut_is_no_success(cli):
    cli("up")
    with open("/dev/full", "w") as full:
        done = subprocess.run(cli.command("metrics"), stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == FAILED and "not all of it was written" in done.stderr
