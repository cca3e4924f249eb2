"""Checks what CONTRIBUTING asks of every file and a compiler does not see.

Long lines, headers without an opening comment, marks of unfinished work, and sleeping
in the product. Plain Python 3, run by ctest. It prints every line that breaks a rule.
"""

import os
import pathlib
import re
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(os.environ.get("UNREFT_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
TOPS = ("include", "proto", "src", "tools", "integrations", "tests", "cmake", "examples", ".ci")
SUFFIXES = (".h", ".cc", ".cu", ".c", ".proto", ".py", ".sh", ".cmake")
NAMES = ("CMakeLists.txt", "Makefile")
SKIPPED = ("__pycache__", "golden")

COLUMNS_MAX = 100
# Spelled so that this file passes its own test.
MARK = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
# Waiting for time instead of for what is awaited: time comes from the Executor.
SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(")


def opens_with_comment(path, lines):
    first = lines[0] if lines else ""
    if path.endswith(".h"):
        return first.startswith("//") or first.startswith("/*")
    if path.endswith(".py"):
        text = [line for line in lines if not line.startswith("#!")]
        return not text or text[0].startswith(('"""', "#"))
    return True


def problems_of(path, text):
    """What is wrong with one file, as path:line: why."""
    lines = text.splitlines()
    found = []
    if not opens_with_comment(path, lines):
        found.append(f"{path}:1: does not open with what it is")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX and "://" not in line:
            found.append(f"{path}:{number}: {len(line)} columns")
        if MARK.search(line):
            found.append(f"{path}:{number}: unfinished: {line.strip()}")
        if path.startswith("src/") and SLEEP.search(line.split("//")[0]):
            found.append(f"{path}:{number}: sleeps: {line.strip()}")
        if line != line.rstrip() or "\t" in line and not path.endswith("Makefile"):
            found.append(f"{path}:{number}: tab or space at the end")
    return found


def files_of(root):
    for top in TOPS:
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root)
            if file.is_file() and (file.suffix in SUFFIXES or file.name in NAMES):
                if not any(part in SKIPPED for part in path.parts):
                    yield path.as_posix(), file


class StyleTest(unittest.TestCase):
    def test_every_file(self):
        files = list(files_of(SOURCE_DIR))
        self.assertGreater(len(files), 20, "looks at the wrong place")
        found = [problem for path, file in files for problem in problems_of(path, file.read_text())]
        self.assertEqual(found, [], "\n" + "\n".join(found))


class CheckerTest(unittest.TestCase):
    """The checker itself can fail."""

    def assert_problem(self, path, text, part):
        found = problems_of(path, text)
        self.assertEqual(1, len(found), found)
        self.assertIn(part, found[0])

    def test_a_good_file_passes(self):
        self.assertEqual([], problems_of("src/base/a.h", "// What it is.\n#pragma once\n"))
        self.assertEqual([], problems_of("src/a.cc", "// see https://" + "x" * 100 + "\n"))
        self.assertEqual([], problems_of("tools/a.py", '#!/usr/bin/python3\n"""What."""\n'))
        self.assertEqual([], problems_of("tests/a.cc", "std::this_thread::sleep_for(x);\n"))

    def test_each_rule(self):
        self.assert_problem("src/a.cc", "// " + "x" * 98 + "\n", "101 columns")
        self.assert_problem("src/base/a.h", "#pragma once\n", "does not open")
        self.assert_problem("tools/a.py", "import os\n", "does not open")
        self.assert_problem("src/a.cc", "// TO" + "DO: later\n", "unfinished")
        self.assert_problem("src/a.cc", "  std::this_thread::sleep_for(x);\n", "sleeps")
        self.assert_problem("src/a.cc", "int a; \n", "at the end")

    def test_it_finds_files(self):
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            for path in ("src/a.cc", "src/__pycache__/b.py", "build/c.cc", "docs/d.md"):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text("")
            self.assertEqual(["src/a.cc"], [path for path, _ in files_of(root)])


if __name__ == "__main__":
    unittest.main()
