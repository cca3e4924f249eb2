"""Trainers, daemons and hosts are killed, one and several at once."""

import pytest

from lab import NODES


@pytest.mark.short
def test_it_comes_up_as_documented(job):
    for host in job.hosts:
        assert "protected: " in job.lab.unreft(host, "status", "--check")
    status = job.lab.status()
    assert [member["address"] for member in status["members"]] == [
        f"{host.name}:4400" for host in job.hosts]
    for host in job.hosts:
        assert "insecure" not in host.script(job.lab.block("look", ETC=job.lab.etc))


@pytest.mark.short
def test_a_daemon_is_killed(job):
    host = job.hosts[1]
    pid = job.lab.daemon_pid(host)
    host.signal(pid)
    job.trains_on()
    assert job.lab.daemon_pid(host) != pid
    job.wait_protected()


@pytest.mark.short
def test_a_host_is_killed(job):
    """Its trainers, its daemon, its memory: another machine takes its place."""
    host = job.hosts[2]
    attempts = job.training.attempts()
    host.power_off()
    done = job.training.last_done()
    job.replace(host)
    job.wait_restored(attempts, done)


def test_a_trainer_is_killed(job):
    attempts, host = job.training.attempts(), job.hosts[0]
    host.signal(job.training.pid(host))
    job.wait_restored(attempts, job.training.last_done())


def test_two_hosts_are_killed_at_once(job):
    lost = [job.hosts[0], job.hosts[3]]
    attempts = job.training.attempts()
    for host in lost:
        host.power_off()
    done = job.training.last_done()
    for host in lost:
        job.replace(host)
    job.wait_restored(attempts, done)


def test_a_daemon_stands_still(job):
    """As long as it takes to be lost, and then as long again."""
    host = job.hosts[1]
    pid = job.lab.daemon_pid(host)
    host.signal(pid, "STOP")
    job.lab.wait_status("its loss", lambda s: s["members"][1]["lost"])
    before = job.committed()
    job.trains_on(30)
    assert job.committed() == before, "committed without a node that holds a share"
    host.signal(pid, "CONT")
    job.trains_on()
    job.wait_protected()
    assert job.lab.daemon_pid(host) == pid


def test_all_daemons_are_killed_at_once(job):
    pids = [job.lab.daemon_pid(host) for host in job.hosts]
    for host, pid in zip(job.hosts, pids, strict=True):
        host.signal(pid)
    job.trains_on()
    job.wait_protected()
    assert not set(zip(range(NODES), pids)) & {
        (node, job.lab.daemon_pid(host)) for node, host in enumerate(job.hosts)}


def test_a_daemon_comes_back_with_an_empty_memory(job):
    """It has its slot once the memory before it is lost, and its trainers go on."""
    host = job.hosts[1]
    job.stop_daemon(host)
    host.script("rm -r /dev/shm/unreft.* /run/unreft/gpt")
    job.lab.start_daemon(host)
    job.trains_on()
    job.wait_protected()
    assert " 0 slots adopted" in job.lab.daemon_log(host)
