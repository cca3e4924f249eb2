"""examples/slurm/train.sbatch on a real Slurm: what is restored, and what is said."""

import re

import pytest

from batch import records, wait_until

NUMBERS = [{}, {"UNREFT_ATTEMPT": 0}]  # the ranks agree on one; the same at every start


def logs(job):
    return [(job.directory / f"unreft/{host.name}.log").read_text() for host in job.hosts()]


def starts_of_daemons(job):
    """How often the daemon of each slot was started."""
    return [len(re.findall(r" unreftd [\d.]+, pid \d+: ", text)) for text in logs(job)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=["agreed", "all-0"])
def test_a_rank_is_killed(job, numbers):
    """The step of the ranks is started again beside the same daemons, by whatever number."""
    job.begin(**numbers)
    for rank in (1, 0):
        attempts = len(job.restored())
        job.signal_rank(rank)
        job.restores(attempts)
    assert starts_of_daemons(job) == [1, 1, 1]
    assert re.search(r"the ranks have ended with \d+ after start 0", job.output())
    job.end()


def test_a_daemon_and_the_store_are_killed(job):
    """Training goes on, and is protected again."""
    job.begin()
    host = job.hosts()[1]
    host.signal(int(host.path(f"/run/unreft-0/{job.name}/unreftd.lock").read_text()))
    wait_until("the next daemon", lambda: starts_of_daemons(job) == [1, 2, 1])
    job.trains_on(10)

    (host,) = [each for each in job.hosts() if each.name == job.asked("BatchHost")]
    host.signal(int(host.run("pgrep", "-f", "^unreftd --role=meta")))
    store = job.directory / "unreft/store.log"
    wait_until("the next store", lambda: store.read_text().count(" serves at ") == 2)
    job.trains_on(10)
    job.end()


def test_the_job_is_queued_again(job):
    """Its memory waits for it: by an operator, by the time limit, and while ranks hang."""
    job.begin()
    hosts = job.hosts()

    attempts = len(job.restored())
    job.requeue()
    job.restores(attempts)

    attempts = len(job.restored())
    job.machines.ask("scancel", "--batch", "--signal=USR1", job.ids[0])
    job.wait_queued_again()
    job.restores(attempts)

    attempts = len(job.restored())
    job.signal_rank(2, "STOP")
    job.requeue()
    job.restores(attempts)

    assert job.hosts() == hosts
    assert job.asked("Restarts") == "3"
    job.end()


def test_nodes_are_drained(job):
    """Another host takes the slot; one that comes back with memory of the past restores nothing
    of it."""
    job.begin()
    first = job.hosts()
    spare = job.spare()

    def move(drained):
        attempts = len(job.restored())
        job.machines.drain(drained)
        job.trains_on()
        job.requeue()
        wait_until("the end of the attempt", lambda: drained not in job.hosts())
        job.restores(attempts)

    move(first[1])
    assert job.hosts() == [first[0], spare, first[2]]
    assert job.memory(first[1]), "the memory of a drained node is its operator's"
    left = first[1].run("unreft", "memory")
    assert re.search(rf"{job.name} +1 .* none\n", left)

    # It comes back, for another slot: what it held is freed.
    job.machines.resume(first[1])
    move(first[2])
    assert job.hosts() == [first[0], spare, first[1]]
    assert {name.split(".")[2] for name in job.memory(first[1])} == {"2"}

    # This one for the slot that it had, which has gone on without it.
    job.machines.resume(first[2])
    move(first[1])
    assert job.hosts() == [first[0], spare, first[2]]

    job.unreft(first[1], "down")
    assert job.memory(first[1]) == []
    job.end()


def test_a_node_dies(job):
    """That of the batch script and the store: Slurm queues the job again by itself."""
    job.begin()
    first, spare, attempts = job.hosts(), job.spare(), len(job.restored())
    first[0].power_off()
    job.wait_queued_again()
    job.restores(attempts)
    assert job.hosts() == [spare, first[1], first[2]]
    job.end()


