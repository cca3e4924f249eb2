"""The demo's parts that need no training: its plan of faults, its log reader, its verdict."""

import json
import pathlib
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations/python/examples"))

import chaos  # noqa: E402
import demo_check  # noqa: E402
import demo_run  # noqa: E402
import demo_shrink  # noqa: E402

STEPS, RANKS, FAULTS = 64, 4, 6
FAULTS_OF_NODES = 7  # one of each kind


def test_a_seed_names_one_plan():
    plans = [chaos.draw_plan(seed, STEPS, RANKS, FAULTS) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize("seed", range(100))
def test_every_plan_has_every_kind_and_room_between(seed):
    plan = chaos.draw_plan(seed, STEPS, RANKS, FAULTS)
    assert len(plan) == FAULTS and {fault.kind for fault in plan} == set(chaos.KINDS)
    steps = [fault.step for fault in plan]
    assert all(b - a > chaos.GAP_STEPS for a, b in zip([0, *steps], [*steps, STEPS]))
    for fault in plan:
        trainers = [victim for victim in fault.victims if victim != "daemon"]
        assert ("daemon" in fault.victims) == fault.hits_daemon
        assert bool(trainers) == fault.stops_training
        assert len(set(trainers)) == len(trainers) and set(trainers) <= set(range(RANKS))
        assert fault.kind != chaos.CAPTURE or fault.delay_ms <= chaos.CAPTURE_MS_MAX


@pytest.mark.parametrize("seed", range(100))
def test_plans_of_several_nodes(seed):
    nodes = 4
    plan = chaos.draw_plan(seed, STEPS, RANKS, FAULTS_OF_NODES, nodes, destroy=True)
    assert {fault.kind for fault in plan} == {*chaos.KINDS_OF_NODES, *chaos.KINDS_THAT_DESTROY}
    for fault in plan:
        hit = {chaos.DAEMON: 1, chaos.BOTH: 1, chaos.NODE: 1, chaos.TWO_NODES: 2}.get(fault.kind, 0)
        assert len(set(fault.nodes)) == len(fault.nodes) == hit
        assert set(fault.nodes) <= set(range(nodes))
        assert fault.stops_training == (fault.kind not in (chaos.DAEMON, chaos.META))
    spared = chaos.draw_plan(seed, STEPS, RANKS, FAULTS, nodes)
    assert {fault.kind for fault in spared} == set(chaos.KINDS_OF_NODES)


def test_every_node_is_destroyed_by_some_seed():
    plans = [chaos.draw_plan(seed, STEPS, RANKS, FAULTS_OF_NODES, 4, destroy=True)
             for seed in range(30)]
    for kind in chaos.KINDS_THAT_DESTROY:
        hit = {node for plan in plans for fault in plan if fault.kind == kind
               for node in fault.nodes}
        assert hit == {0, 1, 2, 3}


def test_plans_that_cannot_be():
    with pytest.raises(ValueError, match="at least 4 faults"):
        chaos.draw_plan(1, STEPS, RANKS, 3)
    with pytest.raises(ValueError, match="at least 35 steps"):
        chaos.draw_plan(1, 34, RANKS, 6)


@pytest.mark.parametrize("seed", range(30))
def test_losses_of_act_two(seed):
    steps, nodes = demo_shrink.STEPS, demo_shrink.NODES
    lost, replaced = chaos.draw_losses(seed, steps, nodes)
    assert [lost, replaced] == chaos.draw_losses(seed, steps, nodes)
    assert len({*lost.nodes, *replaced.nodes} & set(range(nodes))) == 2
    assert 0 < lost.step < replaced.step - chaos.GAP_STEPS < steps - 2 * chaos.GAP_STEPS
    assert lost.stops_training and replaced.stops_training


def test_every_node_is_lost_for_good_by_some_seed():
    plans = [chaos.draw_losses(seed, demo_shrink.STEPS, 4) for seed in range(30)]
    assert {node for plan in plans for node in plan[0].nodes} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="at least 15 steps"):
        chaos.draw_losses(1, 12, 4)


def step(number, unix_s=0.0, loss_hex="0x1p+0"):
    return {"event": "step", "step": number, "loss_hex": loss_hex, "unix_s": unix_s}


def append(path, *records, end="\n"):
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(record) for record in records) + end)


def test_log_is_read_while_it_grows(tmp_path):
    log = demo_run.LogTail(tmp_path / "log")
    assert not log.read_on()
    append(log.path, {"event": "start", "attempt": 0}, step(1, 10.0))
    assert log.read_on() and log.last_step == 1
    append(log.path, step(2, 20.0), end="")
    assert not log.read_on() and log.last_step == 1  # not whole yet
    append(log.path, {"event": "start", "attempt": 1}, end="\n")  # glued to a cut line: lost
    append(log.path, {"event": "start", "attempt": 1}, step(2, 30.0))
    assert log.read_on()
    assert [(s["step"], s["attempt"]) for s in log.steps] == [(1, 0), (2, 1)]
    assert log.last_step_before(29.0) == 1 and log.last_step_before(30.0) == 2


