"""What an operator does on purpose, by the blocks of docs/cluster.md."""

import json
import re

from namespaces import wait_until


def test_a_node_is_upgraded(job):
    host = job.hosts[1]
    pid = job.lab.daemon_pid(host)
    host.script(job.lab.block("upgrade", ETC=job.lab.etc))
    job.trains_on()
    assert job.lab.daemon_pid(host) != pid
    adopted = re.findall(r"(\d+) slots adopted", job.lab.daemon_log(host))
    assert len(adopted) > 1 and int(adopted[-1]) > 0, adopted
    job.wait_protected()


def test_other_hosts_are_wished_for(job):
    """torchrun does not act on a wish: it is recorded and shown, and training goes on."""
    host = job.hosts[2]
    shown = host.script(job.lab.block("resize", ETC=job.lab.etc))
    assert "the launcher is to start them anew" in shown, shown
    job.trains_on()
    host.script(job.lab.block("resize-cancel", ETC=job.lab.etc))
    resized = json.loads(host.script(f". {job.lab.etc}/env\nunreft resize --json"))
    assert resized["order"] is None, resized
    job.wait_protected()


def test_a_host_is_maintained_without_a_spare(job):
    host, attempts = job.hosts[3], job.training.attempts()
    job.training.end_agent(host)
    done = job.training.last_done()
    host.script(job.lab.block("leave", ETC=job.lab.etc))
    assert not list(host.path("/dev/shm").glob("unreft.*")), "memory was left"
    host.power_off()
    job.replace(host)
    job.wait_restored(attempts, done)


def test_a_clock_is_an_hour_off(job):
    """Those since boot; the one of the calendar is the kernel's."""
    host, attempts = job.hosts[3], job.training.attempts()
    host.power_off()
    done = job.training.last_done()
    job.replace(host, clock_offset_s=3600)
    job.wait_restored(attempts, done)


def test_a_host_is_maintained_with_a_spare(job):
    job.spent = True
    spare, host = job.lab.start_spare(), job.hosts[2]
    attempts = job.training.attempts()
    job.training.end_agent(host)
    done = job.training.last_done()
    host.script(job.lab.block("leave", ETC=job.lab.etc))
    job.lab.wait_status("the spare in the slot", lambda s: s["members"][2]["place"] == 4)
    job.training.start_agent(spare)
    job.wait_restored(attempts, done)
    job.wait_protected()
    host.script(job.lab.block("become-spare", ETC=job.lab.etc))
    job.lab.wait_status("the new spare", lambda s: [x["place"] for x in s["spares"]] == [5])


def test_the_authority_is_changed(job):
    """Nobody is cut off at any step, also not who makes all connections anew."""
    job.spent = True
    lab, disk = job.lab, job.lab.directory / "disk"
    following = {"NEXT": disk / "next", "ETC": lab.etc}
    lab.control.script(lab.block("both-authorities", STORES="etcd0", CERTS=lab.certs, **following))
    restart_etcd(job, lab.certs, disk / "next" / "both.pem")
    lab.control.script(lab.block("next-certificates", **following))
    for host in job.hosts:
        wait_in_use(job, host)
    restart_etcd(job, disk / "next", disk / "next" / "both.pem")
    lab.control.script(lab.block("next-authority", **following))
    restart_etcd(job, disk / "next", disk / "next" / "ca.pem")
    pids = {host: lab.daemon_pid(host) for host in job.hosts}
    for host, pid in pids.items():
        host.signal(pid)
    job.trains_on()
    job.wait_protected()
    for host, pid in pids.items():
        assert lab.daemon_pid(host) != pid


def restart_etcd(job, certs, authority):
    """Once all daemons have what the block before has given them."""
    for host in job.hosts:
        host.signal(job.lab.daemon_pid(host), "HUP")
    job.wait_protected()
    job.lab.stop_etcd()
    job.lab.start_etcd(certs, authority)
    job.trains_on()
    job.wait_protected()


def wait_in_use(job, host):
    certificate = job.lab.directory / "disk" / "etc" / "node.pem"
    serial = host.run("openssl", "x509", "-in", certificate, "-noout", "-serial").split("=")[1]
    wait_until(f"the new certificate of {host.name}", lambda: re.search(
        rf"transport_tls: .*serial {serial.strip()} is in use", job.lab.daemon_log(host)))


def test_a_job_ends_and_begins_anew(job, undisturbed):
    """Its records outlive its memory: by a fresh start, or by forgetting, it trains again."""
    job.spent = True
    job.training.end()
    job.check_exact(undisturbed)
    assert "has not ended" in refused(job.hosts[0], job.lab.block("forget", ETC=job.lab.etc))
    take_down(job)

    bring_up(job)
    job.train()
    message = job.training.wait_error()
    assert "unreft fresh-start" in message
    job.training.abort()
    job.hosts[1].script(job.lab.block("fresh-start", ETC=job.lab.etc))
    job.train()
    job.wait_protected()
    assert job.training.restored() == [None]
    job.training.end()

    take_down(job)
    removed = forget(job)
    assert "store" in removed and "commit" in removed
    assert job.lab.ask_etcd("get", "unreft/", "--prefix", "--keys-only").stdout.strip() == ""
    bring_up(job)
    job.train()
    job.wait_protected()
    assert job.training.restored() == [None]


def test_the_model_is_changed(job, undisturbed):
    """Its trainers say what to do, and the fresh start of the documents lets them train."""
    for words in (["--hidden 64"], []):  # and back
        job.training.end()
        if words:
            job.check_exact(undisturbed)
        job.train(*words)
        message = job.training.wait_error()
        assert "was stored, found" in message and "unreft fresh-start" in message
        job.training.abort()
        job.hosts[1].script(job.lab.block("fresh-start", ETC=job.lab.etc))
        job.train(*words)
        job.wait_protected()
        assert job.training.restored() == [None]


def take_down(job):
    for host in job.hosts:
        host.script(job.lab.block("leave", ETC=job.lab.etc))


def bring_up(job):
    for host in job.hosts:
        job.lab.start_daemon(host)
    job.lab.wait_members()


def refused(host, block):
    done = host.ask("bash", "-euo", "pipefail", "-c", block)
    assert done.returncode == 1, done.stdout
    return done.stderr


def forget(job):
    """A daemon that has ended is present until its lease is over."""
    block = job.lab.block("forget", ETC=job.lab.etc)
    done = wait_until("the last lease", lambda: succeeded(
        job.hosts[0].ask("bash", "-euo", "pipefail", "-c", block)))
    return done.stdout


def succeeded(done):
    return done if done.returncode == 0 else None