def test_too_much_is_lost(job):
    """More hosts than the parities make up for, as when an epilog clears their /dev/shm."""
    job.begin()
    hosts = job.hosts()
    job.machines.ask("scancel", job.ids[-1])
    job.wait_state("CANCELLED")
    for host in hosts[:2]:
        host.script(f"rm /dev/shm/unreft.{job.name}.*")
    on_these = "--nodelist=" + ",".join(host.name for host in hosts)
    job.submit(on_these, RESTARTS=1)
    job.wait_state("FAILED")
    assert re.search(r"unrecoverable: version 1:\d+ .* was committed, and no version is whole",
                     job.output(1))
    assert len(re.findall(r"the ranks have ended with \d+ after start", job.output(1))) == 2
    job.submit(on_these, TRAIN="true")
    job.wait_state("COMPLETED")
    assert not any(job.memory(host) for host in hosts)
    job.submit(on_these)
    wait_until("another beginning", lambda: job.restored() == [None, None])
    job.trains_on()
    job.end()


def test_a_second_job_of_the_name_waits_or_is_refused(job):
    """And the first one trains on as if it was alone."""
    job.begin()
    first = job.ids[0]
    job.submit()
    wait_until("a reason", lambda: job.asked("Reason") == "Dependency")
    job.machines.ask("scancel", job.ids[-1])

    hosts = (job.directory / "unreft/hosts").read_text()
    job.submit(f"--dependency=after:{first}", "--nodelist=n[1-3]")
    job.wait_state("FAILED")
    assert f"job {first} trains as {job.name} already: end it" in job.output(2)
    job.trains_on()
    assert (job.directory / "unreft/hosts").read_text() == hosts
    assert starts_of_daemons(job) == [1, 1, 1]
    job.ids.append(first)
    job.end()


def test_a_daemon_of_somebody_else_is_left_alone(job):
    """A job does not train with a daemon that it has not started, and ends none."""
    machines = job.machines
    run_dir = f"/run/unreft-0/{job.name}"
    host = machines.nodes[1]
    host.run("unreft", "--job", job.name, "--run-dir", run_dir, "up")
    job.submit("--nodelist=n[0-2]")
    job.wait_state("FAILED")
    assert f"{host.name}: a daemon that this job has not started serves {job.name} here" in (
        job.output())
    assert f"unreft --run-dir {run_dir} down" in job.output()
    assert job.restored() == []
    job.unreft(host, "status", "--own")
    job.unreft(host, "down")
    job.begin("--nodelist=n[0-2]")

    # The other way round: the job is first.
    second = host.ask("unreftd", "--job", job.name, "--run-dir", run_dir)
    assert second.returncode == 1
    assert f"{run_dir} is in use by process" in second.stderr
    job.trains_on()
    job.end()


def start_by_hand(job, log, **environment):
    """The ranks of the job again, in the same allocation."""
    given = {"UNREFT_JOB": job.name, "UNREFT_SOCKET": f"/run/unreft-0/{job.name}/unreftd.sock",
             "WORLD_SIZE": 3, "MASTER_ADDR": job.hosts()[0].name, "MASTER_PORT": 19999,
             **environment}
    return job.machines.control.start(log.name, "\n".join([
        *(f"export {name}={value}" for name, value in given.items()),
        f"exec srun --jobid={job.ids[-1]} --overlap --nodes=3 --ntasks=3 --ntasks-per-node=1 "
        f"bash -c 'RANK=$SLURM_PROCID exec {job.trainer(log)}'"]))


def refusals(log):
    return [line["message"] for line in records(log) if "error" in line]


@pytest.mark.parametrize("numbers", NUMBERS, ids=["agreed", "all-0"])
def test_ranks_are_started_twice(job, numbers):
    """While those of the first start live the second is told so, also if these hang."""
    job.begin(**numbers)
    log = job.directory / "second"
    assert start_by_hand(job, log, **numbers).wait() != 0
    job.trains_on()

    attempts = len(job.restored())
    pids = {rank: line["pid"] for rank, line in job.newest().items()}
    for rank in pids:
        job.signal_rank(rank, "STOP")
    assert start_by_hand(job, log, **numbers).wait() != 0
    said = refusals(log)
    assert len(said) == 6
    for rank, pid in pids.items():
        assert any(f"pid {pid}" in line for line in said[3:]), said
    assert all(re.search(r"\blives?\b", line) for line in said), said
    assert not [line for line in records(log) if "restored" in line]

    job.signal_rank(1)
    job.restores(attempts)
    job.end()


