"""Runs each framework's cases and writes what came of it into docs/frameworks.md.

    table.py [--out FILE]

A row says what is restored only if all of its cases passed; one that failed is named, and the
command ends with 1.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "integrations/python/tests"
EXAMPLES = "tests/python/test_examples_hugging_face.py"


@dataclasses.dataclass
class Row:
    name: str
    packages: list[str]
    lines: str  # to add to a training loop
    restored: str
    not_restored: str
    cases: list[str]  # words for pytest


ROWS = [
    Row(
        "PyTorch: one process, DDP",
        ["torch"],
        "`ck = unreft.torch.attach(model, optimizer, extras=...)`, `ck.restore()`, "
        "`ck.snapshot(step)`",
        "parameters, buffers, optimizers, schedulers and samplers as extras, generators; on "
        "another number of ranks too",
        "what is neither attached nor an extra",
        [f"{PYTHON}/test_end_to_end.py", f"{PYTHON}/test_exact_resume.py",
         f"{PYTHON}/test_reshape_end_to_end.py::test_it_goes_on_from_the_same_state"],
    ),
    Row(
        "PyTorch: FSDP2, HSDP, tensor parallel, both",
        ["torch"],
        "the same",
        "the same; on another number of ranks and another mesh too",
        "FSDP1: refused by name; pipeline stages of several models: one `nn.ModuleDict`",
        [f"{PYTHON}/test_reshape_end_to_end.py::test_fully_sharded"],
    ),
    Row(
        "torch.distributed.checkpoint",
        ["torch"],
        "`dcp.save(state, storage_writer=unreft.dcp.Writer(step))`, "
        "`dcp.load(state, storage_reader=unreft.dcp.Reader())` ([dcp.md](dcp.md))",
        "what the state dict has; on any layout",
        "generators, unless the state dict has them",
        [f"{PYTHON}/test_dcp_end_to_end.py"],
    ),
    Row(
        "accelerate: DDP, FSDP2",
        ["accelerate", "torch"],
        "`ck = unreft.accelerate.attach(accelerator, model)` ([hugging_face.md](hugging_face.md))",
        "what is prepared and registered, generators; on another number of ranks too",
        "the position in the data: an extra; FSDP1: refused by name",
        [f"{PYTHON}/test_hugging_face.py", EXAMPLES, "-k", "accelerate"],
    ),
    Row(
        "transformers.Trainer",
        ["transformers", "accelerate", "torch"],
        "`unreft.transformers.attach(trainer)` ([hugging_face.md](hugging_face.md))",
        "all that the Trainer has, with the position in the data and its callbacks' state",
        "random numbers that data draw when they are fetched; another number of ranks, DeepSpeed, "
        "`model_init`, `auto_find_batch_size` and others: refused by name",
        [f"{PYTHON}/test_hugging_face.py", f"{PYTHON}/test_transformers.py", EXAMPLES, "-k",
         "not accelerate and not loader"],
    ),
    Row(
        "Lightning: one process, DDP",
        ["lightning", "torchmetrics", "torch"],
        "`Trainer(callbacks=[unreft.lightning.Unreft()])` ([lightning.md](lightning.md))",
        "all that the Trainer has, with the position in the data, metrics, what is logged so far "
        "and its callbacks' state",
        "other attributes of modules and callbacks; another number of ranks, FSDP, DeepSpeed, "
        "manual optimization, iterable datasets, samplers of one's own and others: refused by name",
        ["tests/frameworks/test_lightning.py", "tests/frameworks/test_lightning_restarts.py"],
    ),
    Row(
        "DeepSpeed: ZeRO stages 1, 2, 3",
        ["deepspeed", "torch"],
        "`ck = unreft.deepspeed.attach(engine)`, `ck.restore()` ([deepspeed.md](deepspeed.md))",
        "fp32 partitions, the optimizer, hyperparameters, the scheduler, the engine's counts, "
        "buffers, generators; on another number of ranks too, and where a node of several is lost "
        "with its memory",
        "the position in the data: an extra; another stage, fp16, offload, pipelines, mixture of "
        "experts, ZeRO++ and others: refused by name",
        ["tests/frameworks/test_deepspeed.py", "tests/frameworks/test_deepspeed_faults.py"],
    ),
    Row(
        "Megatron-Core: tensor, pipeline and data parallelism",
        ["megatron-core", "torch"],
        "`ck = unreft.mcore.attach(chunks, optimizer, opt_param_scheduler=...)`, `ck.restore()`, "
        "`ck.snapshot(iteration)`; or `unreft.megatron.install(every=10)` above `pretrain` "
        "([mcore.md](mcore.md))",
        "main parameters, the optimizer, hyperparameters, the scheduler, generators; with "
        "virtual pipeline stages and `sequence_parallel` too; under any other sizes of the three "
        "too, without the random streams where tensor or pipeline parallelism changes; and where a "
        "node of several is lost with its memory",
        "the position in the data, in a loop of one's own: an extra; experts, context parallelism, "
        "fp16, fp8, Megatron-FSDP and others: refused by name; FusedAdam needs a GPU, and was "
        "tried as an optimizer of the tests' that keeps what it keeps",
        [
            "tests/frameworks/test_mcore.py",
            "tests/frameworks/test_mcore_extras.py",
            "tests/frameworks/test_mcore_faults.py",
        ],
    ),
    Row(
        "torchdata.StatefulDataLoader",
        ["torchdata", "torch"],
        '`extras={"loader": loader}` '
        "([a program](../examples/hugging_face/stateful_loader.py))",
        "the position, with workers as without",
        "another number of ranks",
        [EXAMPLES, "-k", "loader"],
    ),
]

ABSENT = """
All cases run on CPUs; [benchmarks.md](benchmarks.md)
has what ran on a GPU.
"""


def run(row):
    """How many cases passed, and which did not, with why."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                 f"--junit-xml={report.name}", *row.cases]
        done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True)
        passed, others = 0, []
        for case in xml.etree.ElementTree.parse(report.name).iter("testcase"):
            bad = [part for part in case if part.tag in ("failure", "error", "skipped")]
            if bad:
                why = bad[0].get("message", "")[:80]
                others.append(f"{case.get('name')} ({bad[0].tag}: {why})")
            else:
                passed += 1
    if done.returncode != 0 and not others:
        others.append(f"pytest ended with {done.returncode}")
    return passed, others


def commit():
    words = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=ROOT / "docs/frameworks.md", type=pathlib.Path)
    out = parser.parse_args().out
    lines = [
        "# Frameworks",
        "",
        f"`make test-frameworks` has run these cases on {datetime.date.today()} at commit "
        f"{commit()}, and has written this page.",
        "Runs are killed, restored and compared with runs that nobody disturbed.",
        "",
        "| framework | versions tried | lines to add | restored | not restored | cases |",
        "|---|---|---|---|---|---|",
    ]
    failed = False
    for row in ROWS:
        passed, others = run(row)
        failed |= bool(others) or passed == 0
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in row.packages)
        cases = f"{passed} passed" + "".join(f"; **{other}**" for other in others)
        restored = row.restored if passed and not others else "**not all of it, see the cases**"
        lines.append(
            f"| {row.name} | {versions} | {row.lines} | {restored} | {row.not_restored} | {cases} |"
        )
        print(f"{row.name}: {cases}", flush=True)
    out.write_text("\n".join(lines) + "\n" + ABSENT)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
