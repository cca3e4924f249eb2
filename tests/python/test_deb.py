"""The Debian package of the build that is there, on a system of its own: this one, overlaid.

Installed by dpkg in a chroot, where systemd reads the unit, and what the unit starts runs as the
unit's user: a job is kept, and there after a restart. Nothing of it outlives the test's namespace.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import textwrap

import pytest

import cli_testing

BUILD = cli_testing.BIN_DIR.parent
UNIT = cli_testing.ROOT / "packaging/systemd/unreftd@.service"
TOOLS = ("unshare", "chroot", "setpriv", "dpkg", "dpkg-shlibdeps", "file", "systemd-analyze")
TIMEOUT_S = 240


def _missing():
    if os.geteuid() != 0:
        return "needs root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"lacks {', '.join(lacking)}"
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-ec",
         "mount -t tmpfs t /mnt; mkdir /mnt/u /mnt/w /mnt/m; "
         "mount -t overlay o -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/m"],
        capture_output=True, text=True)
    return f"no overlay of /: {tried.stderr.strip()}" if tried.returncode else None


pytestmark = pytest.mark.skipif(_missing() is not None, reason=f"deb: {_missing()}")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deb")
    pack = cli_testing.ROOT / "tools/setup/deb.sh"
    done = subprocess.run([pack, BUILD, directory], text=True,
                          capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = directory.glob("*.deb")
    yield made
    shutil.rmtree(directory)


def inside(directory, package, script):
    """Runs a script in a chroot that has the package beside what this system has."""
    (directory / "script").write_text(textwrap.dedent(script))
    enter = textwrap.dedent("""
        mount -t tmpfs tmpfs "$1"
        mkdir "$1/upper" "$1/work" "$1/root"
        mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
        mount -t proc proc "$1/root/proc"
        mount --rbind /dev "$1/root/dev"
        mount -t tmpfs tmpfs "$1/root/dev/shm"
        mount -t tmpfs tmpfs "$1/root/run"
        mkdir "$1/root/deb"
        cp "$2" "$1/root/deb/unreft.deb"
        cp "$3" "$1/root/deb/script"
        exec chroot "$1/root" sh -eu /deb/script
    """)
    mounts = directory / "system"
    mounts.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", enter, "sh",
         mounts, package, directory / "script"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, stdin=subprocess.DEVNULL, text=True,
        capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_needs_what_its_programs_link(package):
    depends = subprocess.run(["dpkg-deb", "-f", package, "Depends"], text=True,
                             capture_output=True, check=True).stdout
    for needed in ("adduser", "libisal2", "libgrpc++1", "librocksdb", "libprotobuf"):
        assert needed in depends, depends


def exec_start(job):
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    return line.replace("%i", job)


def test_the_unit_starts_a_daemon_that_comes_back(tmp_path, package):
    start = exec_start("train")
    said = inside(tmp_path, package, f"""
        dpkg -i /deb/unreft.deb >/deb/dpkg.log 2>&1 || {{ cat /deb/dpkg.log; exit 1; }}
        systemd-analyze verify /lib/systemd/system/unreftd@train.service 2>&1 && echo verified
        sed 's/^WatchdogSec=30/WatchdogSec=often/' /lib/systemd/system/unreftd@.service \
            >/lib/systemd/system/unreftbad@.service
        systemd-analyze verify /lib/systemd/system/unreftbad@train.service 2>&1 |
            grep -q 'unreftbad.*Failed to parse' && echo a bad unit is noticed
        [ "$(id -u unreft)" -lt 1000 ] && echo system user
        cp /usr/share/doc/unreft/examples/example.toml /etc/unreft/train.toml
        install -d -o unreft -g unreft -m 0700 /var/lib/unreft /var/lib/unreft/train
        user="setpriv --reuid unreft --regid unreft --init-groups"
        for start in 1 2; do
            $user {start} 2>/deb/log$start &
            daemon=$!
            for i in $(seq 200); do
                $user unreft status --job train --run-dir /var/lib/unreft/train \\
                    --json >/deb/status 2>&1 && break
                sleep 0.1
            done
            cat /deb/log$start
            echo "$start: $(grep '"incarnation"' /deb/status)"
            kill $daemon
            wait $daemon && echo "$start: ended by 0"
        done
        ls /dev/shm | sed 's/^/shm: /'
        dpkg -r unreft >/dev/null
        test ! -e /usr/bin/unreftd && id unreft >/dev/null && echo removed
        dpkg -P unreft >/dev/null
        test -d /var/lib/unreft/train && echo the state stays
    """)
    for line in ("verified", "a bad unit is noticed", "system user", "1: ended by 0",
                 "2: ended by 0", "removed", "the state stays"):
        assert line in said.splitlines(), said
    assert "shm: unreft.train.0" in said, said
    first, second = re.findall(r'^[12]:  *"incarnation": "(\w+)"', said, re.MULTILINE)
    assert first == second, "the memory of the first is the second's"


def test_the_unit_is_that_of_the_documents():
    text = (cli_testing.ROOT / "docs/operations.md").read_text()
    assert str(UNIT.relative_to(cli_testing.ROOT)) in text
    assert shlex.split(exec_start("JOB"))[0] == "/usr/bin/unreftd"


def test_the_example_names_options():
    example = cli_testing.ROOT / "packaging/systemd/example.toml"
    lines = [line.lstrip("# ") for line in example.read_text().splitlines() if " = " in line]
    names = [line.split(" = ")[0] for line in lines]
    known = subprocess.run([cli_testing.BIN_DIR / "unreftd", "--help"], text=True,
                           capture_output=True, check=True).stdout
    assert len(names) > 5
    assert [name for name in names if f"--{name.replace('_', '-')} " not in known] == []
