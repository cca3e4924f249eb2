"""`cmake --install` of the build that is there, and what is built against it: examples/cpp.

Its trainer finds the library by find_package and by pkg-config, is killed in the middle, and must
end as the one that nobody killed.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

import cli_testing
from cli_testing import Cli, wait_until

BUILD = cli_testing.BIN_DIR.parent
EXAMPLE = cli_testing.ROOT / "examples/cpp"
STEPS = 2000
TIMEOUT_S = 240


def said(*command, **environment):
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and "UNREFT" not in k}
    done = subprocess.run([str(word) for word in command], env={**kept, **environment}, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Installed in one place and moved to another: nothing may remember where it was."""
    directory = tmp_path_factory.mktemp("install")
    said("cmake", "--install", BUILD, "--prefix", directory / "made", "--strip")
    (directory / "made").rename(directory / "moved")
    yield directory / "moved"
    shutil.rmtree(directory)


def version_of_project():
    text = (cli_testing.ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(unreft VERSION ([0-9.]+)", text)[1]


def pkg_config(prefix, *words):
    return said("pkg-config", *words, "unreft",
                PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).split()


def test_one_version(prefix):
    version = version_of_project()
    package = {"PYTHONPATH": str(prefix / "lib/python")}
    assert said(prefix / "bin/unreft", "--version").split() == [version]
    assert pkg_config(prefix, "--modversion") == [version]
    printed = "import unreft; print(unreft.__version__)"
    assert said(sys.executable, "-c", printed, **package).split() == [version]
    assert said(sys.executable, "-m", "unreft", "--version", **package).split() == [version]


def test_it_says_its_version_in_one_place():
    sources = [path for top in ("src", "tools", "include", "integrations", "pyproject.toml")
               for path in [cli_testing.ROOT / top, *(cli_testing.ROOT / top).rglob("*")]
               if path.is_file() and path.suffix in (".cc", ".h", ".py", ".toml", ".txt")]
    assert len(sources) > 100
    literal = f'"{version_of_project()}"'
    assert [str(path) for path in sources if literal in path.read_text()] == []


def by_find_package(prefix, directory):
    said("cmake", "-S", EXAMPLE, "-B", directory, f"-DCMAKE_PREFIX_PATH={prefix}",
         "-DCMAKE_BUILD_TYPE=Release")
    said("cmake", "--build", directory)
    return directory / "trainer"


def by_pkg_config(prefix, directory):
    flags = pkg_config(prefix, "--cflags", "--libs")
    said("c++", "-std=c++20", "-O2", EXAMPLE / "trainer.cc", *flags, f"-Wl,-rpath,{prefix}/lib",
         "-o", directory / "trainer")
    return directory / "trainer"


class Installed(Cli):
    """The command of the installed tree."""

    def __init__(self, prefix):
        super().__init__()
        self.prefix = prefix

    def command(self, *words):
        return [str(self.prefix / "bin/unreft"), *super().command(*words)[1:]]

    def train_example(self, trainer):
        return self.launch("--up", "--ranks", 1, "--", trainer, STEPS)


def steps_of(job):
    """Of each step all sums that were printed, in the order in which they were."""
    printed = re.findall(r"^step (\d+) sum ([0-9a-f]+)$", job.output(), re.MULTILINE)
    return [(int(step), checksum) for step, checksum in printed]


@pytest.fixture
def installed(prefix):
    clis = [Installed(prefix), Installed(prefix)]
    yield clis
    for cli in clis:
        cli.close()


@pytest.mark.parametrize("build", [by_find_package, by_pkg_config])
def test_a_trainer_is_killed_and_ends_with_the_same_bits(prefix, installed, build, tmp_path):
    trainer = build(prefix, tmp_path)
    left_alone, killed = (cli.train_example(trainer) for cli in installed)
    wait_until("a commit", lambda: installed[1].status_or_nothing().get("committed"))
    os.kill(killed.pids()[0], signal.SIGKILL)
    assert left_alone.wait() == 0, left_alone.output()
    assert killed.wait() == 0, killed.output()

    reference = dict(steps_of(left_alone))
    assert list(reference) == list(range(1, STEPS + 1))
    again = steps_of(killed)
    # It went back, to a step that had been committed and not to the first.
    steps = [0, *(step for step, _ in again)]
    starts = [step for before, step in zip(steps, steps[1:]) if step != before + 1]
    assert all(step > 1 for step in starts)
    # It may have been killed between that step's snapshot and its line.
    unprinted = set(reference) - set(dict(again))
    assert unprinted <= {step - 1 for step in starts}
    reference = {step: sum_ for step, sum_ in reference.items() if step not in unprinted}
    assert dict(again) == reference  # of a step that was run twice, the second time
    assert set(again) == set(reference.items())  # and the first
    assert len(killed.events("attempt-start")) == 2


def test_the_example_is_short():
    lines = (EXAMPLE / "trainer.cc").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 45
