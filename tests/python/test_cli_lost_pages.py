"""A trainer may truncate what it maps: the daemon and what it has of others stay."""

import os
import sys

from cli_testing import TRAINER, is_alive, wait_until


def log_of(cli):
    return (cli.run_dir / "unreftd.log").read_text()


def test_a_truncated_slot_is_quarantined_and_the_others_stay(cli):
    cli("up")
    cli.train_to_end(4, ranks=1)
    pid = cli.daemon_pid()
    slot = next(segment for segment in cli.segments() if ".slot" in segment.name)
    size = slot.stat().st_size
    os.truncate(slot, 4096)
    wait_until("the scrub or a question to find it",
               lambda: cli.run_verify() and f"segment /{slot.name}: needs {size} bytes, "
                                            "its file has 4096" in log_of(cli))
    assert cli.daemon_pid() == pid
    # A version is left, or the job is told that none is: nothing ends, and nothing waits for ever.
    assert is_alive(pid)
    job = cli.launch("--ranks", 1, "--", sys.executable, TRAINER, "--commits", 2)
    assert job.wait() == 0, job.output()
    assert next(line["restored"] for line in job.lines() if "restored" in line) > 0
    assert cli.daemon_pid() == pid


def test_every_kind_of_segment_may_be_truncated(cli):
    cli("up")
    job = cli.train(ranks=1)
    cli.wait_committed(job, 2)
    pid = cli.daemon_pid()
    job.process.kill()
    job.process.wait()
    segments = cli.segments()
    kinds = {segment.name.split(".")[3].rstrip("0123456789") for segment in segments}
    assert {"node", "slot"} <= kinds, kinds
    for segment in segments:
        os.truncate(segment, 0)
    cli.run_verify()
    assert cli.daemon_pid() == pid
    status = cli.json("status")
    assert status["committed"] is not None, status
    assert any(f"segment /{segment.name}: needs" in log_of(cli) for segment in segments
               if ".slot" in segment.name)
    # A job that comes is answered.
    cli.fresh_start()
    cli.train_to_end(1, ranks=1)
    assert cli.daemon_pid() == pid
    cli("down")
    assert cli.segments() == []
