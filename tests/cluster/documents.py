"""The shell blocks of the documents, by the names in the comments above them.

A block that is run by a test has `<!-- run: NAME -->` above it. What differs from cluster to
cluster stands in variables at its top: lines of nothing but NAME=value. Only these are replaced, so
that everything below them is what an operator reads.
"""

import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
NAMED = re.compile(r"^<!-- run: ([a-z0-9-]+) -->\n```[a-z]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'#]+)"""
ASSIGNMENTS = re.compile(rf"^(?:[A-Z_]+={WORD}\s*)+(?:#.*)?$")


def blocks(page):
    """The named blocks of a page, in its order."""
    found = NAMED.findall((DOCS / page).read_text())
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), f"{page}: a name comes twice: {names}"
    return dict(found)


def set_variables(text, values):
    """The block with other values in the assignments at its top."""
    lines = text.splitlines()
    size = next((n for n, line in enumerate(lines) if not ASSIGNMENTS.match(line)), len(lines))
    head, rest = "\n".join(lines[:size]), "\n".join(lines[size:])
    for name, value in values.items():
        head, count = re.subn(rf"\b{name}={WORD}", lambda _, v=value, n=name: f'{n}="{v}"', head)
        assert count == 1, f"{name} is set {count} times at the top of:\n{text}"
    return f"{head}\n{rest}\n"


def script(page, name, **values):
    found = blocks(page)
    assert name in found, f"{page} has no block {name}, but {list(found)}"
    return set_variables(found[name], values)
