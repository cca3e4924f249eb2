"""The metrics and docs/alerts.yml: Prometheus accepts both, and what the rules name is measured."""

import math
import re
import shutil
import subprocess
import urllib.request

import pytest

from cli_testing import ROOT, wait_until
from cluster_testing import NODES, train, up_nodes, wait_protected

RULES = ROOT / "docs" / "alerts.yml"


@pytest.fixture
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    return found


def samples(text):
    """Value by name, of samples of one node with no other label than job and node."""
    found = {}
    for line in text.splitlines():
        sample = re.fullmatch(r'(\w+){job="[^"]+",node="\d+"} (\S+)', line)
        if sample:
            found[sample[1]] = float(sample[2])
    return found


def scrape(node):
    """By HTTP, from where the daemon's log says that it answers."""
    with open(node["log"]) as log:
        (url,) = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", log.read())
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_prometheus_accepts_the_rules(promtool):
    checked = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert re.search(r"SUCCESS: [1-9]\d* rules found", checked.stdout)


class TestSeveralNodes:
    def test_prometheus_accepts_what_is_measured_and_the_rules_name_it(self, cli, promtool):
        up_nodes(cli, "--metrics-listen", "0")
        job = train(cli)
        wait_protected(cli, job, 1)
        scraped = [scrape(node) for node in cli.up["nodes"]]
        named = set(re.findall(r"\bunreft_[a-z_]+", RULES.read_text()))
        leading = 0
        measured = set()
        for node, text in enumerate(scraped):
            checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True,
                                     capture_output=True)
            assert checked.returncode == 0, checked.stdout + checked.stderr
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            labels = f'job="{cli.job}",node="{node}"'
            assert lines and all(labels in line for line in lines)
            measured |= {re.match(r"\w+", line)[0] for line in lines}
            own = samples(text)
            leading += own["unreft_leader"]
            assert own["unreft_store_reachable"] == own["unreft_counted"] == 1
            assert own["unreft_protected"] == 1 and own["unreft_seconds_since_commit"] < 60
            assert f'unreft_members{{{labels},state="present"}} {NODES}' in lines
        assert leading == 1 and named <= measured, named - measured
        (stands,) = [line for text in scraped for line in text.splitlines()
                     if line.startswith("unreft_group_stands{")]
        assert stands.startswith('unreft_group_stands{group="0",') and stands.endswith(" 2")

    def test_losses_and_a_store_that_is_away_are_measured(self, cli):
        up_nodes(cli, "--metrics-listen", "0")
        first = cli.up["nodes"][0]
        cli("inject", "kill-node", "--node", 3)
        wait_until("the loss", lambda: 'state="lost"} 1' in scrape(first))
        cli("inject", "kill-meta")
        wait_until("the loss of the store",
                   lambda: samples(scrape(first))["unreft_store_reachable"] == 0)


def test_every_metric_of_the_rules_is_documented():
    document = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"\bunreft_[a-z_]+", RULES.read_text()))
    assert {"unreft_protected", "unreft_group_stands"} <= named
    assert [name for name in sorted(named) if f"| `{name}` |" not in document] == []


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
