"""docs/log_lines.md or the table of docs/operations.md has each warning and error of unreftd."""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ.get("UNREFT_SOURCE_DIR") or pathlib.Path(__file__).parents[2])
# Or a line that somebody else is to say.
CALL = re.compile(r"\blog_?(?:\.|->)(?:Warn|Error|WarnEvery)\(|\{LogLevel::k(?:Warn|Error),")
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
# A line of less is a reason that is worded elsewhere, behind a name.
LETTERS_MIN = 10


def arguments(source, begin):
    """The text of a call's arguments from behind its parenthesis, or brace, on."""
    depth, at = 1, begin
    while depth:
        text = TEXT.match(source, at)
        at = text.end() if text else at + 1
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(source[at - 1], 0) if not text else 0
    return source[begin:at - 1]


def behind_first(text):
    """What follows the first of these arguments."""
    depth, at = 0, 0
    while text[at] != "," or depth:
        literal = TEXT.match(text, at)
        depth += 0 if literal else {"(": 1, "{": 1, ")": -1, "}": -1}.get(text[at], 0)
        at = literal.end() if literal else at + 1
    return text[at:]


def formats(source):
    """Of each call the first run of adjacent literals that says something."""
    for call in CALL.finditer(source):
        text = arguments(source, call.end())
        # The first argument of WarnEvery is a key, not a line.
        if call.group().endswith("Every("):
            text = behind_first(text)
        runs = re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+', text)
        joined = ["".join(TEXT.findall(run)) for run in runs]
        said = [line for line in joined if max(map(len, pieces(line))) >= LETTERS_MIN]
        if said or joined:
            yield (said or joined)[0]


def pieces(line):
    """What of the line stands there as it is."""
    return [piece.strip(" :;,.'") for piece in re.split(r"\{[^}]*\}", line)]


class LogLinesTest(unittest.TestCase):
    def setUp(self):
        documents = [ROOT / "docs" / name for name in ("log_lines.md", "operations.md")]
        self.documented = " ".join(" ".join(path.read_text().split()) for path in documents)
        self.lines = []
        for room in ("smp", "meta", "transport"):
            for path in sorted((ROOT / "src" / room).rglob("*.cc")):
                self.lines += [(path.name, line) for line in formats(path.read_text())]

    def test_lines_are_found(self):
        found = {line for _, line in self.lines}
        self.assertIn("the registration of rank {} (pid {}) is refused: {}", found)
        self.assertIn("a connection of uid {} (pid {}) is refused", found)
        self.assertIn("version {} is no candidate: {}", found)
        self.assertGreater(len(found), 60)

    def test_every_line_is_documented(self):
        missing = []
        for name, line in self.lines:
            longest = max(pieces(line), key=len)
            if len(longest) >= LETTERS_MIN and longest not in self.documented:
                missing.append(f"{name}: {line!r}: '{longest}'")
        self.assertEqual(missing, [], "\n" + "\n".join(missing))


if __name__ == "__main__":
    unittest.main()
