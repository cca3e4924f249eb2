"""A Slurm of four nodes on this machine: hosts as namespaces, munge, slurmctld, a slurmd on each.

The hosts are those of tests/cluster/namespaces.py: network, processes, /run and /dev/shm of their
own, a disk of their own at DIRECTORY/disk, and DIRECTORY/shared, which all have. All of it ends
with `close`, or with the test's process.
"""

import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/cluster"))
import namespaces  # noqa: E402
from namespaces import Host, Switch, wait_until  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin").resolve()
PACKAGES = "slurmctld slurmd slurm-client munge"
TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
NODES = 4
CPUS = 4  # of each, as Slurm is told: two jobs fit on one
NETWORK = "job"
PREFIX = "10.88.0"
CONTROL = 2
FIRST_NODE = 10

CONFIG = """\
ClusterName=unreft
SlurmctldHost=control
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=2
StateSaveLocation={directory}/disk/state
SlurmdSpoolDir={directory}/disk/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
MpiDefault=none
NodeName=n[0-{last}] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""


def missing():
    """Why there can be no Slurm on this machine, or nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}. Debian has them: apt-get install {PACKAGES}"
    return namespaces.missing()


class Machines:
    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-slurm-"))
        self.shared = self.directory / "shared"
        self._switch, self.control, self.nodes = None, None, []
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self):
        for name in ("disk", "shared"):
            (self.directory / name).mkdir()
        self.shared.chmod(0o700)
        names = {f"{PREFIX}.{CONTROL}": "control", "127.0.0.1": "localhost",
                 **{f"{PREFIX}.{FIRST_NODE + n}": f"n{n}" for n in range(NODES)}}
        (self.directory / "hosts").write_text(
            "".join(f"{address} {name}\n" for address, name in names.items()))
        (self.shared / "slurm.conf").write_text(
            CONFIG.format(directory=self.directory, last=NODES - 1, cpus=CPUS))
        key = self.shared / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._switch = Switch({NETWORK: PREFIX})
        self.control = self._host("control", CONTROL)
        self.nodes = [self._host(f"n{n}", FIRST_NODE + n) for n in range(NODES)]
        self._start(self.control, "slurmctld", "exec slurmctld -D")
        for node in self.nodes:
            self.start_node(node)
        self.wait_idle()

    def _host(self, name, number):
        path = [BIN_DIR, pathlib.Path(sys.executable).parent, *os.environ["PATH"].split(":")]
        environment = {
            "PATH": ":".join(map(str, path)), "HOME": "/run/tmp", "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.shared / "slurm.conf"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH") or str(BIN_DIR.parent / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        host = Host(self.directory, self._switch, name, number, environment)
        for part in ("state", "spool"):
            (host.disk / part).mkdir()
        return host

    def _start(self, host, name, script):
        host.boot()
        host.script(f"""
          mkdir -m 755 /run/munge
          munged --key-file={self.shared}/munge.key --log-file=/run/munge/log \\
            --seed-file=/run/munge/seed""")
        return host.start(name, script)

    def start_node(self, node):
        self._start(node, "slurmd", f"exec slurmd -D -N {node.name}")

    def ask(self, *words, code=0):
        """A command of Slurm's, as a user on the control host."""
        return self.control.run(*words, code=code)

    def drain(self, node):
        self.ask("scontrol", "update", f"nodename={node.name}", "state=drain", "reason=disk")

    def resume(self, node):
        self.ask("scontrol", "update", f"nodename={node.name}", "state=resume")

    def mend(self):
        """All nodes are there for the next test."""
        for node in self.nodes:
            if not node.is_on:
                self.start_node(node)
            if "DRAIN" in self.ask("scontrol", "-o", "show", "node", node.name):
                self.resume(node)
        self.wait_idle()

    def wait_idle(self):
        wait_until("all nodes to be idle", lambda: self.ask("sinfo", "-h", "-o", "%T %D") ==
                   f"idle {NODES}\n")

    def close(self):
        for host in [*self.nodes, self.control]:
            if host is not None:
                host.power_off()
        if self._switch is not None:
            self._switch.end()
        shutil.rmtree(self.directory)
