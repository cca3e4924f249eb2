"""The parts of unreft.dcp over the fake store: what is stored of a state dict, and what is not."""

import dataclasses
import pickle
import types

import pytest
import torch
import torch.distributed.checkpoint as dcp
from nested_state import assert_same, emptied, state_dict
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import unreft
import unreft.dcp
from unreft.dcp import catalogue, checkpoint_id, pieces, session, share
from unreft.dcp.catalogue import Entry, RankExtras
from unreft.torch import attempt, record
from unreft.torch.safe_pickle import Classes

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def begin(store, monkeypatch):
    """Begins an attempt, as another process would; returns its client."""

    def begin(world=1):
        client = store.client(0, world, any_world=True)
        joined = attempt.Joined(client, ("", "", 0), {})
        monkeypatch.setattr(session, "_session", session.Session(joined, 0, world))
        return client

    begin()
    return begin


def save(state, step=1, **options):
    dcp.save(state, storage_writer=unreft.dcp.Writer(step, **options))


def stage(state, step=1, **options):
    dcp.async_save(state, storage_writer=unreft.dcp.Writer(step), **options).result()


@pytest.mark.parametrize("how", [save, stage])
def test_what_is_saved_is_loaded(begin, how):
    how(state_dict(), 5)
    begin()
    reader = unreft.dcp.Reader("runs/5")
    found = emptied(state_dict())
    dcp.load(found, storage_reader=reader)
    assert_same(found, state_dict())
    assert reader.step == 5


@pytest.mark.parametrize("how", [save, stage])
def test_what_follows_is_another_checkpoint(begin, store, how):
    state = state_dict()
    for step in (1, 2):
        state["model"]["weight"] += 1
        state["progress"]["step"] = step
        how(state, step)
    state["model"]["more"] = torch.ones(2)
    how(state, 3)
    begin()
    found = emptied(state)
    dcp.load(found, storage_reader=unreft.dcp.Reader(3))
    assert_same(found, state)


def test_another_type_and_a_view_are_loaded(begin):
    save({"weight": torch.arange(6.0).view(2, 3)})
    begin()
    found = {"weight": torch.zeros(3, 2, dtype=torch.float64).t()}
    dcp.load(found, storage_reader=unreft.dcp.Reader())
    assert torch.equal(found["weight"], torch.arange(6.0, dtype=torch.float64).view(2, 3))


def test_a_part_of_it_is_loaded(begin):
    save(state_dict())
    begin()
    found = {"progress": {"step": None}}
    dcp.load(found, storage_reader=unreft.dcp.Reader())
    assert found == {"progress": {"step": 7}}
    found = {"model": {"scale": torch.tensor(0.0)}}
    dcp.load(found, storage_reader=unreft.dcp.Reader())
    assert found["model"]["scale"] == 3


def test_without_a_state_dict_it_is_put_together(begin):
    save(state_dict())
    begin()
    found = {}
    dcp.state_dict_loader._load_state_dict(
        found,
        storage_reader=unreft.dcp.Reader(),
        planner=dcp.default_planner._EmptyStateDictLoadPlanner(),
        no_dist=True,
    )
    assert_same(found, state_dict())


class Renaming(DefaultSavePlanner):
    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        state_dict = {"other/" + key: value for key, value in state_dict.items()}
        super().set_up_planner(state_dict, storage_meta, is_coordinator)


def test_a_planner_of_the_user(begin):
    state = {"weight": torch.ones(3)}
    dcp.save(state, storage_writer=unreft.dcp.Writer(1), planner=Renaming())
    begin()
    found = {"other/weight": torch.zeros(3)}
    dcp.load(found, storage_reader=unreft.dcp.Reader())
    assert found["other/weight"].sum() == 3


class Halving(DefaultSavePlanner):
    def transform_object(self, write_item, object):
        return super().transform_object(write_item, object).half()


def test_a_planner_that_changes_what_was_staged_is_refused(begin):
    state = {"weight": torch.ones(3)}
    renamed = "planner Renaming has a set_up_planner of its own.*async_stager="
    refused(renamed, lambda: stage(state, planner=Renaming()))
    flat = DefaultSavePlanner(flatten_state_dict=False)
    refused("1 of 1 items .*'nested'", lambda: stage({"nested": {"a": 1}}, 2, planner=flat))
    refused("planner Halving has a transform_object", lambda: stage(state, 3, planner=Halving()))
    stager = DefaultStager(StagingOptions(False, False, False, False))
    stage(state, 4, planner=Halving(), async_stager=stager)
    begin()
    load()


# --- what is refused ---


def refused(match, action, error=unreft.Error):
    with pytest.raises((error, dcp.api.CheckpointException), match=match):
        action()


def load(*args):
    dcp.load({"weight": torch.zeros(3)}, storage_reader=unreft.dcp.Reader(*args))


def test_a_tensor_without_memory_is_named(begin):
    refused("'weight': it is on meta", lambda: save({"weight": torch.ones(3, device="meta")}))


