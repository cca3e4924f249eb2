"""Who can reach the nodes and the meta store of a job: this user alone, unless asked otherwise."""

import errno
import os
import pathlib
import re
import socket
import subprocess

import pytest

from cli_testing import BIN_DIR
from cluster_testing import NODES, pids_of, train, up_nodes, wait_protected

ANOTHER = 65533  # a user of whom nothing here is


@pytest.fixture
def nodes(cli):
    return up_nodes(cli)


def errno_of_connect(path, user):
    """Of that user's attempt to connect; 0 if it got through."""
    child = os.fork()
    if child == 0:
        result = 255
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as stranger:
                result = stranger.connect_ex(str(path))
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def listening_ports(pid):
    """The TCP ports on which the process listens."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(fd)))
        except FileNotFoundError:
            continue
    ports = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def addresses_of(status):
    return [member["address"] for member in status["members"]] + [status["meta"]["address"]]


def test_another_user_connects_neither_to_nodes_nor_to_the_meta_store(nodes):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    status = nodes.status()
    for pid in [*pids_of(status), status["meta"]["pid"]]:
        assert listening_ports(pid) == []
    paths = [pathlib.Path(address.removeprefix("unix:")) for address in addresses_of(status)]
    for path in paths:
        assert errno_of_connect(path, os.geteuid()) == 0
        assert errno_of_connect(path, ANOTHER) == errno.EACCES, path
    # Not by the directory's mode alone.
    for directory in {nodes.run_dir, *(path.parent for path in paths)}:
        directory.chmod(0o755)
    for path in paths:
        assert errno_of_connect(path, ANOTHER) == errno.EACCES, path


def test_a_killed_daemon_and_store_come_back_where_they_were(nodes):
    before = addresses_of(nodes.status())
    nodes.json("inject", "kill-daemon", "--node", 1)
    nodes.json("inject", "kill-meta")
    for address in (before[1], before[-1]):
        assert pathlib.Path(address.removeprefix("unix:")).is_socket(), "nothing stale is tested"
    nodes("up")
    assert addresses_of(nodes.status()) == before
    job = train(nodes)
    wait_protected(nodes, job, 1)
    job.interrupt()


SEVERAL = ["--nodes=2", "--data-chunks=1", "--parity-chunks=1"]


@pytest.mark.parametrize("words, subject", [
    (["--role=meta", "--meta-listen=127.0.0.1:0"], "meta_listen: '127.0.0.1:0'"),
    (["--role=meta", "--meta-listen=0.0.0.0:2379"], "meta_listen: '0.0.0.0:2379'"),
    ([*SEVERAL, "--meta-endpoints=127.0.0.1:1"], "meta_endpoints: '127.0.0.1:1'"),
    ([*SEVERAL, "--meta-endpoints=unix:{run_dir}/meta.sock", "--transport-listen=127.0.0.1:0"],
     "transport_listen: '127.0.0.1:0'"),
    ([*SEVERAL, "--meta-endpoints=unix:{run_dir}/meta.sock", "--transport-listen=10.0.0.1:4400"],
     "transport_listen: '10.0.0.1:4400'"),
])
def test_tcp_without_certificates_is_refused_by_name(cli, words, subject):
    command = [BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", cli.run_dir,
               *(word.format(run_dir=cli.run_dir) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    for text in (subject, "is TCP without TLS", "_tls_ca", "unix:/PATH", "--insecure"):
        assert text in done.stderr


def test_an_etcd_by_its_url_is_refused_by_name(cli):
    command = [BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", cli.run_dir, *SEVERAL,
               "--meta-endpoints=http://127.0.0.1:2379", "--insecure"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "without a scheme" in done.stderr


def metric(cli, node):
    return re.search(r"^unreft_insecure(?:{.*})? (\d)$", cli("metrics", "--node", node), re.M)[1]


def test_what_is_insecure_says_so(cli):
    up_nodes(cli, up_words=["--insecure"])
    assert cli.up["insecure"] is True
    assert "unreft: insecure: " in cli.stderr
    status = cli.status()
    assert status["insecure"] is True
    for node, member in enumerate(status["members"]):
        assert member["address"].startswith("127.0.0.1:")
        assert member["status"]["insecure"] is True
        assert "transport_listen 127.0.0.1:0" in member["status"]["insecure_why"]
        assert f"meta_endpoints {status['meta']['address']}" in member["status"]["insecure_why"]
        assert metric(cli, node) == "1"
        assert f"node {node}: insecure: meta_endpoints" in cli("status")
        log = (cli.run_dir / f"node{node}" / "unreftd.log").read_text()
        assert re.search(r" warning .* insecure: meta_endpoints", log), log
    assert "insecure: meta_endpoints" in cli("status", "--node", 0)
    meta_log = (cli.run_dir / "meta.log").read_text()
    assert re.search(r" warning .* insecure: 127.0.0.1:", meta_log), meta_log
    cli("up")
    assert "unreft: insecure: " in cli.stderr, "at every start"


def test_what_is_not_insecure_says_nothing(nodes):
    assert nodes.up["insecure"] is False
    status = nodes.status()
    assert status["insecure"] is False
    for node, member in enumerate(status["members"]):
        assert member["status"]["insecure"] is False and member["status"]["insecure_why"] == ""
        assert metric(nodes, node) == "0"
    assert "insecure" not in nodes("status")
    nodes("up", "--insecure", code=1)
    assert "socket files" in nodes.stderr
    logs = [nodes.run_dir / "meta.log", *nodes.run_dir.glob("node*/unreftd.log")]
    assert len(logs) == NODES + 1
    for log in logs:
        assert "insecure" not in log.read_text()


def test_permission_alone_opens_nothing(cli):
    """Words for the daemons that are needed elsewhere do not make this job insecure."""
    up_nodes(cli, "--insecure")
    status = cli.status()
    assert status["insecure"] is False
    assert all(address.startswith("unix:") for address in addresses_of(status))


def test_insecure_is_of_several_nodes_and_not_beside_tls(cli, tmp_path):
    cli("up", "--insecure", code=2)
    assert "several nodes" in cli.stderr
    cli("up", "--nodes", NODES, "--insecure", "--tls-dir", tmp_path, code=2)
    assert "either --tls-dir or --insecure" in cli.stderr


def test_a_run_directory_too_long_for_sockets_is_named_before_anything_starts(cli):
    run_dir = cli.run_dir / ("d" * (107 - len(f"{cli.run_dir}//unreftd.sock")))
    command = [BIN_DIR / "unreft", "--job", cli.job, "--run-dir", run_dir, "up", "--nodes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    path = f"{run_dir}/node1/unreftd.sock"
    for text in (path, "at most 107 bytes", f"this one {len(path)}", "--run-dir"):
        assert text in done.stderr
    assert not run_dir.exists()