@pytest.mark.parametrize("numbers", NUMBERS, ids=["agreed", "all-0"])
def test_two_starts_take_turns(job, undisturbed, numbers):
    """Who waits when a rank of the first dies may go on; the other waits then. Neither mixes with
    the other, or undoes what it has done."""
    job.begin(**numbers)
    log = job.directory / "second"
    second = start_by_hand(job, log, **numbers)
    wait_until("its refusal", lambda: any("a session of pid" in text for text in logs(job)))
    job.signal_rank(1)
    wait_until("one of them", lambda: job.restored(log) or len(job.restored()) > 1)
    for _ in range(3):
        newest = max(job.last_step(), job.last_step(log))
        wait_until("steps", lambda: max(job.last_step(), job.last_step(log)) > newest + 5)
    job.until.touch()
    second.wait()
    job.wait_state("COMPLETED")
    job.check_exact(undisturbed)
    if job.restored(log):
        job.check_exact(undisturbed, log)
    # By the time of their beginnings: what is restored never goes back by more than a step or two.
    lines = sorted((line for each in (job.step_log, log) for line in records(each)
                    if "step" in line or "restored" in line), key=lambda line: line["unix_s"])
    done = {}
    for line in lines:
        if "restored" in line:
            assert (line["restored"] or 0) >= max(done.values(), default=0) - 2, line
        elif "step" in line:
            done[line["rank"]] = line["step"]


def test_an_srun_is_an_attempt_of_its_own(job):
    """Without a process group and without a number from anybody."""
    job.begin()
    client = "import unreft; unreft.Client(rank=0, world=3, connect_timeout_s=1)"
    text = "".join(job.machines.ask(
        "srun", f"--jobid={job.ids[0]}", "--overlap", "--nodes=1", "--ntasks=1",
        f"--nodelist={job.hosts()[0].name}", "env", f"UNREFT_JOB={job.name}",
        f"UNREFT_SOCKET=/run/unreft-0/{job.name}/unreftd.sock", "bash", "-c",
        f"echo step $SLURM_STEP_ID; python -c '{client}' 2>&1 | tail -n 1"))
    step = int(re.search(r"step (\d+)", text)[1])
    assert f"attempt {(int(job.ids[0]) * 10000 + step) * 100} may begin once" in text
    job.trains_on()
    job.end()


def test_a_cancelled_job_keeps_its_memory(job):
    """Until it is submitted again, to go on or to give the memory back."""
    job.begin("--nodelist=n[0-2]")
    job.machines.ask("scancel", job.ids[-1])
    job.wait_state("CANCELLED")

    # Who has lost the file of the slots is told so, before anything is freed.
    slots = job.directory / "unreft/hosts"
    slots.rename(job.directory / "hosts")
    for number in (1, 2):
        job.submit("--nodelist=n[1-3]")
        job.wait_state("FAILED")
        assert f"n1 holds memory of {job.name}, of a slot that {slots} did not know" in (
            job.output(number))
    (job.directory / "hosts").rename(slots)

    hosts = ",".join(host.name for host in job.hosts())
    job.submit(f"--nodelist={hosts}")
    job.restores(1)
    job.machines.ask("scancel", job.ids[-1])
    job.wait_state("CANCELLED")
    assert all(job.memory(host) for host in job.hosts())
    freed = job.hosts()
    job.submit("--nodes=2", TRAIN="true")
    job.wait_state("FAILED")
    assert f"{job.name} was started on 3 nodes: give it as many" in job.output(4)
    job.submit(f"--nodelist={hosts}", TRAIN="true")
    job.wait_state("COMPLETED")
    assert not any(job.memory(host) for host in freed)
