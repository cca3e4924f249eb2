"""The comparison with async_save, with few bytes: it compares what it restores and says it all."""

import json
import os
import subprocess
import sys

import cli_testing

SCRIPT = cli_testing.ROOT / "integrations/python/bench/against_dcp.py"
METHODS = ["unreft", "dcp_shm", "dcp_shm_staged", "dcp_disk", "dcp_disk_staged"]


def test_a_small_run(tmp_path):
    environment = {**os.environ, "UNREFT_BIN_DIR": str(cli_testing.BIN_DIR)}
    command = [sys.executable, SCRIPT, "--out", tmp_path, "--mib", 8, "--rounds", 1]
    done = subprocess.run([str(word) for word in [*command, "--disk", tmp_path]], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=240,
                          env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "against_dcp.json").read_text())}
    for what in ("blocked", "process", "restore"):
        row = rows[f"against_dcp_{what}"]
        assert list(row["all"]) == METHODS
        assert row["value"] == row["all"]["unreft"] > 0
        assert row["reference"] == min(row["all"][name] for name in METHODS[1:])
    assert rows["against_dcp_node"]["value"] > 0
    assert rows["against_dcp_node_restore"]["value"] > 0
    printed = done.stdout.splitlines()[2:]
    assert [line.split()[0] for line in printed[:5]] == METHODS
    assert printed[5].startswith("unreft, RS(2,2)")
    assert not list(tmp_path.glob("unreft-dcp-*"))
