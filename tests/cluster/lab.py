"""A cluster of this machine, brought up by the blocks of docs/cluster.md.

Four hosts and a spare on two networks, one for the job and one to its etcd: a member on `control`,
and others, where a test wants them, on hosts of their own. All of it ends with `close`, or with the
test's process.
"""

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile

import documents
from asking import ask_daemon
from namespaces import Host, Switch, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin").resolve()
PAGE = "cluster.md"
NODES = 4
SPARE = 4
JOB = "gpt"

# Of the interface and the bridge: who talks by it.
NETWORKS = {"job": "10.87.0", "store": "10.87.1"}
CONTROL = 2
FIRST_HOST = 10

# In the place of ssh's: the lab's hosts have disks, not daemons that would log somebody in.
SCP = """#!/bin/bash
set -eu
[ "$1" = -p ]
host=${!#%%:*} path=${!##*:}
[ -d LAB/"$host" ] && [ "$path" != "${path#LAB/disk}" ]
cp -p "${@:2:$#-2}" "LAB/$host${path#LAB/disk}"
"""


class Lab:
    def __init__(self, stores=1):
        """`stores`: the members of etcd."""
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-lab-"))
        self._switch = None
        self.hosts = []
        self.control = None
        self.stores = {}  # the hosts of etcd's members, by their names
        self.etcds = {}  # what runs there
        try:
            self._build(stores)
        except BaseException:
            self.close()
            raise

    def _build(self, stores):
        (self.directory / "disk").mkdir()
        names = {f"{NETWORKS['job']}.{CONTROL}": "control",
                 **{f"{NETWORKS['store']}.{CONTROL + n}": f"etcd{n}" for n in range(stores)}}
        for node in range(NODES + 1):
            names[f"{NETWORKS['job']}.{FIRST_HOST + node}"] = f"host{node}"
        names["127.0.0.1"] = "localhost"
        (self.directory / "hosts").write_text(
            "".join(f"{address} {name}\n" for address, name in names.items()))
        self._make_scp()
        self._switch = Switch(NETWORKS)
        self.control = self._host("control", CONTROL)
        self.stores["etcd0"] = self.control
        for n in range(1, stores):
            self.stores[f"etcd{n}"] = self._host(f"etcd{n}", CONTROL + n)
        self.hosts = [self._host(f"host{node}", FIRST_HOST + node) for node in range(NODES + 1)]

    def _make_scp(self):
        shim = self.directory / "bin" / "scp"
        shim.parent.mkdir()
        shim.write_text(SCP.replace("LAB", str(self.directory)))
        shim.chmod(0o755)

    def _host(self, name, number):
        path = [self.directory / "bin", BIN_DIR, pathlib.Path(sys.executable).parent,
                *os.environ["PATH"].split(":")]
        environment = {
            "PATH": ":".join(map(str, path)), "TMPDIR": "/run/tmp", "HOME": "/run/tmp",
            "LANG": "C.UTF-8", "ETCDCTL_API": "3", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH") or str(BIN_DIR.parent / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        host = Host(self.directory, self._switch, name, number, environment)
        (host.disk / "etc").mkdir()
        return host

    # --- what is set at the top of the documents' blocks ---

    @property
    def certs(self):
        return self.directory / "disk" / "certs"

    @property
    def etc(self):
        return self.directory / "disk" / "etc"

    def block(self, name, **values):
        return documents.script(PAGE, name, **values)

    # --- bringing up ---

    def bring_up(self):
        """As the page says, in its order."""
        for host in self.stores.values():
            host.boot()
        self.make_certificates()
        self.start_etcd()
        self.equip_hosts()
        for host in self.hosts[:NODES]:
            host.boot()
        for host in self.hosts[:NODES]:
            self.start_daemon(host)
        self.wait_members()

    def make_certificates(self):
        self.control.script(self.block("certificates", STORES=" ".join(self.stores),
                                       CERTS=self.certs))
        for host in self.stores.values():
            if host is not self.control:
                (host.disk / "certs").mkdir()
                for name in ("ca.pem", "meta.pem", "meta.key"):
                    shutil.copy2(self.control.disk / "certs" / name, host.disk / "certs")

    def start_etcd(self, certs=None, authority=None):
        certs = certs or self.certs
        self._etcd_files = certs, authority or certs / "ca.pem"
        for name in self.stores:
            self.start_member(name)
        wait_until("etcd", lambda: self.ask_etcd("endpoint", "health").returncode == 0)

    def start_member(self, name):
        certs, authority = self._etcd_files
        cluster = ",".join(f"{each}=https://{each}:2380" for each in self.stores)
        self.etcds[name] = self.stores[name].start("etcd", self.block(
            "etcd", NAME=name, CLUSTER=cluster, CERTS=certs, CA=authority,
            DATA=self.directory / "disk" / "etcd"))

    def stop_etcd(self):
        """By SIGKILL."""
        for name in self.stores:
            self.stop_member(name)

    def stop_member(self, name):
        self.etcds[name].signal_all()
        self.etcds[name].wait()

    def ask_etcd(self, *words):
        """Of all its members."""
        certs, authority = self._etcd_files
        files = [f"--cacert={authority}", f"--cert={certs}/meta.pem", f"--key={certs}/meta.key"]
        endpoints = ",".join(f"https://{name}:2379" for name in self.stores)
        return self.control.ask("etcdctl", f"--endpoints={endpoints}", *files,
                                "--command-timeout=5s", *words)

    def equip_hosts(self):
        self.control.script(self.block("hosts", STORES=" ".join(self.stores), CERTS=self.certs,
                                       ETC=self.etc))

    def start_daemon(self, host):
        host.script(self.block("daemon", ETC=self.etc))

    def start_spare(self):
        spare = self.hosts[SPARE]
        spare.boot()
        self.start_daemon(spare)
        self.wait_status("the spare", lambda s: [x["place"] for x in s["spares"]] == [SPARE])
        return spare

    # --- asking ---

    def unreft(self, host, *words, code=0):
        """The command as on that host, with its variables."""
        line = " ".join(f"'{word}'" for word in words)
        return host.script(f". {self.etc}/env\nunreft {line}", code=code)

    def ask_host(self, host, verb):
        """What that host's daemon says, or nothing if none answers."""
        if host.is_on:
            with contextlib.suppress(OSError, ValueError):
                return ask_daemon(host.path("/run/unreft/gpt/unreftd.sock"), verb)
        return {}

    def status(self):
        """What the daemons say of all nodes, by one that knows the leader's word, or nothing."""
        for host in self.hosts:
            answer = self.ask_host(host, "cluster")
            if answer and not answer["problem"]:
                return answer
        return {}

    def wait_status(self, what, accept, timeout_s=None):
        def ready():
            status = self.status()
            return status if status and accept(status) else None

        return wait_until(what, ready, *([timeout_s] if timeout_s else []))

    def wait_members(self):
        return self.wait_status("all nodes", lambda s: all(m["present"] and not m["lost"]
                                                           for m in s["members"]))

    def daemon_pid(self, host):
        return wait_until(f"the daemon of {host.name}",
                          lambda: self.ask_host(host, "status").get("pid"))

    def daemon_log(self, host):
        """As far as there is one."""
        log = host.is_on and host.path("/run/unreft/gpt/unreftd.log")
        return log.read_text() if log and log.exists() else ""

    # --- the end ---

    def close(self):
        for host in [*self.hosts, *self.stores.values(), self.control]:
            if host is not None:
                host.power_off()
        if self._switch is not None:
            self._switch.end()
        shutil.rmtree(self.directory)
