"""etcd goes away, stands still, loses everything; hosts are cut off from it, and from all."""

import json
import shutil

import pytest

from job import Job
from namespaces import wait_until


@pytest.mark.short
def test_etcd_is_killed(job):
    job.lab.stop_etcd()
    job.trains_on(10)
    job.lab.start_etcd()
    job.trains_on()
    job.wait_protected()


def test_etcd_stands_still(job):
    job.lab.etcds["etcd0"].signal_all("STOP")
    job.trains_on(50)
    job.lab.etcds["etcd0"].signal_all("CONT")
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


@pytest.fixture
def three_members(shared, undisturbed):
    """A job whose etcd has three members, alone on the machine."""
    shared.close()
    job = Job(stores=3)
    try:
        job.start()
        job.wait_protected()
        yield job
        job.check_exact(undisturbed)
    finally:
        job.close()


def leader_of(lab):
    """Of etcd's members."""
    done = lab.ask_etcd("endpoint", "status", "--write-out=json")
    for member in json.loads(done.stdout) if done.returncode == 0 else []:
        status = member["Status"]
        if status["header"]["member_id"] == status["leader"]:
            return member["Endpoint"].removeprefix("https://").removesuffix(":2379")
    return None


def test_an_etcd_of_three_members(three_members):
    """Any one may go, its leader too; of two, commits wait for one to come back."""
    job, lab = three_members, three_members.lab
    leader = wait_until("etcd's leader", lambda: leader_of(lab))
    others = [name for name in lab.stores if name != leader]
    lab.stop_member(leader)
    job.trains_on()
    job.wait_protected()
    lab.stop_member(others[0])
    wait_until("the word of it", lambda: "the meta store does not answer" in lab.unreft(
        job.hosts[0], "status", code=(0, 1)))
    before = job.training.last_step()
    job.trains_on(10)
    committed = {(lab.ask_host(host, "status")["committed"] or {})["step"] for host in job.hosts}
    assert max(committed) <= before, "committed without a majority of etcd's members"
    lab.start_member(others[0])
    job.wait_protected()
    lab.start_member(leader)
    wait_until("all members", lambda: lab.ask_etcd("endpoint", "health").returncode == 0)
    job.trains_on()
    job.wait_protected()
