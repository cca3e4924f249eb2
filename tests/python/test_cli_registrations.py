"""Ranks on several nodes whose registrations do not fit together: refused, not captured."""

import threading

import numpy as np
import unreft

from cli_testing import wait_until

TIMEOUT_S = 60


def client(cli, rank):
    socket = str(cli.run_dir / f"node{rank}" / "unreftd.sock")
    return unreft.Client(socket=socket, job=cli.job, rank=rank, world=2, attempt=0)


def replica(weights, index):
    return [unreft.Tensor.of_array("weights", weights, replica_index=index, replica_count=2)]


def snapshot(clients, step):
    for one in clients:
        one.fence()
    return [one.snapshot(step) for one in clients]


def test_a_later_registration_that_changes_only_its_replica_index(cli):
    cli("up", "--nodes", 2)
    weights = np.arange(1 << 16, dtype=np.float64)
    with client(cli, 0) as one, client(cli, 1) as other:
        clients = [one, other]
        threads = [threading.Thread(target=each.restore_begin) for each in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index, each in enumerate(clients):
            each.register(replica(weights, index))
        for each in clients:
            each.wait_ready(TIMEOUT_S)
        assert all(shot.started for shot in snapshot(clients, 1))
        for each in clients:
            each.wait_committed(1, TIMEOUT_S)

        other.register(replica(weights, 0))
        step = 1
        started = []

        def refused():
            nonlocal step
            step += 1
            shots = snapshot(clients, step)
            started.append(shots[1].started)
            return "replica" in shots[1].reason and shots[1].reason

        reason = wait_until("the misfit", refused, TIMEOUT_S)
        assert not any(started), "nothing of it was captured"
        assert "tensor 'weights': ranks 0 and 1 both say that they are replica 0 of 2" in reason
        assert "both say that they are replica 0" in cli("--node", 1, "status")
        status = one.status()
        assert status.last_committed_step == 1
        assert not status.ready

        other.register(replica(weights, 1))

        def committed():
            nonlocal step
            step += 1
            snapshot(clients, step)
            return one.status().last_committed_step > 1

        wait_until("a commit", committed, TIMEOUT_S)
