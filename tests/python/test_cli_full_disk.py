"""A job goes on committing when the disk of its run directory was full and is not any more."""

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

        def failed():
            return small.json("status")["counters"]["record_writes_failed"] > 0

        wait_until("a record that is refused", failed, PATIENCE_S)
        small.wait_committed(job, small.committed() + 3)
        full.unlink()
        wait_until("the records", lambda: "written, as before the failure" in log.read_text(),
                   PATIENCE_S)
        assert small.daemon_pid() == pid
        job.interrupt()


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
        step = small.json("status")["committed"]["step"]
        full.unlink()
        # Whatever was under way before may still be committed by now.
        wait_protected(small, job, step + 10)
        assert log.read_text().count("serves at") == 1
        assert len(job.events("attempt-start")) == 1
        job.interrupt()
