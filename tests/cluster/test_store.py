"""etcd goes away, stands still, loses everything; hosts are cut off from it, and from all."""

import shutil

import pytest


@pytest.mark.short
def test_etcd_is_killed(job):
    job.lab.stop_etcd()
    job.trains_on(10)
    job.lab.start_etcd()
    job.trains_on()
    job.wait_protected()


def test_etcd_stands_still(job):
    job.lab.etcd.signal_all("STOP")
    job.trains_on(50)
    job.lab.etcd.signal_all("CONT")
    job.trains_on()
    job.wait_protected()


def test_etcd_is_wiped(job):
    job.lab.stop_etcd()
    shutil.rmtree(job.lab.control.disk / "etcd")
    job.lab.start_etcd()
    job.trains_on()
    job.wait_protected()
    host = job.hosts[0]
    attempts = job.training.attempts()
    host.signal(job.training.pid(host))
    job.wait_restored(attempts, job.training.last_done())


def test_a_host_is_cut_off_from_etcd(job):
    host = job.hosts[3]
    host.cut("store")
    job.lab.wait_status("its loss", lambda s: s["members"][3]["lost"])
    job.trains_on(10)
    host.mend("store")
    job.trains_on()
    job.wait_protected()


def test_a_host_is_cut_off_from_all(job):
    """Training waits for it, and goes on when it is back: torchrun gives a node up after 15 s."""
    host = job.hosts[2]
    attempts = job.training.attempts()
    host.cut()
    job.lab.wait_status("its loss", lambda s: s["members"][2]["lost"])
    host.mend()
    job.training.wait_step(job.training.last_step() + 5)
    assert job.training.attempts() == attempts
    job.wait_protected()
