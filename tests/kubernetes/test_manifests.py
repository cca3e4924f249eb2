"""examples/kubernetes against the schemas of what they are, and against our own options."""

import os
import pathlib
import re
import subprocess

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/kubernetes"
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")


def manifest(name):
    (document,) = yaml.safe_load_all((EXAMPLES / name).read_text())
    return document


def check(document):
    """Raises for a field that is not known, lacks or is of another type."""
    kubernetes_validate.validate(document, "1.37", strict=True)


def check_jobset(document):
    # JobSet is no part of Kubernetes; its jobs are.
    read = JobsetV1alpha2JobSet.from_dict(document).to_dict()
    assert unknown(document, read) == []
    for job in document["spec"]["replicatedJobs"]:
        check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]},
               **job["template"]})


def unknown(given, read, path=""):
    """What is given and was not read: fields that JobSet does not have."""
    if isinstance(given, dict):
        lacking = [f"{path}/{key}" for key in given if key not in read]
        return lacking + [found for key in given if key in read
                          for found in unknown(given[key], read[key], f"{path}/{key}")]
    if isinstance(given, list):
        return [found for i, pair in enumerate(zip(given, read))
                for found in unknown(*pair, f"{path}/{i}")]
    return []


def test_daemon():
    check(manifest("daemon.yaml"))


def test_trainer():
    check_jobset(manifest("trainer.yaml"))


def test_the_checks_find_something():
    daemon = manifest("daemon.yaml")
    daemon["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(Exception, match="hostPid"):
        check(daemon)
    trainer = manifest("trainer.yaml")
    trainer["spec"]["failurePolicy"]["retries"] = 3
    with pytest.raises(AssertionError, match="failurePolicy/retries"):
        check_jobset(trainer)


def pod_of_daemon():
    return manifest("daemon.yaml")["spec"]["template"]["spec"]


def pod_of_trainer():
    (job,) = manifest("trainer.yaml")["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


def test_the_daemon_has_such_options():
    (container,) = pod_of_daemon()["containers"]
    given = set(re.findall(r"--[a-z-]+", container["args"][0]))
    said = subprocess.run([BIN_DIR / "unreftd", "--help"], capture_output=True, text=True,
                          check=True).stdout
    assert len(given) > 10 and given <= set(re.findall(r"--[a-z-]+", said))


def test_both_share_what_they_talk_by():
    daemon, trainer = pod_of_daemon(), pod_of_trainer()
    assert daemon["hostPID"] and not trainer.get("hostPID")
    users = {pod["containers"][0]["securityContext"]["runAsUser"] for pod in (daemon, trainer)}
    assert len(users) == 1
    for pod in (daemon, trainer):
        paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"]}
        mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
        assert paths["shm"] == mounts["shm"] == "/dev/shm"
        assert paths["state"] == mounts["state"] == "/var/lib/unreft"
    environment = {e["name"]: e["value"] for e in trainer["containers"][0]["env"]}
    run_dir = re.search(r"--run-dir (\S+)", daemon["containers"][0]["args"][0])[1]
    assert environment["UNREFT_SOCKET"] == f"{run_dir}/unreftd.sock"
