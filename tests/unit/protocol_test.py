#!/usr/bin/env python3
"""docs/protocol.md: the rules that code cites are there, and so is the code that they cite."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = "docs/protocol.md"
CITED = re.compile(r"protocol\.md,\s+(?://\s*|#\s*)?rules?\s+(?://\s*|#\s*)?(\d+)(?:\s+and\s+(\d+))?")


def tracked_files():
    """Without a repository, as in an unpacked archive, every file under the usual folders."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines()]
    folders = ("src", "include", "tests", "docs", "tools", "integrations")
    return [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]


def texts_of(endings):
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
            for file in tracked_files() if file.suffix in endings and file.is_file()}


def rules():
    """number -> its section of the page."""
    parts = re.split(r"^### (\d+)\. ", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def named_in(section, heading):
    """What stands in backticks in that paragraph, without white space."""
    paragraph = re.search(rf"^\*\*{heading}\.\*\* (.*?)(?:\n\n|\Z)", section, flags=re.M | re.S)
    return [re.sub(r"\s+", "", name) for name in re.findall(r"`([^`]*)`", paragraph.group(1))]


class Tests:
    """All tests there are, by name."""

    def __init__(self):
        self.texts = texts_of({".cc", ".h", ".py", ".txt"})
        self.files = {pathlib.Path(name).name for name in self.texts}
        code = "\n".join(text for name, text in self.texts.items() if "tests/" in name)
        self.cases = {f"{suite}.{case}" for suite, case in
                      re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", code)}
        self.words = set(re.findall(r"\w+", code))

    def has(self, name):
        if name.endswith(".py"):
            return name in self.files
        if name.endswith("_test") and f"{name}.cc" in self.files:
            return True
        if "." in name:
            case = name.removesuffix("...")
            return any(found == case or (name.endswith("...") and found.startswith(case))
                       for found in self.cases)
        return name in self.words


class ProtocolTest(unittest.TestCase):
    def test_the_rules_are_numbered_one_by_one(self):
        self.assertEqual(list(rules()), list(range(1, len(rules()) + 1)))

    def test_each_rule_that_is_cited_is_there(self):
        known, cited = rules(), 0
        for name, text in texts_of({".cc", ".h", ".cu", ".py", ".md", ".proto"}).items():
            self.assertIsNone(re.search(r"PROTOCOL\s+(?://\s*)?rule", text), name)
            for numbers in CITED.findall(text):
                for number in filter(None, numbers):
                    cited += 1
                    self.assertIn(int(number), known, name)
        self.assertGreater(cited, 40)

    def test_the_code_that_is_named_is_there(self):
        for number, section in rules().items():
            files = named_in(section, "Code")
            self.assertTrue(files, f"rule {number} names no code")
            for file in files:
                self.assertTrue((ROOT / file).is_file(), f"rule {number}: {file}")

    def test_the_tests_that_are_named_are_there(self):
        tests = Tests()
        for number, section in rules().items():
            suite, names = "", named_in(section, "Tests")
            self.assertTrue(names, f"rule {number} names no test")
            for name in names:
                name = suite + name if name.startswith(".") else name
                suite = name.split(".")[0]
                self.assertTrue(tests.has(name), f"rule {number}: {name}")

    def test_each_rule_says_which_hole_it_closes(self):
        for number, section in rules().items():
            self.assertRegex(section, r"\n\*\*Hole\.\*\* \w", f"rule {number}")


if __name__ == "__main__":
    unittest.main()
