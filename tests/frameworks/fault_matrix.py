"""Jobs of several nodes on this machine, for any framework's trainer: a fault strikes, and the job
goes on by itself to its end.

The trainer is a program that prints JSON lines. Where a step is committed it asks
`holding.is_held(step)`; then it says `held`, that step, with its state, and calls
`holding.wait_released(step)`. Nothing is in flight when a fault strikes: all ranks have committed
the same step, and so it is known which one the next attempt has to restore, which it says as
`restored`.

Ranks are forked by the server of real_store.py, which is to preload their framework.
"""

import dataclasses
import json
import signal

import cli_testing
from cluster_testing import NODES, PATIENCE_S, up_nodes, wait_protected, wait_status
from forked_ranks import ForkedRanks
from holding import DIRECTORY, hold_of

END_S = 2 * PATIENCE_S  # of a whole run
HELD_AT = 3


@dataclasses.dataclass
class Records:
    """What the ranks of one attempt have said, a list for each of them."""

    ranks: list[list[dict]]

    def each(self, name):
        """The one value that each rank has said by that name."""
        found = [[record[name] for record in records if name in record] for records in self.ranks]
        assert all(len(values) == 1 for values in found), (name, found)
        return [values[0] for values in found]

    def held(self, step):
        """What each rank said when it was held at that step."""
        return [next(r for r in records if r.get("held") == step) for records in self.ranks]


class Job:
    """So many ranks of a program on four nodes, of which any two may be lost."""

    def __init__(self, program, words, ranks):
        self.ranks = ranks
        self.cli = cli_testing.Cli()
        self.directory = self.cli.run_dir / "ranks"
        self.directory.mkdir()
        of_all = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo",
                  DIRECTORY: str(self.directory)}
        self.forked = ForkedRanks(self.directory, program, words, of_all)
        try:
            up_nodes(self.cli, up_words=("--supervise",))
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.forked.close()
        self.cli.close()

    def node_of(self, rank):
        return rank * NODES // self.ranks

    def start(self, *options, ranks=None):
        words = ["--ranks", ranks or self.ranks, *options]
        self.launched = self.cli.launch(*words, "--", *self.forked.command)

    def wait_end(self):
        assert self.launched.process.wait(END_S) == 0, self.launched.output()

    def records(self, attempt):
        paths = sorted(self.directory.glob(f"attempt{attempt}.rank*"), key=_rank_of)
        # A rank that was killed may have left a part of a line.
        lines = [path.read_text().rpartition("\n")[0].splitlines() for path in paths]
        return Records([[json.loads(x) for x in of if x.startswith("{")] for of in lines])

    # --- holding ---

    def hold(self, attempt, step):
        (self.directory / hold_of(attempt, step)).touch()

    def release(self, attempt, step):
        (self.directory / hold_of(attempt, step)).unlink()

    def wait_held(self, attempt, step):
        """Until all ranks are held at one step, that one or a later; which it is."""
        def ready():
            code = self.launched.process.poll()
            assert code is None, f"the job ended with {code}: {self.launched.output()}"
            ranks = self.records(attempt).ranks
            held = [r["held"] for records in ranks for r in records if r.get("held", 0) >= step]
            return set(held) if len(held) == self.ranks else None

        what = f"attempt {attempt} to be held at step {step}"
        (found,) = cli_testing.wait_until(what, ready, END_S)
        # Also as far as its group goes: from here on a node may be lost.
        status = wait_protected(self.cli, self.launched, found)
        assert status["committed"]["step"] == found
        return found


def _rank_of(path):
    return int(path.name.rpartition("rank")[2])


# --- the faults: each strikes where attempt 0 is held, and says at which step the next goes on ---


def kill_trainer(job, victim):
    step = job.wait_held(0, HELD_AT)
    strike_trainer(job, victim)
    return step


def strike_trainer(job, victim):
    killed = job.cli.json("inject", "kill-trainer", "--rank", victim)
    assert killed["pid"] == job.forked.pids[0, victim]


