"""Durable copies on an object store: the seam's own suite, and jobs that write to it and come back.

They run in the environment of tests/s3/requirements.txt.
"""

import re
import subprocess

import pytest

from cli_testing import BIN_DIR, COMMAND_TIMEOUT_S, wait_until
from cluster_testing import NODES, train, up_nodes, wait_protected
from export_testing import read
from s3_server import KEY, SECRET
from test_cli_export import FAILED, expected, exported
from test_cli_export_policy import PATIENCE_S, durable, policy
from test_restore_from_copy import forget_memory, restored

SUITE = BIN_DIR.parent / "tests/s3_cold_store_conformance_test"
SUITE_S = 180
USAGE = 2


@pytest.fixture
def prefix(request):
    return re.sub(r"[^a-z]+", "-", request.node.name)


@pytest.fixture
def place(bucket, environment, prefix):
    return f"s3://unreft-tests/{prefix}"


def copies(bucket, prefix):
    """The directories of those that are complete, by step."""
    found = {}
    for key in bucket.keys(prefix + "/"):
        directory, _, name = key.rpartition("/")
        if name == ".metadata":
            found[int(directory.split("/")[-1].split("-")[3])] = directory
    return found


def wait_newer(bucket, prefix, step):
    return wait_until(f"a copy after step {step}",
                      lambda: max((s for s in copies(bucket, prefix) if s > step), default=None),
                      PATIENCE_S)


def test_the_suite_of_the_seam(place):
    # Of the second form of the store what its pages and parts can change.
    once_more = (f"S3SmallPagesAndLargeParts/*{name}*" for name in ("Appends", "Lists", "OfTwo"))
    words = ["--gtest_brief=1", f"--gtest_filter=S3/*:S3ColdStore.*:{':'.join(once_more)}"]
    done = subprocess.run([SUITE, place, *words], capture_output=True, text=True, timeout=SUITE_S,
                          check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"PASSED.* [2-9][0-9] tests", done.stdout)


def test_an_export_of_four_nodes_is_read_by_torch(cli, bucket, place, prefix, tmp_path):
    up_nodes(cli, "--pins", 1)
    job = train(cli)
    wait_protected(cli, job, 2)
    copy = exported(cli, f"{place}/copy")
    assert copy["dir"] == f"{place}/copy" and copy["tensors"] == NODES
    bucket.fetch(f"{prefix}/copy", tmp_path / "fetched")
    assert read(tmp_path / "fetched", "digest", "weights1") == expected(1, copy["step"])
    # A name is made once: what is there is left alone.
    before = bucket.keys(prefix)
    cli("export", f"{place}/copy", code=FAILED)
    assert f"{place}/copy: it has a checkpoint already" in cli.stderr
    assert bucket.keys(prefix) == before
    weights = exported(cli, f"{place}/weights/", "--format", "safetensors")
    assert weights["state"] == "done"
    assert any(key.endswith(".safetensors.index.json") for key in bucket.keys(f"{prefix}/weights"))
    wait_protected(cli, job, cli.committed() + 3)
    assert not bucket.under_way()


