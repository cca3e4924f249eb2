"""A job goes on committing when the disk of its run directory was full and is not any more."""

import os
import random
import time

from cli_testing import wait_until
from cluster_testing import PATIENCE_S, train, up_nodes, wait_protected
from small_shm import SmallDisk, fill, small_cli

DISK = 64 << 20


def test_a_job_of_one_node_commits_on_and_its_records_follow():
    with small_cli(64 << 20) as small:
        disk = SmallDisk(small, DISK)
        small("up")
        pid = small.daemon_pid()
        job = small.train()
        small.wait_committed(job, 2)
        full = fill(disk)
        log = disk.directory / "unreftd.log"

        wait_refused(small)
        small.wait_committed(job, small.committed() + 3)
        full.unlink()
        wait_until("the records", lambda: "written, as before the failure" in log.read_text(),
                   PATIENCE_S)
        assert small.daemon_pid() == pid
        wait_written(small)
        job.interrupt()


def test_a_disk_that_is_full_again_and_again_ends_no_daemon():
    """Filled at drawn moments, the daemon killed and started while it is."""
    draw = random.Random(7)
    with small_cli(64 << 20) as small:
        disk = SmallDisk(small, DISK)
        small("up")
        job = small.train()
        small.wait_committed(job, 2)
        for spare in (0, 4096, 100_000, 3 << 20):
            time.sleep(draw.random())
            full = fill(disk, spare)
            small.wait_committed(job, small.committed() + draw.randrange(1, 20))
            if spare < 1 << 20:
                wait_refused(small)
            small("inject", "kill-daemon")
            small("up")
            small.wait_committed(job, small.committed() + 3)
            full.unlink()
            wait_written(small)
        assert len(job.events("attempt-start")) == 1
        job.interrupt()
        reboot(small)


def test_a_daemon_is_not_started_where_nothing_can_be_written():
    with small_cli(64 << 20) as small:
        disk = SmallDisk(small, DISK)
        small("up")
        small.train_to_end(2)
        committed = small.committed()
        small("down", "--keep-memory")
        disk.remount("ro")
        small("up", code=1)
        assert "Read-only file system" in small.stderr
        disk.remount("rw")
        small("up")
        assert small.committed() == committed


def test_records_whose_disk_becomes_read_only_are_written_when_it_is_not():
    """It is full before, so that the daemon opens its database anew."""
    with small_cli(64 << 20) as small:
        disk = SmallDisk(small, DISK, "records")
        small("up")
        pid = small.daemon_pid()
        job = small.train()
        small.wait_committed(job, 2)
        full = fill(disk)
        wait_refused(small)
        beneath = os.open(disk.directory, os.O_RDONLY)
        with disk.read_only():
            os.unlink(full.name, dir_fd=beneath)
            os.close(beneath)
            wait_until("what is refused now", lambda: "Read-only" in small.status()["problem"],
                       PATIENCE_S)
            small.wait_committed(job, small.committed() + 10)
            assert unwritten(small) == 1
        wait_written(small)
        assert small.daemon_pid() == pid
        job.interrupt()
        reboot(small)


def reboot(cli):
    """It finds what was committed last, by the records alone."""
    committed = cli.committed()
    cli("down", "--keep-memory")
    for segment in cli.segments():
        segment.unlink()
    cli("up")
    assert cli.committed() == committed, "as the records have it"


def unwritten(cli):
    (line,) = [line for line in cli("metrics").splitlines()
               if line.startswith("unreft_records_unwritten{")]
    return float(line.split()[-1])


def wait_refused(small):
    def ready():
        status = small.status()
        return status["counters"]["record_writes_failed"] and "No space left" in status["problem"]

    wait_until("a record that is refused", ready, PATIENCE_S)
    assert unwritten(small) == 1


def wait_written(small):
    wait_until("all records", lambda: not small.status()["problem"], PATIENCE_S)
    assert unwritten(small) == 0


def test_a_job_of_several_nodes_goes_on_when_its_meta_store_can_write():
    with small_cli(256 << 20) as small:
        disk = SmallDisk(small, 4 * DISK)
        up_nodes(small)
        job = train(small)
        wait_protected(small, job, 2)
        full = fill(disk)
        log = disk.directory / "meta.log"
        wait_until("a record that is refused", lambda: "No space left" in log.read_text(),
                   PATIENCE_S)
        # The nodes' disk is the same one: what they lack there is a problem, too.
        step = small.json("status", code=(0, 1))["committed"]["step"]
        full.unlink()
        # Whatever was under way before may still be committed by now.
        wait_protected(small, job, step + 10)
        assert log.read_text().count("serves at") == 1
        assert len(job.events("attempt-start")) == 1
        job.interrupt()
