"""The work of run.sh: each part with a limit of its own, everything into one results.json.

    suite     the copiers' tests on the GPU
    copies    the copier against the copy engine's peak
    checksum  checksums on the device against those of the CPU, and what they cost
    fault     a job whose own kernel writes out of bounds: whose error it is, what is restored
    training  a GPT with and without snapshots: this project, async_save, torch.save
    demo      a training job on the GPU, killed and resumed, against one that was left alone

results.json is written after each part. A part that fails or hangs is named in it with what it said
last; the others run all the same. "targets" says what was aimed at and whether it was met: null
where there is no figure.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PYTHON_DIR = HERE / "python"
NO_GPU = 77
NO_DEVICE = "no CUDA device"
TAIL_LINES = 15
STOP_TIMEOUT_S = 15
START_TIMEOUT_S = 20
LIMITS_S = {"suite": 45, "copies": 70, "checksum": 120, "fault": 45, "training": 300, "demo": 130}
PARTS = tuple(LIMITS_S)
SECONDS = 525  # all of them, which is less than the sum: few take what they may
SLACK_S = 15  # of a part's limit, for it to end by itself
HOST_BLOCK_BYTES_MIN = 12e9
SLOTS = 3.1  # of the state's bytes, in /dev/shm
STATE_BYTES_PER_PARAMETER = 14
IN_OWN_SHM = "UNREFT_BUNDLE_OWN_SHM"
ILLEGAL_ADDRESS = 700  # of cudaError_t

# What differs on a CPU: there it shows that everything runs, no figures.
SIZES = {
    "cuda": {
        "parameters": 1_000_000_000,
        "copies": [],
        "checksum": [],
        "checked": ["--modes", "unreft", "--rounds", "1"],
        "training": [],
        "demo": ["--size", "gpu", "--steps", "120", "--step-s-min", "0.1"],
    },
    "cpu": {
        "parameters": 60_000,
        "copies": [str(32 << 20), "2"],
        "checksum": [str(8 << 20), "1"],
        "checked": None,  # there is no device to compute them
        "training": ["--rounds", "1", "--steps", "2", "--baseline-steps", "1"],
        "demo": ["--size", "tiny", "--steps", "150", "--step-s-min", "0.15"],
    },
}


def say(text):
    print(f"run: {text}", flush=True)


class Failed(Exception):
    """Why a part failed."""


class Left(Exception):
    """Why a part was left out."""


class Run:
    def __init__(self, args):
        self.args = args
        self.logs = args.out.parent / "logs"
        self.logs.mkdir(exist_ok=True)
        self.end = time.monotonic() + args.seconds
        self.results = {"complete": False, "device": args.device, "host": host(), "parts": {}}
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(PYTHON_DIR),
            "PYTHONDONTWRITEBYTECODE": "1",
            "UNREFT_BIN_DIR": str(HERE / "bin"),
        }
        if args.device == "cpu":
            self.environment["OMP_NUM_THREADS"] = "1"

    def write(self):
        self.results["targets"] = targets(self.results["parts"])
        if self.args.device == "cpu":
            for row in self.results["targets"]:
                row |= {"met": None, "because": "not on a GPU"}
        unfinished = self.args.out.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.results, indent=1) + "\n")
        unfinished.replace(self.args.out)

    def all_parts(self):
        """The exit code."""
        self.write()
        for name in self.args.parts:
            say(f"{name} ...")
            self.results["parts"][name] = self._part(name)
            self.write()
            if name == "suite" and self.args.device == "cuda" and self._lacks_gpu():
                return NO_GPU
        self.results["complete"] = True
        self.write()
        return 1 if any("failed" in part for part in self.results["parts"].values()) else 0

    def _lacks_gpu(self):
        return self.results["parts"]["suite"].get("left_out") == NO_DEVICE

    def _part(self, name):
        begin = time.monotonic()
        limit = min(LIMITS_S[name], self.end - begin)
        part = {"limit_s": round(limit, 1)}
        try:
            if limit < SLACK_S:
                raise Failed(f"no time left of the {self.args.seconds} s of all parts")
            getattr(self, name)(part, limit)
        except Left as why:
            part["left_out"] = str(why)
        except Failed as error:
            part["failed"] = str(error)
        except (OSError, ValueError, KeyError) as error:
            part["failed"] = f"{type(error).__name__}: {error}"
        part["seconds"] = round(time.monotonic() - begin, 1)
        say(f"{name}: {part.get('failed') or part.get('left_out') or 'ok'} ({part['seconds']} s)")
        return part

    # The parts.

    def suite(self, part, limit):
        report = self.logs / "suite.json"
        report.unlink(missing_ok=True)
        arguments = [f"--gtest_output=json:{report}"]
        code = self._program("device_copier_gpu_test", arguments, limit, "suite")
        if code == NO_GPU:
            raise Left(NO_DEVICE)
        if report.exists():
            counts = json.loads(report.read_text())
            part["tests"] = counts["tests"]
            part["failures"] = counts["failures"] + counts["errors"]
        if code != 0:
            raise Failed(f"exit code {code}: {self._tail('suite')}")

    def copies(self, part, limit):
        self._figures("copies", "unreft_gpu_bench", [], part, limit)

    def checksum(self, part, limit):
        begin = time.monotonic()
        self._figures("checksum", "unreft_gpu_checksum_bench", [], part, limit)
        arguments = SIZES[self.args.device]["checked"]
        if arguments is None:
            return
        checked = part["training"] = {}
        left = limit - (time.monotonic() - begin)
        self._compare("checked", checked, left, arguments, UNREFT_DEVICE_CHECKSUM="1")

    def fault(self, part, limit):
        """Once without checksums on the device: with them the error may be theirs."""
        if not (HERE / "bin/unreft_gpu_job_fault").exists():
            raise Left("unreft_gpu_job_fault is not in this bundle")
        with daemon(self.environment, self.logs) as its:
            its["UNREFT_DEVICE_CHECKSUM"] = "0"
            for name in ("fault", "resume"):
                code = self._program("unreft_gpu_job_fault", [name], limit / 2, name, True, **its)
                if code == NO_GPU:
                    raise Left(NO_DEVICE)
                if code != 0:
                    raise Failed(f"{name}: exit code {code}: {self._tail(name)}")
                part[name] = json.loads((self.logs / f"{name}.json").read_text())
        if why := wrong_with(part["fault"], part["resume"]):
            raise Failed(why)

    def training(self, part, limit):
        self._compare("training", part, limit, SIZES[self.args.device]["training"])

    def _figures(self, name, program, arguments, part, limit):
        arguments = [*arguments, *SIZES[self.args.device][name]]
        code = self._program(program, arguments, limit, name, True)
        if code == NO_GPU:
            raise Left(NO_DEVICE)
        printed = (self.logs / f"{name}.json").read_text()
        if printed:
            part["figures"] = json.loads(printed)
        if code != 0:
            raise Failed(f"exit code {code}: {self._tail(name)}")

    def _compare(self, name, part, limit, arguments, **more):
        out = self.logs / f"{name}.json"
        out.unlink(missing_ok=True)
        job = part["job"] = f"gpubundle-{os.getpid()}"
        command = [sys.executable, PYTHON_DIR / "bench/training/compare.py", "--out", out]
        command += ["--device", self.args.device, "--parameters", self.args.parameters]
        command += ["--seconds", max(limit - 2 * SLACK_S, SLACK_S), "--job", job]
        command += arguments
        try:
            code = self._limited(name, command, limit, **more)
        finally:
            for segment in pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"):
                segment.unlink()
            if out.exists():
                part["figures"] = json.loads(out.read_text())
        if code != 0:
            figures = part.get("figures", {})
            why = [f"{mode['mode']}: {mode['failed']}" for mode in figures.get("modes", [])
                   if "failed" in mode]
            why = figures.get("refused") or figures.get("failed") or "; ".join(why)
            raise Failed(why or f"exit code {code}: {self._tail(name)}")

    def demo(self, part, limit):
        directory = self.logs / "demo"
        shutil.rmtree(directory, ignore_errors=True)
        command = [sys.executable, PYTHON_DIR / "examples/demo.py", "--device", self.args.device]
        command += ["--ranks", "1", "--faults", "4", "--keep", directory]
        command += ["--timeout-s", limit - SLACK_S, *SIZES[self.args.device]["demo"]]
        code = self._limited("demo", command, limit)
        lines = (self.logs / "demo.txt").read_text().splitlines()
        last = next((line for line in reversed(lines) if line.startswith("DEMO ")), "")
        part["last_line"] = last
        if code != 0 or not last.startswith("DEMO OK"):
            raise Failed(last or f"exit code {code}: {self._tail('demo')}")
        fields = dict(word.split("=", 1) for word in last.split() if "=" in word)
        part["bit_exact"] = fields["bit_exact"] == "yes"
        part["faults"] = int(fields["faults"])
        part["steps_lost_max"] = int(fields["steps_lost_max"])
        part["recovery_s"] = float(fields["recovery_s"])

    # Processes.

    def _program(self, name, arguments, limit, log, separate=False, **more):
        program = HERE / "bin" / name
        if not program.exists():
            raise Left(f"{name} is not in this bundle")
        return self._limited(log, [program, *arguments], limit, separate, **more)

    def _limited(self, name, command, limit, separate=False, **more):
        """The exit code; Failed when it takes too long. What it says goes to logs/NAME.txt, its
        standard output to logs/NAME.json if `separate`."""
        log = open(self.logs / f"{name}.txt", "wb")
        out = open(self.logs / f"{name}.json", "wb") if separate else log
        with log, out:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                env={**self.environment, **more}, cwd=HERE, start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                raise Failed(f"not done after {limit:.0f} s: {self._tail(name)}") from None
            finally:
                stop(process)

    def _tail(self, name):
        text = (self.logs / f"{name}.txt").read_text(errors="replace")
        return " | ".join(text.strip().splitlines()[-TAIL_LINES:])


def stop(process):
    """It and all of its group; first it may clean up after itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@contextlib.contextmanager
