"""The wheel, packed from the build that is there and tried in an empty environment.

Nothing of the build or of this environment is visible there: no torch, no NumPy, no variable.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import pytest

import cli_testing

WHEEL = cli_testing.ROOT / "tools/setup/wheel.sh"
TIMEOUT_S = 300

# A client without torch and without NumPy; a second life of it restores what the first one stored.
CLIENT = """
import ctypes, sys
import unreft
state = (ctypes.c_float * 1000)()
tensor = unreft.Tensor("w", unreft.Dtype.FLOAT32, (1000,), (0,), (1000,), ctypes.addressof(state))
with unreft.Client(rank=0, world=1, attempt=int(sys.argv[1])) as client:
    decision = client.restore_begin()
    if decision.restored:
        client.restore_read([tensor])
    print(decision.step, sum(state))
    client.register([tensor])
    client.fence()
    for at in range(1000):
        state[at] = at
    while not client.status().ready:
        pass
    assert client.snapshot(decision.step + 7)
    client.wait_committed(decision.step + 7)
"""


def run(*command, code=0, **more):
    kept = {k: v for k, v in os.environ.items() if "PYTHON" not in k and "UNREFT" not in k}
    done = subprocess.run([str(word) for word in command], env={**kept, **more}, text=True, cwd="/",
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    said = run(WHEEL, cli_testing.BIN_DIR.parent, directory, sys.executable)
    yield pathlib.Path(said.split()[-1])
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """The bin directory of an environment that has the wheel and nothing else."""
    directory = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", directory)
    run(directory / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
        "--disable-pip-version-check", wheel)
    yield directory / "bin"
    shutil.rmtree(directory)


def test_one_wheel_for_all_pythons(wheel):
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, python, abi) == ("unreft", "py3", "none")
    assert platform.startswith("manylinux_2_35_")
    packed = zipfile.ZipFile(wheel)
    names = packed.namelist()
    for path in ("_core.py", "_abi.py", "torch/__init__.py", "libunreft.so", "bin/unreft",
                 "bin/unreftd"):
        assert f"unreft/{path}" in names
    assert not [path for path in names if "__pycache__" in path or "/test" in path]
    about = packed.read(f"unreft-{version}.dist-info/METADATA").decode()
    assert "Requires-Python: >=3.10" in about
    assert "Provides-Extra: torch" in about
    needed = [line for line in about.splitlines() if line.startswith("Requires-Dist")]
    assert needed and all("extra ==" in line for line in needed)  # nothing without being asked


def test_a_first_run_in_an_empty_environment(empty):
    run_dir = tempfile.mkdtemp(prefix="unreft-")
    job = f"wheel{os.getpid()}"
    unreft = [empty / "unreft", "--job", job, "--run-dir", run_dir]
    try:
        version = run(*unreft, "--version").strip()
        code = "import unreft; print(unreft.version())"
        assert run(empty / "python", "-c", code).strip() == version
        assert "--spare" in run(empty / "unreftd", "--help")
        assert run(empty / "python", "-m", "unreft", "--version").strip() == version
        run(*unreft, "up")
        lines = run(*unreft, "up", "--print-env").replace("export ", "").splitlines()
        found_by = dict(line.split("=", 1) for line in lines)
        found_by = {name: value.strip("'\"") for name, value in found_by.items()}
        client = [empty / "python", "-c", CLIENT]
        assert run(*client, 0, **found_by).split() == ["0", "0.0"]
        assert run(*client, 1, **found_by).split() == ["7", "499500.0"]
        assert json.loads(run(*unreft, "--json", "status"))["committed"]["step"] == 14
    finally:
        run(*unreft, "down")
        shutil.rmtree(run_dir)
    assert not list(pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"))


def test_it_says_what_is_missing(empty):
    """One sentence each, which says what to do."""
    said = run(empty / "python", "-c", "import unreft.torch", code=1).splitlines()[-1]
    assert said.startswith("ImportError: unreft.torch needs PyTorch")
    assert "pip install 'unreft[torch]'" in said

    nowhere = "import unreft; unreft.Client(rank=0, world=1, attempt=0, connect_timeout_s=0.2)"
    said = run(empty / "python", "-c", nowhere, code=1).splitlines()[-1]
    assert "UNREFT_SOCKET" in said
    assert "unreft up" in said
    said = run(empty / "python", "-c", nowhere, code=1, UNREFT_SOCKET="/none/unreftd.sock")
    assert "/none/unreftd.sock" in said.splitlines()[-1]
    assert "unreft up" in said.splitlines()[-1]


def test_a_package_without_its_library(empty, tmp_path):
    """As of a source tree in which nothing was built."""
    sources = cli_testing.ROOT / "integrations/python/unreft"
    shutil.copytree(sources, tmp_path / "src/python/unreft",
                    ignore=shutil.ignore_patterns("__pycache__"))
    there = {"PYTHONPATH": str(tmp_path / "src/python")}
    for command in (["-c", "import unreft"], ["-m", "unreft"]):
        said = run(empty / "python", *command, code=1, **there).splitlines()[-1]
        assert said.startswith("ImportError: no libunreft.so: looked for")
        assert "`make programs`" in said and "`pip install .`" in said
