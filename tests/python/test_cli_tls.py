"""Four daemons and the meta store that talk by TLS: the real thing, and certificates of others."""

import math
import os
import pathlib
import signal
import subprocess

import pytest

from cli_testing import BIN_DIR, wait_until
from cluster_testing import NODES, train, up_nodes, wait_protected, wait_restored, wait_status

# How a daemon's log begins to tell that it or another lets somebody not in: a connection that is
# refused because nobody listens any more is told otherwise.
REFUSAL = ": refused: "
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Certificates:
    """A directory as `unreft up --tls-dir` wants it, by an authority of its own or another's."""

    def __init__(self, directory, job, authority=None):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir()
        self._authority = authority or self
        if authority:
            self.file("ca.pem").write_bytes(authority.file("ca.pem").read_bytes())
        else:
            self._run("req", "-x509", *NEW_KEY, "-keyout", self.file("ca.key"), "-subj",
                      f"/CN={self.directory.name}", "-days", 2, "-out", self.file("ca.pem"))
        for who in ("meta", *(f"node{node}" for node in range(NODES))):
            self._make(who, job)

    def file(self, name):
        return self.directory / name

    def _make(self, who, job):
        names = f"subjectAltName=IP:127.0.0.1,URI:unreft://job/{job}"
        key, request, own = (self.file(f"{who}.{kind}") for kind in ("key", "csr", "pem"))
        ca, ca_key = (self._authority.file(f"ca.{kind}") for kind in ("pem", "key"))
        self._run("req", "-new", *NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={who}",
                  "-addext", names)
        self._run("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial",
                  "-days", 2, "-copy_extensions", "copy", "-out", own)

    @staticmethod
    def _run(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)

    def take(self, other, name):
        """Replaces files by those of another directory."""
        for kind in ("pem", "key"):
            draft = self.file("draft")
            draft.touch(mode=0o600)
            draft.write_bytes(other.file(f"{name}.{kind}").read_bytes())
            draft.rename(self.file(f"{name}.{kind}"))

    def words(self, side, who):
        return [f"--{side}-tls-ca={self.file('ca.pem')}",
                f"--{side}-tls-cert={self.file(who + '.pem')}",
                f"--{side}-tls-key={self.file(who + '.key')}"]


@pytest.fixture
def ours(cli, tmp_path):
    return Certificates(tmp_path / "ours", cli.job)


@pytest.fixture
def theirs(cli, tmp_path):
    """For the same job, as another authority says."""
    return Certificates(tmp_path / "theirs", cli.job)


@pytest.fixture
def nodes(cli, ours):
    return up_nodes(cli, up_words=["--tls-dir", ours.directory])


def log_of(cli, node):
    return (cli.run_dir / f"node{node}" / "unreftd.log").read_text()


def wait_logged(cli, node, *texts):
    def ready():
        return any(all(text in line for text in texts) for line in log_of(cli, node).splitlines())

    wait_until(f"{texts} in the log of node {node}", ready)


def lose_node_3(cli):
    cli.json("inject", "kill-node", "--node", 3)
    wait_status(cli, "its loss", lambda s: s["members"][3]["lost"])


def test_destroyed_node_is_replaced(nodes):
    assert nodes.json("up")["leader"] in range(NODES)
    job = train(nodes, "--replace-nodes")
    before = wait_protected(nodes, job, 2)["committed"]["step"]
    nodes.json("inject", "kill-node", "--node", 2)
    restored = wait_restored(job, attempt=1)
    assert min(restored) == max(restored) >= before
    wait_protected(nodes, job, restored[0] + 1)
    (end,) = job.events("attempt-end")
    assert end["signal"] == signal.SIGKILL
    for node in range(NODES):
        assert REFUSAL not in log_of(nodes, node)


def test_no_plaintext(nodes):
    address = nodes.up["meta"]["address"]
    lose_node_3(nodes)
    with started(nodes, "--nodes", NODES, "--data-chunks", 2, "--parity-chunks", 2,
                 "--meta-endpoints", address, "--insecure"):
        wait_logged(nodes, 3, f"meta store {address}: ", "or only by TLS")
        assert not nodes.status()["members"][3]["present"]


