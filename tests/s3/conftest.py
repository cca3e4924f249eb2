"""A server of S3 of the tests' own, on loopback, with the command line of tests/python."""

import pathlib
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python")]

from cli_testing import Cli  # noqa: E402
from s3_server import KEY, REGION, SECRET, Bucket, start  # noqa: E402

BUCKET = "unreft-tests"
READY_S = 60


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Its endpoint; it has one empty bucket."""
    directory = tmp_path_factory.mktemp("s3")
    process, endpoint = start(directory)
    try:
        deadline = time.monotonic() + READY_S
        bucket = Bucket(endpoint, BUCKET)
        # Until all its parts have found one another it answers with errors.
        while not bucket.make():
            log = (directory / "log").read_text()
            assert process.poll() is None and time.monotonic() < deadline, log[-4000:]
            time.sleep(0.1)
        yield endpoint
    finally:
        process.kill()  # nobody reads again what it has
        process.wait()


@pytest.fixture
def bucket(server):
    return Bucket(server, BUCKET)


@pytest.fixture
def environment(server, monkeypatch, tmp_path):
    """What daemons that are started find the server by."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return monkeypatch


@pytest.fixture
def cli():
    cli = Cli()
    yield cli
    cli.close()
