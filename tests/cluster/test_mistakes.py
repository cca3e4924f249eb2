"""What goes wrong by hand: late daemons, two for a slot, certificates that are not good."""

import re

import pytest

from job import Job
from namespaces import wait_until


def test_a_daemon_returns_late_with_a_spare_waiting(job):
    """Its trainers live, so that the slot goes back to it and training never stops."""
    spare, host = job.lab.start_spare(), job.hosts[2]
    job.stop_daemon(host)
    job.lab.wait_status("the spare in the slot", lambda s: s["members"][2]["place"] == 4)
    before = job.committed()
    job.trains_on(20)
    assert job.committed() == before, "committed without the node that has the trainers"
    job.lab.start_daemon(host)
    job.lab.wait_status("its slot", lambda s: s["members"][2]["place"] == 2
                        and [x["place"] for x in s["spares"]] == [4])
    job.trains_on()
    job.wait_protected()
    spare.power_off()


@pytest.fixture
def impatient(shared, undisturbed):
    """A job that ends itself when it is not protected, alone on the machine."""
    shared.close()
    job = Job()
    try:
        job.start("--unprotected-after 10")
        job.wait_protected()
        yield job
        job.check_exact(undisturbed)
    finally:
        job.close()


def test_trainers_whose_daemon_stays_away_end_for_their_launcher(impatient):
    job = impatient
    spare, host = job.lab.start_spare(), job.hosts[2]
    before, attempts = job.committed(), job.training.attempts()
    job.stop_daemon(host)
    job.lab.wait_status("the spare in the slot", lambda s: s["members"][2]["place"] == 4)
    assert "Unprotected" in job.training.wait_error("error")
    job.training.end_agent(host)
    job.training.start_agent(spare)
    restored = wait_until("the next attempt", lambda: job.training.restored()[attempts:])
    assert restored[0] >= before
    job.wait_protected()


def test_a_second_daemon_for_a_slot_is_refused(job):
    """And takes nothing from the first."""
    second, pid = job.lab.hosts[4], job.lab.daemon_pid(job.hosts[2])
    second.boot()
    done = second.ask("bash", "-c", f". {job.lab.etc}/env; unset UNREFT_SPARE\n"
                      "UNREFT_NODE=2 exec unreftd")
    assert done.returncode == 1
    assert "host2:4400" in done.stderr
    job.trains_on()
    assert job.lab.daemon_pid(job.hosts[2]) == pid
    second.power_off()


def test_a_second_spare_of_a_number_is_refused(job):
    """It took the first one's registration, which went on waiting for nothing."""
    spare = job.lab.start_spare()
    done = job.hosts[0].ask("bash", "-c", f". {job.lab.etc}/env\n"
                            "UNREFT_SPARE=true UNREFT_NODE=4 UNREFT_RUN_DIR=/run/unreft/second "
                            "UNREFT_TRANSPORT_LISTEN=0.0.0.0:4500 exec unreftd")
    assert done.returncode == 1
    assert "place 4 of job gpt is that of the spare at host4:4400 already" in done.stderr
    assert [x["address"] for x in job.lab.status()["spares"]] == ["host4:4400"]
    spare.power_off()


def test_a_mistyped_member_of_etcd_is_said(job):
    """Commits go on by the others, and nobody would see it before these are away."""
    host = job.hosts[2]
    host.script(f"""
        . {job.lab.etc}/env
        unreft down --keep-memory
        UNREFT_META_ENDPOINTS=etcd7:2379,etcd0:2379 unreft up --supervise""")
    wait_logged(job, host, r" warning .*its member etcd7:2379 is not reached")
    job.trains_on()
    job.wait_protected()
    host.script(job.lab.block("upgrade", ETC=job.lab.etc))
    job.wait_protected()
    assert "its member etcd0:2379" not in job.lab.daemon_log(host)


def test_a_foreign_certificate_at_the_start_is_refused(job):
    stranger = job.lab.hosts[4]
    stranger.boot()
    own = job.lab.directory / "disk" / "own"
    stranger.run("unreft", "certs", own, "--job", "gpt", "--nodes", 1)
    for side in ("META", "TRANSPORT"):
        done = stranger.ask("bash", "-c", f". {job.lab.etc}/env\n"
                            f"UNREFT_{side}_TLS_CERT={own}/node0.pem "
                            f"UNREFT_{side}_TLS_KEY={own}/node0.key exec unreftd")
        assert done.returncode == 1
        assert "does not verify by the authorities" in done.stderr
    stranger.power_off()


def test_an_expired_certificate_is_not_taken(job):
    """The one before stays in use, and nobody is cut off; good files end it."""
    host = job.hosts[1]
    good = {name: (host.disk / "etc" / name).read_bytes() for name in ("node.pem", "node.key")}
    make_expired(job.lab)
    expired = {name: (job.lab.control.disk / name).read_bytes() for name in good}
    put(host, expired)
    host.signal(job.lab.daemon_pid(host), "HUP")
    wait_logged(job, host, r" error .*transport_tls: .*stays in use")
    assert refused_files(job, host) == 1
    job.trains_on()
    job.wait_protected()
    put(host, good)
    host.signal(job.lab.daemon_pid(host), "HUP")
    wait_until("good files", lambda: refused_files(job, host) == 0)


def refused_files(job, host):
    (value,) = re.findall(r"^unreft_tls_files_refused(?:{.*})? (\d)$",
                          job.lab.unreft(host, "metrics"), re.MULTILINE)
    return int(value)


def make_expired(lab):
    certs, disk = lab.certs, lab.directory / "disk"
    lab.control.script(f"""
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \\
          -keyout {disk}/node.key -out {disk}/node.csr -subj /CN=node1 \\
          -addext subjectAltName=URI:unreft://job/gpt
        openssl x509 -req -in {disk}/node.csr -CA {certs}/ca.pem -CAkey {certs}/ca.key \\
          -CAcreateserial -days -1 -copy_extensions copy -out {disk}/node.pem""")


def put(host, files):
    """By rename, as the documents say."""
    for name, content in files.items():
        draft = host.disk / "etc" / f"{name}.new"
        draft.touch(mode=0o600)
        draft.write_bytes(content)
        draft.rename(host.disk / "etc" / name)


def wait_logged(job, host, pattern):
    wait_until(f"{pattern} in the log of {host.name}",
               lambda: re.search(pattern, job.lab.daemon_log(host)))