class started:
    """unreftd of node 3 with words of the test's, as long as the context lasts."""

    def __init__(self, cli, *words):
        self._directory = cli.run_dir / "node3"
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._command = [BIN_DIR / "unreftd", "--job", cli.job, "--node", 3, "--run-dir",
                         self._directory, *words]

    def __enter__(self):
        with open(self._directory / "unreftd.log", "ab") as log:
            self.process = subprocess.Popen(list(map(str, self._command)), stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()


class TestCertificateOfAnother:
    def test_job(self, nodes, ours, tmp_path):
        other = Certificates(tmp_path / "other", "another-job", ours)
        nodes.json("inject", "kill-node", "--node", 3)
        ours.take(other, "node3")
        nodes("up", "--node", 3, code=1)
        assert "is for [unreft://job/another-job]" in nodes.stderr
        assert f"not for unreft://job/{nodes.job}" in nodes.stderr

    def test_authority(self, nodes, ours, theirs):
        nodes.json("inject", "kill-node", "--node", 3)
        ours.take(theirs, "node3")
        nodes("up", "--node", 3, code=1)
        assert str(ours.file("node3.pem")) in nodes.stderr
        assert f"does not verify by the authorities of '{ours.file('ca.pem')}'" in nodes.stderr

    def test_authority_at_the_meta_store(self, nodes, theirs):
        """The node trusts that authority, too: it is the others who do not."""
        lose_node_3(nodes)
        address = nodes.up["meta"]["address"]
        with started(nodes, "--nodes", NODES, "--data-chunks", 2, "--parity-chunks", 2,
                     "--meta-endpoints", address, *theirs.words("meta", "node3"),
                     *theirs.words("transport", "node3")):
            wait_logged(nodes, 3, f"meta store {address}: ", "the certificate of CN=meta, serial ",
                        "it was signed by CN=ours")
            assert not nodes.status()["members"][3]["present"]

    def test_authority_between_nodes(self, nodes, ours, theirs):
        lose_node_3(nodes)
        status = nodes.status()
        leader = status["members"][status["leader"]]["address"]
        address = nodes.up["meta"]["address"]
        with started(nodes, "--nodes", NODES, "--data-chunks", 2, "--parity-chunks", 2,
                     "--meta-endpoints", address, *ours.words("meta", "node3"),
                     *theirs.words("transport", "node3")):
            wait_logged(nodes, 3, REFUSAL, leader, f"the certificate of CN=node{status['leader']}",
                        "it was signed by CN=ours")


def test_tls_dir_must_be_whole(cli, ours):
    ours.file("meta.key").unlink()
    cli("up", "--nodes", NODES, "--tls-dir", ours.directory, code=1)
    assert str(ours.file("meta.key")) in cli.stderr
    cli("up", "--nodes", NODES, "--tls-dir", ours.directory / "none", code=2)


def test_tls_dir_is_of_several_nodes(cli, ours):
    cli("up", "--tls-dir", ours.directory, code=2)
    assert "several nodes" in cli.stderr


def test_supervised_processes_keep_their_files(cli, ours):
    up_nodes(cli, up_words=["--tls-dir", ours.directory, "--supervise"])
    cli("up", "--nodes", NODES, "--tls-dir", ours.directory.parent, code=1)
    assert f"TLS by {ours.directory}" in cli.stderr
    pid = cli.json("inject", "kill-meta")["pid"]
    killed = cli.json("inject", "kill-daemon", "--node", 1)["pid"]
    status = wait_status(cli, "both", lambda s: s["meta"]["pid"] not in (None, pid)
                         and s["members"][1]["pid"] not in (None, killed)
                         and all(member["present"] for member in s["members"]))
    assert status["view"] >= 1
    job = train(cli)
    wait_protected(cli, job, 1)
    job.interrupt()


def expiry_s(cli, node):
    (line,) = [line for line in cli("metrics", "--node", node).splitlines()
               if line.startswith("unreft_tls_certificate_expiry_seconds")]
    return float(line.split()[1])


def refused_files(cli, node):
    (line,) = [line for line in cli("metrics", "--node", node).splitlines()
               if line.startswith("unreft_tls_files_refused")]
    return float(line.split()[1])


def test_sighup_looks_at_the_files(cli, ours, theirs):
    """Bad ones are an error, by name, and the group goes on with those that it has."""
    up_nodes(cli, "--transport-tls-reload-s", 3600, up_words=["--tls-dir", ours.directory])
    wait_status(cli, "all nodes", lambda s: all(member["present"] for member in s["members"]))
    pid = cli.status()["members"][1]["pid"]
    assert 0 < expiry_s(cli, 1) < 3 * 86400 and refused_files(cli, 1) == 0
    ours.take(theirs, "node1")
    os.kill(pid, signal.SIGHUP)
    wait_logged(cli, 1, " error ", "transport_tls: the certificate", "it was signed by CN=theirs",
                "stays in use")
    wait_logged(cli, 1, " error ", "meta_tls: the certificate", "it was signed by CN=theirs")
    assert refused_files(cli, 1) == 1
    assert 0 < expiry_s(cli, 1) < 3 * 86400
    job = train(cli)
    wait_protected(cli, job, 1)
    job.interrupt()

    good = Certificates(ours.directory.parent / "next", cli.job, ours)
    ours.take(good, "node1")
    os.kill(pid, signal.SIGHUP)
    serial = subprocess.run(["openssl", "x509", "-in", ours.file("node1.pem"), "-noout", "-serial"],
                            check=True, capture_output=True, text=True).stdout.split("=")[1].strip()
    for side in ("transport_tls", "meta_tls"):
        wait_logged(cli, 1, " info ", f"{side}: the certificate", f"the serial {serial} is in use",
                    "valid until 20")
    assert refused_files(cli, 1) == 0
    assert cli.status()["members"][1]["pid"] == pid


def test_without_tls_nothing_expires(cli):
    cli("up")
    assert math.isnan(expiry_s(cli, 0)) and refused_files(cli, 0) == 0