def test_memory_that_is_lost_comes_back_and_a_damaged_copy_is_passed_over(cli, bucket, place,
                                                                          prefix):
    cli("up", "--", *policy(place, every_s=1, keep=2))
    job = cli.train()
    first = wait_newer(bucket, prefix, 0)
    wait_newer(bucket, prefix, first)
    job.interrupt()
    job.wait()
    wait_until("the last copy", lambda: cli.committed() in copies(bucket, prefix), PATIENCE_S)
    # Of older ones no object stays, once it has ended.
    wait_until("old ones to go", lambda: len(copies(bucket, prefix)) == 2, PATIENCE_S)
    wait_until("all of them to go",
               lambda: {k.split("/")[1] for k in bucket.keys(prefix + "/")} ==
               {d.split("/")[1] for d in copies(bucket, prefix).values()}, PATIENCE_S)
    newest, before = sorted(copies(bucket, prefix), reverse=True)
    forget_memory(cli)
    cli("up", "--", *policy(place, every_s=3600))
    job = cli.train()
    assert restored(job, 2) == [newest, newest]
    told = {record.get("durable_copy") for record in job.lines() if "restored" in record}
    assert len(told) == 1 and told.pop().startswith(f"{place}/")
    assert re.search(rf"version \d+:{newest} comes out of the durable copy {place}/", cli.log())
    job.interrupt()
    job.wait()
    forget_memory(cli)
    items = f"{copies(bucket, prefix)[newest]}/__1_0.distcp"
    data = bytearray(bucket.get(items))
    data[len(data) // 2] ^= 1
    bucket.put(items, bytes(data))
    cli("up", "--", *policy(place, every_s=3600))
    job = cli.train()
    assert restored(job, 2) == [before, before]
    assert re.search(rf"a durable copy is not loaded: .*{place}/.*__1_0.distcp", cli.log())
    job.interrupt()
    job.wait()


def test_cancelled_it_leaves_nothing(cli, bucket, place, prefix):
    cli("up", "--", "--pins", 1)
    job = cli.train()
    cli.wait_committed(job, 3)
    process = subprocess.Popen(
        cli.command("export", f"{place}/copy", "--bytes-per-s", 300_000),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until("its order", lambda: bucket.keys(prefix), PATIENCE_S)
    cli("export", "--cancel")
    _, said = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == FAILED and "it was cancelled" in said
    wait_until("its end", lambda: not bucket.keys(prefix))
    assert not bucket.under_way()
    job.interrupt()
    job.wait()


def test_what_stands_in_the_way_is_told_and_training_goes_on(cli, bucket, place, prefix,
                                                             environment, tmp_path):
    def refused(where, code=FAILED):
        cli("export", where, code=code)
        return cli.stderr

    def wait_refused(where, why):
        """Once it is not busy with a copy of its own."""
        wait_until(f"the refusal for {why}", lambda: why in refused(where), PATIENCE_S)

    def credentials(secret):
        """In one step: the daemons may read the file at any time."""
        draft = tmp_path / "draft"
        draft.write_text(f"[of-tests]\naws_access_key_id = {KEY}\n"
                         f"aws_secret_access_key = {secret}\n")
        draft.rename(tmp_path / "keys")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    environment.setenv("AWS_PROFILE", "of-tests")
    credentials(SECRET)
    cli("up", "--", *policy(place, every_s=1))
    job = cli.train()
    wait_newer(bucket, prefix, 0)
    credentials("not-the-secret-of-it")
    error = wait_until("the error", lambda: durable(cli)["error"], PATIENCE_S)
    assert "403 SignatureDoesNotMatch" in error and place in error
    wait_refused(f"{place}/copy", "403 SignatureDoesNotMatch")
    cli.wait_committed(job, cli.committed() + 3)
    credentials(SECRET)
    wait_newer(bucket, prefix, max(copies(bucket, prefix)))
    for wrong in ("s3://Not_A_Bucket/x", "s3://unreft-tests/a b", "s3://unreft-tests/../x"):
        assert "needed s3://BUCKET/PREFIX" in refused(wrong, code=USAGE)
    wait_refused("s3://not-there/x", "needed the bucket 'not-there'")
    cli.wait_committed(job, cli.committed() + 3)
    job.interrupt()
    job.wait()
    assert "not-the-secret-of-it" not in cli.log() and SECRET not in cli.log()
    # A job whose memory is lost does not begin anew because its copies cannot be looked at.
    forget_memory(cli)
    credentials("not-the-secret-of-it")
    cli("up", "--", *policy(place))
    job = cli.train("--max-restarts", 0)
    assert job.wait() != 0
    assert "no durable copy could be loaded" in job.output()
    assert "403 SignatureDoesNotMatch" in job.output()


def test_a_server_that_is_away_is_told_and_training_goes_on(cli, place, environment):
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    cli("up", "--", "--pins", 1)
    job = cli.train()
    cli.wait_committed(job, 3)
    cli("export", f"{place}/copy", code=FAILED)
    assert "127.0.0.1" in cli.stderr and "attempts" in cli.stderr
    cli.wait_committed(job, cli.committed() + 3)
    job.interrupt()
    job.wait()
