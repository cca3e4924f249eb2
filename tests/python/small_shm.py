"""A /dev/shm and a disk of given sizes, which a job's processes have to themselves."""

import contextlib
import os
import pathlib
import subprocess

import pytest
from cli_testing import Cli, wait_until


class SmallShm:
    """A mount namespace with a tmpfs of so many bytes in the place of /dev/shm; skips without the
    right to make one."""

    def __init__(self, size):
        mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && echo ready && exec sleep infinity"
        self._holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", mount], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            pytest.skip("no right to mount a tmpfs")
        self.directory = pathlib.Path(f"/proc/{self._holder.pid}/root/dev/shm")
        self.prefix = ["nsenter", "--mount", "--target", str(self._holder.pid),
                       f"--wd={os.getcwd()}", "--"]

    def free(self):
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def used(self):
        status = os.statvfs(self.directory)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def close(self):
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()


class SmallCli(Cli):
    """`unreft` in such a namespace."""

    def __init__(self, shm):
        super().__init__()
        self.shm = shm

    def command(self, *words):
        return [*self.shm.prefix, *super().command(*words)]

    def segments(self):
        return sorted(self.shm.directory.glob(f"unreft.{self.job}.*"))


@contextlib.contextmanager
def small_cli(size):
    shm = SmallShm(size)
    cli = SmallCli(shm)
    try:
        yield cli
    finally:
        cli.close()
        shm.close()


def fill(shm, spare=0):
    """Takes what is free but for so many bytes; the file that holds it."""
    file = shm.directory / "full"
    with open(file, "wb") as out:
        while (free := shm.free()) > spare:
            held = os.fstat(out.fileno()).st_size
            # Others may take some meanwhile.
            with contextlib.suppress(OSError):
                os.posix_fallocate(out.fileno(), held, free - spare)
    return file


def wait_free_again(shm, file):
    free = shm.free()
    file.unlink()
    wait_until("memory to be free again", lambda: shm.free() > free)


class SmallDisk:
    """A file system of so many bytes for a job's run directory, or one in it, as the namespace
    sees it."""

    def __init__(self, cli, size, name="."):
        self._cli = cli
        self._place = cli.run_dir / name
        self._place.mkdir(mode=0o700, exist_ok=True)
        self._mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs")
        self.directory = cli.shm.directory.parents[1] / self._place.relative_to("/")

    def free(self):
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def remount(self, how):
        self._mount("-o", f"remount,{how}")

    @contextlib.contextmanager
    def read_only(self):
        """For whoever opens a file from now on. A remount is refused while one is open for
        writing, as the daemon's lock always is."""
        self._mount("-o", "bind,ro", self._place)
        yield
        subprocess.run([*self._cli.shm.prefix, "umount", self._place], check=True)

    def _mount(self, *words):
        subprocess.run([*self._cli.shm.prefix, "mount", *words, self._place], check=True)
