"""The example trainer of act two of the demo: fewer ranks go on with it exactly as from files."""

import json
import pathlib
import sys

import pytest
from real_store import Store

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import train_fsdp  # noqa: E402
import train_gpt  # noqa: E402


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def test_three_ranks_go_on_from_memory_as_from_files_of_torch_alone(store, tmp_path):
    def train(name, world, *args):
        outputs = ["--log", tmp_path / f"{name}.jsonl", "--final", tmp_path / name]
        store.train(world, *outputs, *args, script=EXAMPLES / "train_fsdp.py")

    def final(name, world):
        return [json.loads((tmp_path / f"{name}.rank{rank}.json").read_text())["parts"]
                for rank in range(world)]

    train("memory", 4, "--steps", 4, "--checkpoint", "unreft")
    train("memory", 3, "--steps", 6, "--checkpoint", "unreft")
    log = train_gpt.StepLog.read(tmp_path / "memory.jsonl")
    first, second = [(r["world"], r["restored_step"]) for r in log if r["event"] == "start"]
    assert first == (4, None) and second[0] == 3
    # A snapshot may be skipped while another is under way, but not all of them.
    restored = second[1]
    assert 1 <= restored <= 4
    train("files", 4, "--steps", restored, "--save", tmp_path / "files")
    train("files", 3, "--steps", 6, "--load", tmp_path / "files")
    assert final("memory", 3) == final("files", 3)

    def steps(name):
        log = train_gpt.StepLog.read(tmp_path / f"{name}.jsonl")
        return [(r["step"], r["samples"], r["loss_hex"]) for r in log if r["event"] == "step"
                and (r["world"] == 3 or r["step"] <= restored)]

    assert steps("memory") == steps("files") and len(steps("files")) == 6
    # What each rank has of its own is tested only if it is another one's.
    ranks = final("memory", 3)
    for part in ("weights", "optimizer", "buffers", "scheduler"):
        assert ranks[0][part] == ranks[1][part] == ranks[2][part]
    for part in ("rng_torch", "rng_numpy", "rng_python"):
        assert len({rank[part] for rank in ranks}) == 3


@pytest.mark.parametrize("before, now", [(4, 3), (3, 4), (4, 2), (2, 5), (1, 3)])
def test_no_sample_is_repeated_and_at_most_one_of_each_other_rank_left_out(before, now):
    for position in range(20):
        states = [{"position": position, "corpus_bytes": 9}] * before
        taken = before * position
        begins = []
        for rank in range(now):
            state = train_fsdp.divide(states, rank, now)
            assert state["corpus_bytes"] == 9
            begins.append(state["position"] * now + rank)
        assert taken <= min(begins) <= taken + now - 1
        assert sorted(begins) == list(range(min(begins), min(begins) + now))


def test_no_tensor_has_rows_that_both_numbers_of_ranks_divide():
    model = train_fsdp.gpt.GPT(train_fsdp.CONFIG)
    for name, parameter in model.named_parameters():
        assert parameter.shape[0] % 4 or parameter.shape[0] % 3, name
