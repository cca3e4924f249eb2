"""The alert rules of docs/alerts.yml: Prometheus accepts them, and what they name is measured."""

import math
import re
import subprocess

from cli_testing import ROOT

RULES = ROOT / "docs" / "alerts.yml"


def samples(text):
    """Value by name, of samples without labels."""
    return {
        line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[:1] != "#"
    }


def test_prometheus_accepts_the_rules():
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert re.search(r"SUCCESS: [1-9]\d* rules found", checked.stdout)


def test_every_metric_of_the_rules_is_one_of_the_daemon(cli):
    cli("up")
    measured = samples(cli("metrics"))
    named = set(re.findall(r"\bunreft_[a-z_]+", RULES.read_text()))
    assert {"unreft_protected", "unreft_seconds_since_commit"} <= named <= set(measured)


def test_a_job_that_does_not_run_is_neither_protected_nor_an_alarm(cli):
    cli("up")
    before = samples(cli("metrics"))
    assert math.isnan(before["unreft_protected"])
    assert math.isnan(before["unreft_seconds_since_commit"])
    job = cli.train()
    cli.wait_committed(job, 3)
    during = samples(cli("metrics"))
    assert during["unreft_protected"] == 1 and 0 <= during["unreft_seconds_since_commit"] < 60
    job.interrupt()
    after = samples(cli("metrics"))
    assert math.isnan(after["unreft_protected"])
