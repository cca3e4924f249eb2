"""What `make gpu-bundle` makes, on this machine: the parts that need no GPU, away from the build.

The figures of its run mean nothing here; that every part runs, restores the bytes that were saved
and says what failed is tested. The programs for a GPU are left out, they are not built by default.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
BUILD = BIN_DIR.parent
TRAINING = ROOT / "integrations/python/bench/training"
PROBE = pathlib.Path(__file__).with_name("core_probe.py")
TIMEOUT_S = 240
METHODS = ["unreft", "async_save_pinned", "async_save", "torch_save", "unreft_derived"]
sys.path.insert(0, str(TRAINING))

import gpt_large  # noqa: E402
import loop as loops  # noqa: E402
import memory  # noqa: E402
import torch  # noqa: E402


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bundle_run = load(ROOT / "tools/setup/gpu_bundle_run.py")


def environment(**more):
    """Ours without what points into the build."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and "UNREFT" not in k}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}


def run(*command, **more):
    return subprocess.run([str(word) for word in command], env=environment(**more), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Made in one place and copied to another, as by tar."""
    directory = tmp_path_factory.mktemp("bundle")
    made = run(ROOT / "tools/setup/gpu_bundle.sh", "--without-gpu-programs", BUILD,
               directory / "made")
    assert made.returncode == 0, made.stderr
    (directory / "said.txt").write_text(made.stdout)
    shutil.copytree(directory / "made", directory / "moved", symlinks=True)
    shutil.rmtree(directory / "made")
    yield directory / "moved"
    shutil.rmtree(directory)


def test_needs_nothing_but_the_system(bundle):
    said = (bundle.parent / "said.txt").read_text()
    assert "with nothing else but" in said or "may not make a user namespace" in said
    assert "needs: glibc 2." in said
    for binary in [*(bundle / "bin").iterdir(), *(bundle / "lib").iterdir()]:
        assert not binary.is_symlink()
    for binary in ("bin/unreftd", "bin/unreft", "lib/libunreft.so"):
        needs = run("ldd", bundle / binary)
        assert needs.returncode == 0 and needs.stdout, needs.stderr
        for line in needs.stdout.splitlines():
            name, _, where = line.strip().partition(" => ")
            assert where != "not found", line
            assert str(BUILD) not in line
            ours = where.startswith(str(bundle))
            system = name.startswith(("linux-vdso", "/lib64/ld-linux", "libc.", "libm.", "ld-linux",
                                      "libstdc++.", "libgcc_s.", "libdl.", "libpthread.", "librt.",
                                      "libresolv."))
            assert ours or system, line


def test_the_library_of_the_bundle_does_what_that_of_the_build_does(bundle):
    """Every call, its results and the text of its errors, with a daemon and without."""
    found = {}
    for name, package in (("build", BUILD / "python"), ("bundle", bundle / "python")):
        done = run(sys.executable, PROBE, BIN_DIR / "unreftd", PYTHONPATH=str(package))
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(done.stdout)
    assert len(found["bundle"]) > 20
    assert found["bundle"] == found["build"]
    assert found["build"]["committed"] is None and found["build"]["the bytes"]["n"] == 5


@pytest.mark.parametrize("version, fits", [((3, 9), False), ((3, 10), True), ((3, 13), True)])
def test_an_interpreter_that_does_not_fit_is_told(bundle, version, fits):
    code = f"import sys; sys.version_info = {version + (0,)}; import unreft"
    done = run(sys.executable, "-c", code, PYTHONPATH=str(bundle / "python"))
    assert (done.returncode == 0) == fits, done.stderr
    if not fits:
        assert "ImportError: unreft needs CPython 3.10 or later, found 3.9" in done.stderr


def test_a_library_that_is_not_there_or_cannot_be_loaded_is_named(bundle, tmp_path):
    package = tmp_path / "python"
    shutil.copytree(bundle / "python", package)

    def error():
        return run(sys.executable, "-c", "import unreft", PYTHONPATH=str(package)).stderr

    assert f"no libunreft.so: looked for {package / 'unreft/libunreft.so'}, " in error()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libunreft.so").write_bytes(b"no library")
    assert f"{tmp_path / 'lib/libunreft.so'} cannot be loaded on this machine: " in error()


def test_run_sh_refuses_an_old_interpreter(bundle, tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    for python, why in ((old, "needed CPython 3.10 or later, found 3.9"),
                        (tmp_path / "none", "no interpreter")):
        done = run(bundle / "run.sh", "--device", "cpu", UNREFT_PYTHON=str(python))
        assert done.returncode == 1 and why in done.stderr
        assert why in json.loads((bundle / "results.json").read_text())["failed"]


def test_run_sh_without_a_gpu(bundle, tmp_path):
    """All but the demo, which `make demo` runs."""
    out = tmp_path / "results.json"
    done = run(bundle / "run.sh", "--device", "cpu", "--parts", "suite", "copies", "checksum",
               "fault", "training", "--out", out, UNREFT_PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())
    assert results["complete"]
    assert list(results["parts"]) == ["suite", "copies", "checksum", "fault", "training"]
    for part in ("suite", "copies", "checksum", "fault"):
        assert "not in this bundle" in results["parts"][part]["left_out"]
    figures = results["parts"]["training"]["figures"]
    assert figures["complete"] and figures["peaks"] is None
    assert [mode["mode"] for mode in figures["modes"]] == METHODS
    for mode in figures["modes"]:
        assert "failed" not in mode and mode["restored_equal"]
        assert mode["bytes"] == figures["state_bytes"]
        assert mode["snapshots_started"] <= mode["snapshots_asked"] == mode["steps"]
        assert mode["step_ratio"] > 0 and mode["restore_s"] > 0
        for name in ("step_s", "step_without_s", "host_blocked_by_fence_ms"):
            assert mode[name]["p10"] <= mode[name]["median"] <= mode[name]["p90"]
    # Of weights that follow from their masters nothing is captured but digests.
    whole, derived = (figures["modes"][i]["captured_bytes"] for i in (0, -1))
    assert whole >= figures["state_bytes"]
    assert 1.8 * figures["parameters"] < whole - derived < 2.2 * figures["parameters"]
    assert not figures["modes"][-1]["not_derived"]
    # 14 bytes a parameter; Adam's step counts and the model's buffers are small.
    assert 0 < figures["state_bytes"] - 14 * figures["parameters"] < 4096
    assert {(row["met"], row["because"]) for row in results["targets"]} == {(None, "not on a GPU")}
    job = results["parts"]["training"]["job"]
    assert not list(pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"))


def test_a_comparison_that_does_not_fit_is_refused_with_numbers():
    gib = memory.GIB
    needed = memory.needs(10 * gib, 10 * gib // 14, gib, on_device=True, files_in_shm=True)
    assert needed.shm == int(3 * 10 * gib * 1.01) and needed.files == 10 * gib
    assert needed.host == needed.shm + memory.PROCESS_BYTES
    said = []
    enough = memory.Found(needed.shm, needed.host, needed.device, needed.files)
    memory.require(needed, enough, 1000, said.append)
    assert said[0] == "memory: /dev/shm: needed 30.3 GiB, found 30.3 GiB" and len(said) == 4
    less = memory.Found(needed.shm // 2, needed.host, needed.device, needed.files)
    with pytest.raises(memory.DoesNotFit) as refused:
        memory.require(needed, less, 1000, said.append)
    message = "/dev/shm: needed 30.3 GiB, found 15.1 GiB; about --parameters 449 would fit"
    assert str(refused.value) == message
    # On the CPU the training itself is in host memory, and no device is looked at.
    host = memory.needs(10 * gib, 10 * gib // 14, gib, on_device=False, files_in_shm=False)
    assert host.device == 0 and host.host > needed.shm + 20 * gib
    assert len(memory.table(host, memory.Found(0, 0, None, 0))) == 3


@pytest.mark.parametrize("parameters", [60_000, 10**6, 10**8, 10**9, 3 * 10**9])
def test_a_model_has_at_least_the_parameters_asked_for(parameters):
    config = gpt_large.shape_for(parameters)
    # Small ones have few layers, so a layer more is a large step.
    most = 1.7 if parameters < gpt_large.LARGE else 1.1
    assert parameters <= gpt_large.parameters_of(config) < most * parameters
    assert config.n_embd % config.n_head == 0
    if parameters < 10**7:
        model = gpt_large.gpt.GPT(config)
        assert sum(p.numel() for p in model.parameters()) == gpt_large.parameters_of(config)


def test_master_weights_follow_adamw_in_fp32():
    torch.manual_seed(7)
    half = torch.nn.Parameter(torch.randn(64).bfloat16())
    whole = torch.nn.Parameter(half.detach().float())
    ours = gpt_large.MasterAdamW([half])
    group = {k: ours.param_groups[0][k] for k in ("lr", "betas", "eps", "weight_decay")}
    theirs = torch.optim.AdamW([whole], **group, fused=True)
    for _ in range(3):
        half.grad = torch.randn(64).bfloat16()
        whole.grad = half.grad.float()
        ours.step()
        theirs.step()
    state = ours.state[half]
    assert torch.equal(state["master"], whole) and torch.equal(half, whole.bfloat16())
    assert state["step"] == 3 and state["exp_avg"].dtype == torch.float32


def test_quantiles():
    assert loops.spread([]) is None
    assert loops.spread([3, 1, 2]) == {"median": 2, "p10": 1.2, "p90": 2.8}


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A run of bundle_run whose machine is not looked at."""
    monkeypatch.setattr(bundle_run, "host", lambda: {})
    monkeypatch.setattr(bundle_run, "PYTHON_DIR", tmp_path)
    monkeypatch.setattr(bundle_run, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--device", "cpu", "--out", str(tmp_path / "r")])
    return bundle_run.Run(bundle_run.parse_args())


def test_a_part_that_hangs_is_ended_and_named(parts, tmp_path, monkeypatch):
    script = tmp_path / "bench/training/compare.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setitem(bundle_run.LIMITS_S, "training", 1)
    monkeypatch.setattr(bundle_run, "SLACK_S", 0)
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(bundle_run.subprocess, "Popen", Popen)
    assert parts._part("training")["failed"].startswith("not done after 1 s: ")
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_a_part_that_fails_is_named_and_the_others_run(parts, tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/demo.py").write_text("print('x')\nprint('DEMO FAILED seed=1: why')\n")
    parts.args.parts = ["training", "demo", "suite"]
    assert parts.all_parts() == 1
    results = json.loads((tmp_path / "r").read_text())
    found = results["parts"]
    assert results["complete"]
    assert "can't open file" in found["training"]["failed"]
    assert found["demo"]["failed"] == "DEMO FAILED seed=1: why"
    assert "left_out" in found["suite"]


def test_no_time_left_is_a_failure(parts):
    parts.end = 0.0
    assert "no time left" in parts._part("demo")["failed"]


def ours(**more):
    blocked = {"median": 0.4}
    return {"mode": "unreft", "bytes": 14e9, "step_ratio": 1.004, "capture_gb_s": 50.0,
            "snapshots_asked": 21, "snapshots_started": 21, "snapshots": {"given_up": 0},
            "restore_gb_s": 40.0, "host_blocked_by_snapshot_ms": blocked,
            "host_blocked_by_fence_ms": blocked, **more}


def verdicts(**more):
    training = {"modes": [ours(**more)], "peaks": {"d2h_gb_s": 52.0, "h2d_gb_s": 50.0}}
    rows = bundle_run.targets({
        "copies": {"figures": {"capture_of_peak": 0.96, "restore_of_peak": 0.89}},
        "training": {"figures": training},
        "demo": {"bit_exact": True},
    })
    return [row["met"] for row in rows], [row.get("because") for row in rows]


def test_targets():
    met, _ = verdicts()
    assert met == [True, True, True, True, False, False, True, None, None]
    # Faster because snapshots were skipped or given up is not met.
    for less in ({"snapshots_started": 20}, {"snapshots": {"given_up": 1}}):
        met, because = verdicts(**less)
        assert not met[2] and "of 21 snapshots" in because[2]
    assert not verdicts(step_ratio=1.006)[0][2]
    assert not verdicts(host_blocked_by_fence_ms={"median": 0.7})[0][3]
    assert not verdicts(bytes=1e9)[0][3]
    assert [row["met"] for row in bundle_run.targets({})] == [None] * 9


@pytest.mark.parametrize("part, met", [
    ({"figures": {"wrong": ""}}, True),
    ({"figures": {"wrong": "1 bytes at 0: found 1, needed 2"}, "failed": "exit code 1"}, False),
    ({"failed": "not done after 120 s: "}, None),
])
def test_target_of_checksums(part, met):
    assert bundle_run.targets({"checksum": part})[7]["met"] == met


FAULT = {"own_error": 700, "own_error_name": "cudaErrorIllegalAddress", "committed": 1,
         "said": "CUDA error 700 of a kernel of the training job, seen at waiting for a copy",
         "second_committed": False}
RESUMED = {"restored": 1, "equal": True}


@pytest.mark.parametrize("fault, resumed, why", [
    ({}, {}, ""),
    ({"own_error": 0, "own_error_name": "cudaSuccess"}, {}, "the job read error cudaSuccess"),
    ({"said": "CUDA error 700 of a kernel, of the training job or one of 1"}, {}, "whose error"),
    ({"second_committed": True}, {}, "step 1 is committed"),
    ({"committed": 2**64 - 1}, {}, "is committed, needed 1"),
    ({}, {"restored": 2}, "step 2 was restored"),
    ({}, {"equal": False}, "equal: False"),
])
def test_what_is_wrong_after_a_fault_of_the_job(fault, resumed, why):
    found = bundle_run.wrong_with({**FAULT, **fault}, {**RESUMED, **resumed})
    assert why in found and bool(why) == bool(found)


@pytest.mark.skipif(not (BUILD / "gpu/unreft_gpu_job_fault").exists(), reason="built without nvcc")
def test_a_fault_of_the_job_on_the_fake_runtime(bundle, tmp_path):
    """Its own error is the job's, its version is given up, the one before is restored."""
    faked = tmp_path / "bundle"
    shutil.copytree(bundle, faked)
    shutil.copy(BUILD / "gpu/unreft_gpu_job_fault", faked / "bin")
    shutil.copy(BUILD / "fakecuda/libcudart.so.13", faked / "lib")
    out = tmp_path / "results.json"
    done = run(faked / "run.sh", "--device", "cpu", "--parts", "fault", "--out", out,
               UNREFT_PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    part = json.loads(out.read_text())["parts"]["fault"]
    assert "failed" not in part and part["fault"]["committed"] == 1
    assert "(said by the fake) of a kernel of the training job" in part["fault"]["said"]
    assert part["resume"] == {"restored": 1, "equal": True}
