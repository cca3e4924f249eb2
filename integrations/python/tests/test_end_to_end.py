"""Training processes and the real daemon: kill, restore, compare bit for bit."""

import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from real_store import Store, states

import unreft

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def reference(request):
    """World size and final state per rank of a run that nobody disturbed."""
    store = Store()
    try:
        ranks = store.train(request.param)
    finally:
        store.close()
    return request.param, [states(records)[-1] for records in ranks]


def test_killed_trainers_resume(store, reference):
    world, final = reference
    before = store.train(world, "--die-after", 3, killed=True)
    after = store.train(world)
    for rank in range(world):
        assert before[rank][0] == {"restored": None}
        assert after[rank][0] == {"restored": states(before[rank])[-1]["step"]}
        assert states(after[rank]) == [states(before[rank])[-1], final[rank]]


def test_killed_daemon_and_trainers_resume(store, reference):
    world, final = reference
    before = store.train(world, "--die-after", 3, killed=True)
    store.kill()
    store.start()
    after = store.train(world)
    for rank in range(world):
        assert after[rank][0] == {"restored": states(before[rank])[-1]["step"]}
        assert states(after[rank]) == [states(before[rank])[-1], final[rank]]


def test_replicas_share_the_capture(reference):
    world, _ = reference
    store = Store()
    try:
        ranks = store.train(world, "--steps", 4)
    finally:
        store.close()
    model_bytes = 4 * 3 * (64 * 256 + 256 + 256 * 64 + 64)  # weights and two moments
    for records in ranks:
        # And the extras.
        assert records[-1]["bytes_per_snapshot"] == pytest.approx(model_bytes / world, rel=0.1)


def test_restores_twice(store):
    before = store.train(1, "--die-after", 2, killed=True)
    after = store.train(1, "--restores", 2)
    assert after[0][0] == {"restored": states(before[0])[-1]["step"]}
    assert states(after[0])[0] == states(before[0])[-1]


def test_replicas_that_disagree_keep_their_own(store):
    before = store.train(2, "--differ", "--steps", 12, "--die-after", 3, killed=True)
    own = [states(records)[-1] for records in before]
    assert own[0]["weights"] != own[1]["weights"]
    after = store.train(2, "--steps", 12)
    for rank in range(2):
        assert after[rank][0] == {"restored": own[rank]["step"]}
        assert states(after[rank])[0] == own[rank]


def test_forked_child_is_inert(store):
    records = store.train(1, "--fork", "--steps", 3)[0]
    assert [r["inert"] for r in records if "inert" in r] == [True] * 3
    assert [r["committed"] for r in records if "committed" in r][-1]


def test_training_goes_on_without_the_daemon(store):
    ranks = store.start_ranks(1, "--pause-at", 3)
    deadline = time.monotonic() + 60
    while {"paused": True} not in ranks[0].records():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store.kill()
    ranks[0].go_on()
    records = store.finish(ranks)[0]
    assert states(records)[-1]["step"] == 6
    assert not records[-1]["connected"]
    assert records[-1]["problem"]


def test_example_resumes(store, tmp_path):
    """The demo's training job: killed at any moment, it ends as if it had not been."""
    sys.path.insert(0, str(EXAMPLES))
    import test_exact_resume as exact

    args = ["--size", "tiny", "--steps", 30]
    script = EXAMPLES / "train_gpt.py"

    def outputs(name):
        (tmp_path / name).mkdir()
        return ["--log", tmp_path / name / "steps.jsonl", "--final", tmp_path / name / "final"]

    store.train(3, *args, *outputs("reference"), script=script)
    run = outputs("run")
    ranks = store.start_ranks(3, *args, *run, "--checkpoint", "unreft", script=script)
    log = run[1]
    deadline = time.monotonic() + 60
    while not log.exists() or len(exact.train_gpt.StepLog.losses(log)) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    while store.metric("unreft_committed_step") < 8:
        assert time.monotonic() < deadline
    exact.kill(ranks)
    store.train(3, *args, *run, "--checkpoint", "unreft", script=script)

    for rank in range(3):
        name = f"final.rank{rank}.json"
        finals = [(tmp_path / run / name).read_text() for run in ("reference", "run")]
        assert finals[0] == finals[1]
    losses_of = exact.train_gpt.StepLog.losses
    losses = [losses_of(tmp_path / run / "steps.jsonl") for run in ("reference", "run")]
    assert losses[0] == losses[1]
    restored = [
        r["restored_step"] for r in exact.train_gpt.StepLog.read(log) if r["event"] == "start"
    ]
    assert restored[0] is None and restored[1] >= 8


# --- the low-level client, without torch ---


def test_client_with_numpy(store):
    code = f"""
import sys
import time
import numpy as np
import unreft

def open_client(attempt):
    return unreft.Client(
        socket={store.socket!r}, job={store.job!r}, rank=0, world=1, attempt=attempt
    )

weights = np.arange(12, dtype=np.float32).reshape(3, 4)
tensors = [unreft.Tensor.of_array("weights", weights)]
with open_client(0) as client:
    assert not client.restore_begin().restored
    client.register(tensors, 5)
    step = 0  # it may be skipped, and count all the same
    while not client.snapshot(step, b"hello"):
        time.sleep(0.001)
        step += 1
    client.fence()
    client.wait_committed(step)
    assert client.status().last_committed_step == step
weights[:] = 0
with open_client(1) as client:
    decision = client.restore_begin()
    assert (decision.restored, decision.step, decision.extras) == (True, step, b"hello")
    assert client.status().timeline == 2
    assert decision.new_timeline > decision.timeline > 2, "by their ids, beside the numbers"
    assert [(t.name, t.dtype, t.extent) for t in decision.tensors] == [
        ("weights", unreft.Dtype.FLOAT32, (3, 4))
    ]
    client.restore_read(tensors)
    try:
        client.restore_read([unreft.Tensor.of_array("other", weights)])
    except unreft.Error as error:
        assert "other" in str(error), error
    else:
        raise AssertionError("read what is not there")
assert weights.tolist() == np.arange(12).reshape(3, 4).tolist()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_array_that_is_not_contiguous_is_refused():
    with pytest.raises(unreft.InvalidArgument, match="'x'.*strides"):
        unreft.Tensor.of_array("x", np.zeros((3, 4)).T)
    with pytest.raises(unreft.InvalidArgument, match="'x'.*dtype"):
        unreft.Tensor.of_array("x", np.array(["a"]))


def test_closed_client_says_so(store):
    client = unreft.Client(socket=store.socket, job=store.job, rank=0, world=1)
    client.close()
    client.close()
    with pytest.raises(unreft.FailedPrecondition, match="closed"):
        client.fence()
    with pytest.raises(unreft.FailedPrecondition, match="closed"):
        client.status()