def test_nothing_is_committed(begin):
    refused("nothing is committed in this job's memory", load)
    refused("load of step 8: nothing is committed", lambda: load(8))


def test_another_step_is_committed(begin):
    save({"weight": torch.ones(3)}, 8)
    begin()
    refused("load of step 4: memory gives back step 8.*unreft rewind --to 4", lambda: load(4))
    load("step_8")


def test_what_is_committed_is_not_given_up(begin):
    save({"weight": torch.ones(3)}, 8)
    begin()
    refused("step 8 is committed, and was not loaded", lambda: save({"weight": torch.ones(3)}, 9))
    refused("step 8 is committed, and was not loaded", lambda: stage({"weight": torch.ones(3)}, 9))
    load()
    save({"weight": torch.ones(3)}, 9)
    begin()
    save({"weight": torch.ones(3)}, 10, fresh=True)


def test_memory_is_read_before_it_is_written(begin):
    save({"weight": torch.ones(3)}, 1)
    refused("this process has saved since it started", load)


def test_what_attach_has_stored(begin, store):
    version = types.SimpleNamespace(step=1, tensors={}, extras=b"UNRFXTRA and more")
    store.versions[0], store.world = version, 1
    begin()
    refused("not saved by unreft.dcp: restore it as it was saved, with unreft.torch.attach", load)


def test_attach_names_what_was_saved_here():
    extras = RankExtras({}, {}).encode()
    with pytest.raises(unreft.FailedPrecondition, match="load it with unreft.dcp.Reader"):
        record.loads(extras, None, Classes())


def test_one_process_has_one_way():
    class Owner:
        is_open = True

    owner = Owner()
    ways = "unreft.dcp", "unreft.torch.attach"
    for first, second in (ways, ways[::-1]):
        joined = attempt.Joined(object(), ("", "default", 0), {})
        attempt.keep(joined, owner, first)
        with pytest.raises(
            unreft.FailedPrecondition,
            match=f"rank 0 of job 'default' uses {first} in this process.*or by {second}",
        ):
            attempt._check_alone(joined.key, second)
    attempt._attached.clear()


def test_what_cannot_be_stored_is_named(begin):
    sparse = torch.eye(3).to_sparse()
    refused("tensor 'a.sparse': layout torch.sparse_coo", lambda: stage({"a": {"sparse": sparse}}))
    begin()
    refused("step must be known", lambda: stage({"weight": torch.ones(3)}, None))
    refused("needed a step", lambda: save({"weight": torch.ones(3)}, None))
    writer = unreft.dcp.Writer(1)
    refused("THREAD", lambda: pickle.dumps(writer))


def test_a_planner_that_does_not_say_what_has_not_changed_is_refused(begin):
    planner = DefaultSavePlanner(enable_plan_caching=True)
    state = {"weight": torch.ones(3)}
    refused(
        "enable_plan_caching is not supported",
        lambda: dcp.save(state, storage_writer=unreft.dcp.Writer(1), planner=planner),
    )


def test_two_saves_at_once(begin):
    begin()
    stager = unreft.dcp.Stager()
    for step in (1, 2):
        stager.step = step
        stager.stage({"weight": torch.full((3,), float(step))})
    for step in (1, 2):
        writer = unreft.dcp.Writer(step)
        dcp.save({"weight": torch.zeros(3)}, storage_writer=writer)
    begin()
    found = {"weight": torch.zeros(3)}
    dcp.load(found, storage_reader=unreft.dcp.Reader(2))
    assert found["weight"].sum() == 6


def test_all_ranks_save(begin):
    begin(world=2)
    refused("needed the plans of all 2 ranks of the job, found 1", lambda: save({}, 1))


def test_memory_that_does_not_become_free(begin, monkeypatch):
    client = begin()
    client.skip = "no slot is free"
    monkeypatch.setattr(session, "_READY_TIMEOUT_S", 0.05)
    refused("save of step 1: no slot is free", lambda: save({"weight": torch.ones(3)}))


def test_a_registration_that_fails_is_made_again(begin):
    client = begin()
    save({"weight": torch.ones(3)}, 1)
    client.fail["register"] = unreft.DeadlineExceeded("no answer")
    refused("no answer", lambda: save({"weight": torch.ones(3), "bias": torch.ones(1)}, 2))
    del client.fail["register"]
    client.calls.clear()
    save({"weight": torch.ones(3)}, 3)
    assert "register" in client.calls and "rebind" not in client.calls
    save({"weight": torch.ones(3)}, 4)
    assert client.calls.count("register") == 1


def test_what_a_failed_save_has_staged_is_nobody_elses(begin):
    begin()
    refused("Renaming has", lambda: stage({"weight": torch.ones(3)}, 1, planner=Renaming()))
    unreft.dcp.Writer(2).stage({"weight": torch.ones(3)})  # and nothing comes of it
    save({"weight": torch.full((3,), 5.0)}, 3)
    begin()
    found = {"weight": torch.zeros(3)}
    dcp.load(found, storage_reader=unreft.dcp.Reader(3))
    assert found["weight"].sum() == 15


