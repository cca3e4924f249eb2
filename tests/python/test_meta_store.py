"""`unreftd --role=meta`: the embedded meta store, asked by etcd's own command line."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

from cli_testing import BIN_DIR, wait_until


class MetaStore:
    """One store on one directory, through any number of lives."""

    def __init__(self, *words):
        self.run_dir = pathlib.Path(tempfile.mkdtemp(prefix="unreft_meta_"))
        self.words = words
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [BIN_DIR / "unreftd", "--role=meta", f"--run-dir={self.run_dir}",
             f"--log-file={self.run_dir}/log", *self.words])
        address = self.run_dir / "meta" / "address"
        wait_until("the address", address.exists)
        self.address = address.read_text().strip()
        if self.words:
            self.words = ("--insecure", f"--meta-listen={self.address}")

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(timeout=20)

    def close(self):
        if self.process and self.process.poll() is None:
            self.end(signal.SIGKILL)
        shutil.rmtree(self.run_dir)

    def command(self, *words):
        return ["etcdctl", f"--endpoints={self.address}", "--command-timeout=20s", *words]

    def __call__(self, *words, **options):
        return subprocess.run(self.command(*words), env={**os.environ, "ETCDCTL_API": "3"},
                              capture_output=True, text=True, timeout=30, check=True,
                              **options).stdout.split("\n")[:-1]


@pytest.fixture(params=[[], ["--insecure", "--meta-listen=127.0.0.1:0"]], ids=["unix", "tcp"])
def store(request):
    if not shutil.which("etcdctl"):
        pytest.skip("etcdctl is not installed (package etcd-client)")
    store = MetaStore(*request.param)
    store.start()
    yield store
    store.close()


def test_etcdctl_puts_gets_and_deletes(store):
    assert store("put", "a/1", "one") == ["OK"]
    assert store("put", "a/2", "two") == ["OK"]
    assert store("get", "a/", "--prefix") == ["a/1", "one", "a/2", "two"]
    assert store("get", "a/", "--prefix", "--keys-only", "--limit=1")[0] == "a/1"
    assert store("del", "a/1") == ["1"]
    assert store("get", "a/1") == []


def test_etcdctl_commits_a_txn(store):
    store("put", "k", "old")
    script = 'value("k") = "old"\nversion("k") > "0"\n\nput k new\nget k\n\nget k\n\n'
    assert [line for line in store("txn", input=script) if line] == ["SUCCESS", "OK", "k", "new"]
    assert [line for line in store("txn", input=script) if line] == ["FAILURE", "k", "new"]


def test_etcdctl_grants_keeps_and_revokes_a_lease(store):
    lease = store("lease", "grant", "60")[0].split()[1]
    store("put", "leased", "x", f"--lease={lease}")
    assert "keepalived" in store("lease", "keep-alive", "--once", lease)[0]
    assert store("get", "leased") == ["leased", "x"]
    assert "revoked" in store("lease", "revoke", lease)[0]
    assert store("get", "leased") == []


def test_etcdctl_watches_across_a_death_of_the_store(store):
    watch = subprocess.Popen(store.command("watch", "w/", "--prefix", "--rev=1"), text=True,
                             env={**os.environ, "ETCDCTL_API": "3"}, stdout=subprocess.PIPE)
    store("put", "w/1", "one")
    assert [watch.stdout.readline().strip() for _ in range(3)] == ["PUT", "w/1", "one"]
    store.end(signal.SIGKILL)
    (store.run_dir / "meta" / "address").unlink()
    store.start()
    store("del", "w/1")
    assert [watch.stdout.readline().strip() for _ in range(2)] == ["DELETE", "w/1"]
    watch.kill()
    watch.wait()


def test_one_process_per_directory_and_a_clean_end(store):
    second = subprocess.run([BIN_DIR / "unreftd", "--role=meta", f"--run-dir={store.run_dir}"],
                            capture_output=True, text=True, timeout=20)
    assert second.returncode == 1 and str(store.process.pid) in second.stderr
    assert store("put", "k", "v") == ["OK"]
    assert store.end(signal.SIGTERM) == 0
    assert not (store.run_dir / "meta" / "address").exists()
    store.start()
    assert store("get", "k") == ["k", "v"]
