"""Hosts as namespaces: network, mount, pid, host name and, where asked for, clock of their own.

Nothing of a host is outside of its namespaces, and these end with the one process that holds them:
that ends when the test closes its standard input, and when the test dies, however it does.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import time
from signal import SIGCONT

TOOLS = ("ip", "unshare", "nsenter", "setpriv", "etcd", "etcdctl")
COMMAND_TIMEOUT_S = 240
SHM_BYTES = 256 << 20

# The first process of a pid namespace: bash reaps what loses its parent. It waits for the end of
# its standard input.
HOLD = "echo ready; while read -r _; do :; done"


def missing():
    """Why there can be no lab on this machine, or nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "mount",
                            "-t", "tmpfs", "none", "/run"], capture_output=True, text=True)
    return f"no right to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


def wait_until(what, ready, timeout_s=COMMAND_TIMEOUT_S):
    """What `ready` returns, as soon as it is true; no verdict depends on how soon that is."""
    deadline = time.monotonic() + timeout_s
    while not (result := ready()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)
    return result


class Namespaces:
    """Some namespaces and the process that holds them."""

    def __init__(self, words, script):
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *words, "--fork", "--kill-child",
             "bash", "-euc", f"{script}\n{HOLD}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "ready\n":
            self._holder.kill()
            raise AssertionError(f"no namespaces: {self._holder.communicate()[1]}")
        children = pathlib.Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def enter(self, *kinds):
        return ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in kinds)]

    def end(self):
        """Kills every process in them."""
        self._holder.kill()
        self._holder.communicate()


class Switch:
    """The networks between hosts: a bridge each, in a network namespace of their own."""

    def __init__(self, networks):
        self.networks = networks
        bridges = "".join(f"ip link add {name} type bridge forward_delay 0\n"
                          f"ip link set {name} up\n" for name in networks)
        self._namespaces = Namespaces(["--net"], bridges)

    def ip(self, *words):
        done = subprocess.run([*self._namespaces.enter("net"), "ip", *map(str, words)],
                              capture_output=True, text=True)
        assert done.returncode == 0, f"ip {words}: {done.stderr}"

    def plug(self, network, number, pid):
        """A cable from the network to the namespace of that process, as its interface `network`."""
        port = f"{network}{number}"
        self.ip("link", "add", port, "type", "veth", "peer", "name", network, "netns", pid)
        self.ip("link", "set", port, "master", network, "up")

    def unplug(self, network, number):
        subprocess.run([*self._namespaces.enter("net"), "ip", "link", "delete",
                        f"{network}{number}"], capture_output=True)  # or it went with its host

    def cut(self, network, number):
        """Nothing passes any more, and nobody is told: both ends stay up."""
        self.ip("link", "set", f"{network}{number}", "nomaster")

    def mend(self, network, number):
        self.ip("link", "set", f"{network}{number}", "master", network)

    def end(self):
        self._namespaces.end()


class Host:
    """A machine: its processes, its /dev/shm and /run, its name, and a disk that outlives it.

    `directory` is the lab's. Names are those of its file "hosts"; the host's disk is DIRECTORY/NAME
    from outside, and DIRECTORY/disk to its own processes.
    """

    def __init__(self, directory, switch, name, number, environment):
        self.name, self.number = name, number
        self.disk = directory / name
        self.disk.mkdir(exist_ok=True)
        self._directory, self._switch = directory, switch
        self._environment = environment
        self._namespaces = None

    def boot(self, clock_offset_s=0):
        """Without what was in memory before. Its clocks since boot differ by so much."""
        clock = ["--time", "--monotonic", str(clock_offset_s), "--boottime", str(clock_offset_s)]
        words = ["--net", "--mount", "--pid", "--uts", "--mount-proc"]
        self._kinds = ["net", "mount", "pid", "uts", *(["time"] if clock_offset_s else [])]
        self._namespaces = Namespaces([*words, *(clock if clock_offset_s else [])], f"""
          hostname {self.name}
          mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm
          mount -t tmpfs tmpfs /run
          mkdir /run/tmp
          mount --bind {self._directory}/hosts /etc/hosts
          mount --bind {self.disk} {self._directory}/disk""")
        self._switch_on()

    def _switch_on(self):
        self.run("ip", "link", "set", "lo", "up")
        for network, prefix in self._switch.networks.items():
            self._switch.plug(network, self.number, self._namespaces.pid)
            self.run("ip", "address", "add", f"{prefix}.{self.number}/24", "dev", network)
            self.run("ip", "link", "set", network, "up")

    @property
    def is_on(self):
        return self._namespaces is not None

    def power_off(self):
        """All its processes at once, and its memory; what they had written is on the disk."""
        if self._namespaces is not None:
            self._namespaces.end()
            self._namespaces = None
            for network in self._switch.networks:
                self._switch.unplug(network, self.number)

    def path(self, inside):
        """From outside, what is at that path to the host's processes."""
        return pathlib.Path(f"/proc/{self._namespaces.pid}/root{inside}")

    def command(self, *words):
        return [*self._namespaces.enter(*self._kinds), "--", *map(str, words)]

    def ask(self, *words, timeout_s=COMMAND_TIMEOUT_S):
        """A command to its end, however that is."""
        return subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=timeout_s, env=self._environment)

    def run(self, *words, code=0, timeout_s=COMMAND_TIMEOUT_S):
        """A command that ends with `code`, or one of these; its standard output."""
        done = self.ask(*words, timeout_s=timeout_s)
        codes = code if isinstance(code, tuple) else (code,)
        assert done.returncode in codes, (f"{self.name}: {' '.join(map(str, words))}: exit status "
                                         f"{done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def script(self, text, **how):
        return self.run("bash", "-euo", "pipefail", "-c", text, **how)

    def start(self, name, text):
        """A script in the background, its output in NAME.log on the disk."""
        with open(self.disk / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                self.command("setsid", "--wait", "bash", "-euo", "pipefail", "-c",
                             f"echo $$ >{self._directory}/disk/{name}.pid\n{text}"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment)
        return Started(self, name, process)

    def signal(self, pid, signal="KILL"):
        self.run("bash", "-c", f"kill -{signal} {pid}")

    def runs(self, pid):
        """Whether it does: one that has ended and was not waited for does not."""
        state = self.ask("bash", "-c", f"read -r _ _ state _ </proc/{pid}/stat && echo $state")
        return state.stdout.strip() not in ("", "Z", "X")

    def cut(self, *networks):
        for network in networks or self._switch.networks:
            self._switch.cut(network, self.number)

    def mend(self, *networks):
        for network in networks or self._switch.networks:
            self._switch.mend(network, self.number)


class Started:
    """A script in the background of a host; it ends with its host at the latest."""

    def __init__(self, host, name, process):
        self._host, self.name, self.process = host, name, process

    @property
    def log(self):
        return (self._host.disk / f"{self.name}.log").read_text()

    def signal_all(self, signal="KILL"):
        """Of its process group, as a terminal would."""
        pid = int((self._host.disk / f"{self.name}.pid").read_text())
        with contextlib.suppress(AssertionError):  # it has ended
            self._host.run("bash", "-c", f"kill -{signal} -- -{pid}")
        if signal == "CONT":
            self.process.send_signal(SIGCONT)  # nsenter stops with what it has started

    def wait(self, timeout_s=COMMAND_TIMEOUT_S):
        return self.process.wait(timeout_s)
