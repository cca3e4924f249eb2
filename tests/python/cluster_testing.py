"""What the tests of `unreft up --nodes` share."""

import contextlib

from cli_testing import Cli, wait_until

NODES = 4
# A loaded machine is slow; no verdict depends on how slow.
PATIENCE_S = 120


def up_nodes(cli, *daemon_words, up_words=()):
    """Four nodes of groups 2 + 2, up and acquainted. No clock gives up what stands still."""
    cli.up = cli.json("up", "--nodes", NODES, "--data-chunks", 2, "--parity-chunks", 2, *up_words,
                      "--", "--version-deadline-s", 3600, *daemon_words)
    return cli


@contextlib.contextmanager
def nodes_and_a_spare():
    with contextlib.closing(Cli()) as cli:
        up_nodes(cli, up_words=("--spares", 1))
        wait_status(cli, "the spare", lambda s: len(s["spares"]) == 1)
        yield cli


def pids_of(status):
    return [member["pid"] for member in status["members"]]


def wait_status(cli, what, accept):
    def ready():
        status = cli.status_or_nothing()
        return status if status and accept(status) else None

    return wait_until(what, ready, PATIENCE_S)


def wait_protected(cli, job, step, stands=2):
    """Until that step or a later one is committed and its group stands so many losses."""
    def accept(status):
        assert job.process.poll() is None, f"the job ended: {job.output()}"
        committed = status.get("committed")
        return (committed and committed["step"] >= step
                and [group["stands"] for group in status["groups"]] == [stands])

    return wait_status(cli, f"step {step}, with {stands} losses to stand", accept)


def wait_restored(job, attempt):
    """The steps that the ranks of that attempt restored, once all have."""
    def ready():
        assert job.process.poll() is None, f"the job ended: {job.output()}"
        steps = [r["restored"] for r in job.lines() if r.get("attempt") == attempt]
        return steps if len(steps) == NODES else None

    return wait_until(f"attempt {attempt} to restore", ready, PATIENCE_S)


def train(cli, *words):
    return cli.train(*words, ranks=NODES)