def daemon(environment, logs):
    """One of its own; what its trainers need to find it. Leaves nothing behind."""
    job = f"gpubundle-{os.getpid()}-fault"
    with tempfile.TemporaryDirectory(prefix="unreft-") as directory:
        log = open(logs / "daemon.txt", "wb")
        command = [HERE / "bin/unreftd", "--job", job, "--run-dir", directory]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env=environment, start_new_session=True)
        socket = pathlib.Path(directory) / "unreftd.sock"
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (logs / "daemon.txt").read_text(errors="replace")
                    raise Failed(f"no daemon: {said.strip()}")
                time.sleep(0.05)
            yield {"UNREFT_SOCKET": str(socket), "UNREFT_JOB": job}
        finally:
            stop(process)
            log.close()
            for segment in pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"):
                segment.unlink()


def wrong_with(fault, resume):
    """What is not as it has to be after a kernel of the job's that went wrong; "" if all is."""
    if fault["own_error"] != ILLEGAL_ADDRESS:
        return f"the job read error {fault['own_error_name']} of its kernel"
    if "of a kernel of the training job" not in fault["said"]:
        return f"whose error it is was not said: {fault['said']}"
    if fault["second_committed"] or fault["committed"] != 1:
        return f"step {fault['committed']} is committed, needed 1"
    if resume["restored"] != 1 or not resume["equal"]:
        return f"step {resume['restored']} was restored, equal: {resume['equal']}, needed step 1"
    return ""


