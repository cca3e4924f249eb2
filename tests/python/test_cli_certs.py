"""`unreft certs`: what it makes is what nodes, meta store and openssl take."""

import os
import stat
import subprocess

import pytest

from cluster_testing import NODES, train, up_nodes, wait_protected

WHO = ["meta", *(f"node{node}" for node in range(NODES))]


@pytest.fixture
def directory(cli, tmp_path):
    mask = os.umask(0)
    try:
        cli.made = cli.json("certs", tmp_path / "certs", "--nodes", NODES)
    finally:
        os.umask(mask)
    return tmp_path / "certs"


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def openssl(*words):
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True,
                          timeout=60).stdout


def test_a_group_talks_by_them(cli, directory):
    up_nodes(cli, up_words=["--tls-dir", directory])
    status = cli.json("status")
    assert all(member["address"].startswith("127.0.0.1:") for member in status["members"])
    job = train(cli)
    wait_protected(cli, job, 2)
    job.interrupt()


def test_files_and_modes(cli, directory):
    assert cli.made["made_authority"] and cli.made["made"] == WHO and cli.made["kept"] == []
    names = {f"{who}.{kind}" for who in ["ca", *WHO] for kind in ("pem", "key")}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {name: 0o600 if name.endswith("key") else 0o644 for name in names}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_openssl_agrees(cli, directory):
    for who in WHO:
        openssl("verify", "-x509_strict", "-CAfile", directory / "ca.pem", directory / f"{who}.pem")
        text = openssl("x509", "-in", directory / f"{who}.pem", "-noout", "-text")
        assert f"URI:unreft://job/{cli.job}" in text
        assert ("IP Address:127.0.0.1" in text) == (who == "meta")
        assert "CA:FALSE" in text


def test_again_it_makes_what_is_missing(cli, directory):
    before = contents(directory)
    (directory / "node1.key").unlink()
    again = cli.json("certs", directory, "--nodes", NODES + 1, "--host", "10.0.0.1", "--host",
                     "store.example")
    assert not again["made_authority"]
    assert again["made"] == ["node1", f"node{NODES}"]
    after = contents(directory)
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == {f"node{node}.{kind}" for node in (1, NODES) for kind in ("pem", "key")}
    cli("certs", directory, "--nodes", 1, "--renew", "--host", "10.0.0.1", "--host", "::1",
        "--host", "store.example")
    text = openssl("x509", "-in", directory / "meta.pem", "-noout", "-ext", "subjectAltName")
    for name in ("IP Address:10.0.0.1", "DNS:store.example", "IP Address:0:0:0:0:0:0:0:1"):
        assert name in text
    assert contents(directory)["ca.pem"] == before["ca.pem"]
    assert contents(directory)["node2.pem"] == before["node2.pem"]


def test_refusals(cli, directory, tmp_path):
    (directory / "ca.key").chmod(0o644)
    cli("certs", directory, "--nodes", 1, code=1)
    assert "ca.key" in cli.stderr
    (directory / "ca.key").unlink()
    cli("certs", directory, "--nodes", 1, code=1)
    assert "found the certificate alone" in cli.stderr
    cli("certs", tmp_path / "new", "--nodes", 1, "--host", "a,URI:unreft://job/other", code=2)
    assert "'a,URI:unreft://job/other'" in cli.stderr
    assert not (tmp_path / "new").exists()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    cli("certs", tmp_path / "open", "--nodes", 1, code=1)
    assert "others could put" in cli.stderr