def test_a_stager_that_was_not_told_the_step(begin):
    begin()
    stager = unreft.dcp.Stager(4)
    state = {"weight": torch.ones(3)}
    dcp.async_save(
        state, storage_writer=unreft.dcp.Writer(4), async_stager=stager
    ).result()
    stager.step = 5
    refused(
        "save of step 6: what was staged is step 5", lambda: stage(state, 6, async_stager=stager)
    )


def test_one_connection_of_a_process(begin):
    begin()
    refused("job: this process has .* None, found 'b'", lambda: unreft.dcp.Writer(1, job="b"))


def test_a_commit_that_fails_fails_the_save(begin):
    begin().fail["wait_committed"] = unreft.Aborted("given up: a rank died")
    refused("given up: a rank died", lambda: save({"weight": torch.ones(3)}))
    refused("given up: a rank died", lambda: stage({"weight": torch.ones(3)}, 2))


@pytest.mark.parametrize(
    "given, step",
    [(0, 0), (120, 120), ("120", 120), ("runs/step_0012/", 12), ("a-1-b-3", 3)],
)
def test_ids(given, step):
    assert checkpoint_id.step_of(given) == step


@pytest.mark.parametrize("given", [-1, True, None, "", "last", "step_1a", 2**60, 1.0])
def test_ids_without_a_step(given):
    with pytest.raises(unreft.InvalidArgument, match="needed a step"):
        checkpoint_id.step_of(given)
    if given is not None and not isinstance(given, (bool, float)):
        assert not unreft.dcp.Writer.validate_checkpoint_id(given)
        assert not unreft.dcp.Reader.validate_checkpoint_id(given)


# --- what ranks store beside their tensors ---


def test_extras_are_read_as_they_were_written():
    extras = RankExtras(
        {"a": b"", "b/c": b"\0\xff"},
        {
            "a": Entry(path=("a",), value_of=0),
            "b/c": Entry(path=("b", 0, "c"), value_of=3),
            "d": Entry(empty=("float32", (0, 3))),
            "e": Entry(),
        },
    )
    assert RankExtras.decode(extras.encode(), 0) == extras
    assert RankExtras.decode(RankExtras({}).encode(), 0) == RankExtras({})


# docs/formats/dcp_extras.md
GOLDEN = (
    b'UNRFTDCP\x58\0\0\0\0\0\0\0{"format":1,"values":[["lr",3]],'
    b'"catalogue":{"lr":{"path":["opt",0,"lr"],"value_of":0}}}abc'
)


def test_extras_lie_as_documented():
    extras = RankExtras({"lr": b"abc"}, {"lr": Entry(path=("opt", 0, "lr"), value_of=0)})
    assert extras.encode() == GOLDEN
    assert RankExtras.decode(GOLDEN, 0) == extras


def test_other_bytes_are_refused():
    good = RankExtras({"a": b"1234"}, {"a": Entry(value_of=0)}).encode()
    for length in range(len(good)):
        with pytest.raises(unreft.DataLoss, match="rank 2"):
            RankExtras.decode(good[:length], 2)
    for bad in (b"", good + b"0", b"other" + good[5:], good.replace(b'"format":1', b'"format":2')):
        with pytest.raises(unreft.DataLoss, match="rank 2"):
            RankExtras.decode(bad, 2)


def test_what_only_one_rank_knows_is_in_the_catalogue():
    merged = catalogue.merged([{"a": Entry(path=("a",))}, {"a": Entry(value_of=1), "b": Entry()}])
    assert merged == {"a": Entry(path=("a",), value_of=1), "b": Entry()}


def test_each_item_is_captured_by_one_rank_that_has_it():
    sizes = [
        {("w", (0,)): 8, ("w", (4,)): 8, ("b", (0,)): 100, ("lr", None): 0},
        {("w", (4,)): 8, ("b", (0,)): 100, ("lr", None): 0, ("own", (0,)): 1},
        {("b", (0,)): 100},
    ]
    shares = share.shared_out(sizes)
    assert sorted(key for keys in shares for key in keys if key[0] != "lr") == [
        ("b", (0,)),
        ("own", (0,)),
        ("w", (0,)),
        ("w", (4,)),
    ]
    for of_rank, keys in zip(sizes, shares):
        assert keys <= set(of_rank)
    # Whoever has the large one has little else.
    loads = [sum(of_rank[key] for key in keys) for of_rank, keys in zip(sizes, shares)]
    assert loads == [8, 9, 100]


def test_a_plan_that_disagrees_with_its_tensor_is_refused():
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": torch.ones(4)}, is_coordinator=True)
    (item,) = planner.create_local_plan().items
    chunk = dataclasses.replace(item.tensor_data.chunk, sizes=torch.Size([3]))
    item = dataclasses.replace(item, tensor_data=dataclasses.replace(item.tensor_data, chunk=chunk))
    with pytest.raises(unreft.InvalidArgument, match=r"'w': the plan says a box of \[3\], found"):
        pieces.of_items([item], planner.resolve_data)