# The machine.


def host():
    ctypes.CDLL(None).gnu_get_libc_version.restype = ctypes.c_char_p
    shm = os.statvfs("/dev/shm")
    return {
        "gpu": gpu(),
        "kernel": f"{platform.system()} {platform.release()}",
        "glibc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shm_bytes_free": shm.f_bavail * shm.f_frsize,
        "needs": (HERE / "needs.txt").read_text().splitlines(),
    }


def gpu():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max",
             "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip().splitlines()[0]


def check_host(found):
    """Failed, with the numbers, where the programs here cannot start."""
    needed = re.search(r"glibc ([0-9.]+)", " ".join(found["needs"]))[1]
    if _version(found["glibc"]) < _version(needed):
        raise Failed(f"needed glibc {needed} or later, found {found['glibc']}")
    for program in ("unreftd", "unreft"):
        tried = subprocess.run([HERE / "bin" / program, "--help"], capture_output=True, text=True)
        if tried.returncode != 0:
            raise Failed(f"bin/{program} does not start: {tried.stderr.strip()}")


def _version(text):
    return tuple(int(number) for number in text.split("."))


def in_larger_shm(args):
    """Runs all of this again where /dev/shm is large enough, if it is not; else returns.

    A container's is often 64 MiB. One of a mount namespace of our own changes nothing outside it.
    """
    needed = int(SLOTS * STATE_BYTES_PER_PARAMETER * args.parameters)
    disk = os.statvfs("/dev/shm")
    found = disk.f_bavail * disk.f_frsize
    if found >= needed or "training" not in args.parts or os.environ.get(IN_OWN_SHM):
        return
    numbers = f"/dev/shm has {found >> 20} MiB free, needed {needed >> 20}"
    mount = f"mount -t tmpfs -o mode=1777,size={needed + (1 << 30)} tmpfs /dev/shm"
    for more in ([], ["--user", "--map-root-user"]):
        namespace = ["unshare", "--mount", *more]
        try:
            tried = subprocess.run([*namespace, "sh", "-c", mount], capture_output=True, text=True)
        except OSError as error:
            say(f"{numbers}; {error}")
            return
        if tried.returncode == 0:
            say(f"{numbers}; runs in a mount namespace with one of its own")
            again = [sys.executable, __file__, *sys.argv[1:]]
            os.environ[IN_OWN_SHM] = "1"
            os.execvp(namespace[0], [*namespace, "sh", "-c", mount + ' && exec "$@"', "sh", *again])
    say(f"{numbers}; one of our own cannot be mounted: {tried.stderr.strip()}")