def finished(directory, losses, **parts):
    """A run that ended with these losses, as (step, loss), and parts on its one rank."""
    directory.mkdir()
    log = demo_run.LogTail(directory / "log")
    append(log.path, {"event": "start", "attempt": 0},
           *(step(number, loss_hex=loss) for number, loss in losses))
    log.read_on()
    final = directory / "final"
    final.write_text(json.dumps({"parts": parts}))
    return types.SimpleNamespace(log=log, ranks=1, final_file=lambda rank: final)


def test_verdict(tmp_path):
    losses = [(1, "a"), (2, "b")]
    reference = finished(tmp_path / "reference", losses, weights="w", rng_torch="r")

    def differences(name, losses, **parts):
        run = finished(tmp_path / name, losses, **parts)
        return demo_check.compare(reference, run, say=lambda text: None)

    same = {"weights": "w", "rng_torch": "r"}
    assert differences("equal", losses, **same) == []
    assert differences("repeated", [*losses, (2, "b")], **same) == []
    assert differences("bad repetition", [(1, "a"), (2, "x"), (2, "b")], **same)
    assert differences("short", losses[:1], **same)
    assert differences("loss", [(1, "a"), (2, "c")], **same)
    assert differences("weights", losses, **{**same, "weights": "x"})
    assert differences("part missing", losses, weights="w")


def log_of_worlds(path, *attempts):
    """A log of attempts, each (world, restored step, steps as (number, loss, samples))."""
    log = demo_run.LogTail(path)
    for attempt, (world, restored, steps) in enumerate(attempts):
        append(path, {"event": "start", "attempt": attempt, "world": world,
                      "restored_step": restored},
               *({**step(number, loss_hex=loss), "world": world, "samples": samples}
                 for number, loss, samples in steps))
    log.read_on()
    return log


# One rank goes on from step 1 of two ranks, which had finished step 2; then it does step 3 again.
SHRUNK = [(2, None, [(1, "a", [0, 1]), (2, "x", [2, 3])]),
          (1, 1, [(2, "b", [2]), (3, "c", [3])]),
          (1, 2, [(3, "c", [3]), (4, "d", [4])])]


def test_steps_that_another_world_did_again_do_not_count(tmp_path):
    log = log_of_worlds(tmp_path / "log", *SHRUNK)
    assert [record["loss_hex"] for record in demo_check.lasting_steps(log)] == list("abccd")
    # As many ranks as before have to do the same again.
    alike = [(2, restored, steps) for _, restored, steps in SHRUNK]
    log = log_of_worlds(tmp_path / "alike", *alike)
    assert [record["loss_hex"] for record in demo_check.lasting_steps(log)] == list("axbccd")


def samples_wrong(path, *attempts):
    run = types.SimpleNamespace(log=log_of_worlds(path, *attempts))
    return demo_check.check_samples(run, say=lambda text: None)


def test_samples_of_a_run_whose_number_of_ranks_changed(tmp_path):
    assert samples_wrong(tmp_path / "same", *SHRUNK) == []
    grown = [(1, None, [(1, "a", [0])]), (3, 1, [(2, "b", [3, 4, 5])])]
    assert samples_wrong(tmp_path / "grown", *grown) == []  # two of three may be left out
    gap = [(1, None, [(1, "a", [0])]), (3, 1, [(2, "b", [4, 5, 6])])]
    assert samples_wrong(tmp_path / "gap", *gap) == ["samples repeated [], left out [1, 2, 3]"]
    twice = [(1, None, [(1, "a", [0])]), (3, 1, [(2, "b", [0, 1, 2])])]
    assert samples_wrong(tmp_path / "twice", *twice) == ["samples repeated [0], left out []"]
    hole = [(1, None, [(1, "a", [0]), (2, "b", [2])])]
    assert samples_wrong(tmp_path / "hole", *hole) == ["samples repeated [], left out [1]"]


def test_what_is_said_of_the_groups():
    members = [{"slot": slot, "lost": slot != 3, "left_out": slot == 2} for slot in (0, 2, 3)]
    status = {"groups": [{"slots": [0, 1, 3], "k": 1, "m": 2, "stands": 1}], "members": members,
              "exposure": "why"}
    assert demo_shrink.describe_groups(status) == [
        "nodes 0, 1, 3 in a group of 1 + 2, which stands the loss of 1", "node 0 is lost",
        "node 2 is left out", "why"]