def kill_daemon(job, victim):
    """The one of the victim's node. Training goes on, and is committed by the next daemon; what
    that one has is seen by the victim's death."""
    step, node = job.wait_held(0, HELD_AT), job.node_of(victim)
    before = job.cli.status()["members"][node]
    assert job.cli.json("inject", "kill-daemon", "--node", node)["pid"] == before["pid"]

    def is_back(status):
        member = status["members"][node]
        return (member["present"] and member["pid"] not in (None, before["pid"])
                and member["status"] and member["status"]["ranks"])

    status = wait_status(job.cli, "the next daemon, with its ranks", is_back)
    assert status["members"][node]["incarnation"] == before["incarnation"]  # it has that memory
    assert not job.launched.events("attempt-end")
    job.hold(0, step + 1)
    job.release(0, step)
    later = job.wait_held(0, step + 1)
    assert later > step
    strike_trainer(job, victim)
    return later


def lose_node(job, victim):
    """With its memory, its daemon and its ranks."""
    step, node = job.wait_held(0, HELD_AT), job.node_of(victim)
    pids = [job.forked.pids[0, rank] for rank in range(job.ranks) if job.node_of(rank) == node]
    killed = job.cli.json("inject", "kill-node", "--node", node)
    assert sorted(killed["trainers"]) == sorted(pids) and killed["segments_removed"] > 0
    return step


FAULTS = {"trainer": kill_trainer, "daemon": kill_daemon, "node": lose_node}


# --- whole runs ---


def undisturbed(program, words, ranks):
    """What the ranks say of a run that nobody touches."""
    with Job(program, words, ranks) as job:
        job.start("--max-restarts", 0)
        job.wait_end()
        return job.records(0)


@dataclasses.dataclass
class Disturbed:
    step: int  # at which it was struck, the last one that was committed
    before: list[dict]  # what each rank said when it was held there
    after: Records  # of the attempt that went on


def disturbed(program, words, ranks, fault, victim):
    """A run that one of FAULTS strikes, and that goes on with as many ranks."""
    with Job(program, words, ranks) as job:
        node = job.node_of(victim)
        incarnation = job.cli.status()["members"][node]["incarnation"]
        job.hold(0, HELD_AT)
        job.start("--replace-nodes", "--max-restarts", 1)
        step = FAULTS[fault](job, victim)
        job.wait_end()
        check_attempts(job)
        is_lost = fault == "node"
        # A lost node's memory is another's now.
        replaced = [event["node"] for event in job.launched.events("node-replaced")]
        assert replaced == ([node] if is_lost else [])
        member = job.cli.status()["members"][node]
        assert (member["incarnation"] != incarnation) == is_lost
        wait_groups(job, [0, 1, 2, 3])
        return outcome_of(job, step)


def disturbed_for_good(program, words, ranks, victim, multiple=1):
    """A run that loses a node which nothing replaces: it goes on with fewer ranks, a multiple of
    `multiple`."""
    with Job(program, words, ranks) as job:
        node = job.node_of(victim)
        job.hold(0, HELD_AT)
        job.start("--nodes", f"{NODES - 1}:{NODES}", "--ranks-multiple", multiple,
                  "--max-restarts", 1)
        step = lose_node(job, victim)
        job.wait_end()
        check_attempts(job)
        (resized,) = job.launched.events("resized")
        left = [other for other in range(NODES) if other != node]
        assert resized["nodes"] == left
        wait_groups(job, left)
        member = job.cli.status()["members"][node]
        assert member["lost"] and member["left_out"]
        return outcome_of(job, step)


def resized(program, words, ranks, fewer):
    """What fewer ranks say that go on at the same step where nothing was lost but a trainer."""
    with Job(program, words, ranks) as job:
        job.hold(0, HELD_AT)
        job.start("--max-restarts", 0)
        kill_trainer(job, 0)
        assert job.launched.process.wait(END_S) == 128 + signal.SIGKILL
        job.start("--max-restarts", 0, "--first-attempt", 1, ranks=fewer)
        job.wait_end()
        return job.records(1)


def wait_groups(job, nodes):
    """Until what is committed is of one group of these nodes, which stands two losses again."""
    wait_status(job.cli, f"a group of nodes {nodes}", lambda status: [
        (group["slots"], group["stands"]) for group in status["groups"]] == [(nodes, 2)])


def check_attempts(job):
    """A rank was killed, and the attempt after it did what was left."""
    killed, done = job.launched.events("attempt-end")
    assert (killed["attempt"], killed["why"], killed["signal"]) == (0, "failed", signal.SIGKILL)
    assert (done["attempt"], done["why"]) == (1, "done")


def outcome_of(job, step):
    return Disturbed(step, job.records(0).held(step), job.records(1))