# The verdict.


def targets(parts):
    """What was aimed at, what was found, and whether it was met; null: there is no figure."""
    copies = parts.get("copies", {}).get("figures") or {}
    training = parts.get("training", {}).get("figures") or {}
    ours = next((m for m in training.get("modes", []) if m["mode"] == "unreft"), {})
    peaks = training.get("peaks") or {}
    demo = parts.get("demo", {})
    checksum = parts.get("checksum", {}).get("figures") or {}
    fault = parts.get("fault", {})
    blocked = [ours.get(f"host_blocked_by_{what}_ms") for what in ("snapshot", "fence")]
    rows = [
        ("capture, copier alone, of the pinned D2H peak", copies.get("capture_of_peak"), 0.95, ""),
        ("capture, whole client, of the pinned D2H peak",
         _ratio(ours.get("capture_gb_s"), peaks.get("d2h_gb_s")), 0.95, ""),
        ("step time with a snapshot a step, of that without",
         ours.get("step_ratio"), -1.005, _incomplete(ours)),
        ("host blocked by a snapshot and its fence, ms, median",
         sum(b["median"] for b in blocked) if all(blocked) else None, -1.0,
         "" if ours.get("bytes", 0) >= HOST_BLOCK_BYTES_MIN else
         f"of {ours.get('bytes', 0)} bytes, needed {HOST_BLOCK_BYTES_MIN:.0f}"),
        ("restore, copier alone, of the pinned H2D peak", copies.get("restore_of_peak"), 0.90, ""),
        ("restore, whole client, of the pinned H2D peak",
         _ratio(ours.get("restore_gb_s"), peaks.get("h2d_gb_s")), 0.90, ""),
        ("killed and resumed, bit for bit", _flag(demo.get("bit_exact")), 1, ""),
        ("checksums on the device that are those of the CPU, all",
         _flag(checksum.get("wrong") == "") if checksum else None, 1, ""),
        ("a kernel of the job's that goes wrong: its error is its own, the commit before is whole",
         _flag("failed" not in fault) if "resume" in fault else None, 1, ""),
    ]
    return [_target(*row) for row in rows]


def _target(name, value, limit, why_not):
    """A negative limit is the most that it may be."""
    most = limit < 0
    row = {"name": name, "value": value if value is None else round(value, 5)}
    row["at_most" if most else "at_least"] = abs(limit)
    if value is None:
        return row | {"met": None}
    if why_not:
        return row | {"met": False, "because": why_not}
    return row | {"met": value <= -limit if most else value >= limit}


def _incomplete(ours):
    """Why the step time is not that of a whole snapshot each step."""
    asked, started = ours.get("snapshots_asked", 0), ours.get("snapshots_started", 0)
    given_up = ours.get("snapshots", {}).get("given_up", 0)
    if started == asked and not given_up:
        return ""
    return f"of {asked} snapshots {asked - started} were skipped and {given_up} given up"


def _ratio(value, of):
    return value / of if value and of else None


def _flag(value):
    return None if value is None else int(value)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: shows that everything runs, no figures")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--parameters", type=int, help="of the model that trains, at least")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of all parts")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results.json")
    args = parser.parse_args()
    args.out = args.out.resolve()
    if args.parameters is None:
        args.parameters = SIZES[args.device]["parameters"]
    return args


def main():
    args = parse_args()
    in_larger_shm(args)
    run = Run(args)
    try:
        check_host(run.results["host"])
        code = run.all_parts()
    except Failed as error:
        run.results["failed"] = str(error)
        run.write()
        say(str(error))
        return 1
    for row in run.results["targets"]:
        met = {True: "met", False: "MISSED", None: "no figure"}[row["met"]]
        say(f"{row['name']}: {row['value']} ({met})")
    say(f"results in {args.out}")
    return code


if __name__ == "__main__":
    sys.exit(main())
