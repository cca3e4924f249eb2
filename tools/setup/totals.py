"""Adds up JUnit files: totals.py STATUS FILE...

Prints what failed or was skipped by name, and as the last line `N passed, N failed[, N skipped]`.
STATUS is the runners' own verdict: non-zero with no failure in the files still fails.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree


def verdict(case):
    """The fate of one <testcase>: 'passed', 'failed' or 'skipped'."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is not None:
        # To ctest a test whose program is not there is "skipped" too; to us it failed.
        unable = (skipped.get("message") or "").startswith("Unable to find executable")
        return "failed" if unable else "skipped"
    if case.get("status") == "disabled":
        return "skipped"
    return "passed" if case.get("status") in (None, "run") else "failed"


def main(argv):
    runners_failed = argv[1] != "0"
    names = {"passed": [], "failed": [], "skipped": []}
    for path in argv[2:]:
        suite = {"passed": 0, "failed": 0, "skipped": 0}
        for case in ElementTree.parse(path).iter("testcase"):
            fate = verdict(case)
            suite[fate] += 1
            name, owner = case.get("name"), case.get("classname")
            names[fate].append(name if owner in (None, name) else f"{owner}::{name}")
        label = os.path.basename(path).removesuffix(".xml")
        print(f"{label}: " + ", ".join(f"{n} {fate}" for fate, n in suite.items()))
    for fate in ("skipped", "failed"):
        for name in names[fate]:
            print(f"  {fate}: {name}")
    if runners_failed and not names["failed"]:
        print("  failed: a test runner itself (see above)")
        names["failed"].append("runner")
    line = f"{len(names['passed'])} passed, {len(names['failed'])} failed"
    if names["skipped"]:
        line += f", {len(names['skipped'])} skipped"
    print(line)
    return 1 if names["failed"] or not names["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
