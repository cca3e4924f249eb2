"""Checks tests/layers.txt: who includes whom, and which library may be included where.

Plain Python 3, run by ctest. It prints every line that breaks a rule.
"""

import fnmatch
import os
import pathlib
import re
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(os.environ.get("UNREFT_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
PRODUCT_DIRS = ("include", "src", "tools", "integrations")
SUFFIXES = (".h", ".cc", ".cu")
# Directories of the system's own headers. One without a directory (<vector>, <unistd.h>) is the
# system's too, unless a library line names it.
SYSTEM_DIRS = ("sys", "linux", "netinet", "arpa", "net", "asm", "bits")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


class Rules:
    """The lines of layers.txt."""

    def __init__(self, text):
        self.rank = {}  # layer -> its place; equal for siblings
        self.rooms = {}  # layer -> room -> its place; equal for siblings
        self.only = {}  # layer -> the layers it may include
        self.never = {}  # layer -> headers it may not include
        self.free = []  # prefixes
        self.homes = {}  # prefix -> patterns of paths
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#")[0].split()
            if words:
                self._add(number, words)

    def _add(self, number, words):
        kind, rest = words[0], words[1:]
        if kind == "order":
            self.rank = places_of(rest)
        elif kind == "rooms":
            self.rooms[rest[0]] = places_of(rest[1:])
        elif kind == "only":
            self.only[rest[0]] = rest[1:]
        elif kind == "never":
            self.never[rest[0]] = rest[1:]
        elif kind == "free":
            self.free += rest
        elif kind == "library":
            # A pattern of paths begins at the top of the tree; anything else names a header.
            tops = tuple(f"{top}/" for top in PRODUCT_DIRS)
            patterns = [word for word in rest if word.startswith(tops)]
            self.homes.update({word: patterns for word in rest if word not in patterns})
        else:
            raise ValueError(f"layers.txt:{number}: unknown word {kind}")

    def may_include(self, layer, other):
        if layer == other:
            return True
        if layer in self.only:
            return other in self.only[layer]
        return self.rank[other] < self.rank[layer]


def places_of(words):
    return {name: place for place, siblings in enumerate(words) for name in siblings.split("|")}


def layer_of(path):
    parts = pathlib.PurePosixPath(path).parts
    return parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]


def check_quoted(rules, path, header):
    """Ours: a path from src/, or within tools/ and integrations/ from the top."""
    layer, other = layer_of(path), header.split("/")[0]
    if other == "unreft":
        return None  # the public headers
    if "/" not in header:
        return None if layer == "integrations" else "not a path from src/"
    if other not in rules.rank:
        return f"{other} is no layer"
    if not rules.may_include(layer, other):
        return f"{layer} may not include {other}"
    if header in rules.never.get(layer, ()):
        return f"{layer} may never include {header}"
    return check_room(rules, path, header) if layer == other else None


def room_of(path):
    """src/LAYER/ROOM/file; none of a file that lies beside the rooms."""
    parts = pathlib.PurePosixPath(path).parts
    return parts[2] if len(parts) > 3 else None


def check_room(rules, path, header):
    places = rules.rooms.get(layer_of(path))
    if places is None:
        return None
    room, other = room_of(path), room_of(f"src/{header}")
    if other not in places:
        return f"{other} is no room"
    if room != other and places[other] >= places[room]:
        return f"{room} may not include {other}"
    return None


def check_library(rules, path, header):
    homes = [patterns for prefix, patterns in rules.homes.items()
             if header == prefix or (prefix.endswith("/") and header.startswith(prefix))]
    if homes:
        allowed = any(fnmatch.fnmatch(path, pattern) for pattern in homes[0])
        return None if allowed else "this library has another home"
    if header.startswith(tuple(rules.free)):
        return None
    if "/" in header and header.split("/")[0] not in SYSTEM_DIRS:
        return "a library that layers.txt does not name"
    return None


def violations(root, rules):
    """Every include that breaks a rule, as path:line: include: why."""
    found = []
    for path in files_of(root):
        if layer_of(path) not in rules.rank:
            found.append(f"{path}:1: {layer_of(path)} is no layer")
            continue
        rooms = rules.rooms.get(layer_of(path))
        if rooms is not None and room_of(path) not in rooms:
            found.append(f"{path}:1: it is in no room of {layer_of(path)}")
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            check = check_quoted if match[1] == '"' else check_library
            why = check(rules, path, match[2])
            if why:
                found.append(f"{path}:{number}: {match[2]}: {why}")
    return found


def files_of(root):
    return sorted(file.relative_to(root).as_posix() for top in PRODUCT_DIRS
                  for file in (root / top).rglob("*")
                  if file.suffix in SUFFIXES and file.is_file())


class LayersTest(unittest.TestCase):
    def test_the_tree_keeps_its_layers(self):
        rules = Rules((SOURCE_DIR / "tests/layers.txt").read_text())
        self.assertGreater(len(files_of(SOURCE_DIR)), 20, "looks at the wrong place")
        found = violations(SOURCE_DIR, rules)
        self.assertEqual(found, [], "\n" + "\n".join(found))


class CheckerTest(unittest.TestCase):
    """The checker itself can fail."""

    RULES = """
order include base proto layout ec|transport meta snapshot|smp tools|integrations
only snapshot include base layout
never snapshot base/metrics.h
rooms meta core kv|records desk
free absl/ fmt/ unreft/
library rocksdb/ src/base/rocks.cc
library isa-l.h src/ec/*
"""

    def check(self, path, *lines):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / path
            file.parent.mkdir(parents=True)
            file.write_text("\n".join(lines) + "\n")
            return violations(pathlib.Path(directory), Rules(self.RULES))

    def test_allows_what_is_to_the_left(self):
        self.assertEqual([], self.check(
            "src/smp/node.cc", '#include "smp/node.h"', '#include "base/ids.h"',
            "#include <vector>",
            "#include <sys/stat.h>", "#include <absl/status/status.h>", "#include <unreft/c.h>",
            '#include "unreft/c.h"'))

    def test_names_file_line_and_reason(self):
        self.assertEqual(["src/base/a.cc:2: smp/node.h: base may not include smp"],
                         self.check("src/base/a.cc", "// why", '#include "smp/node.h"'))

    def test_refuses_siblings(self):
        for path, header in (("src/ec/a.cc", "transport/b.h"), ("src/transport/a.h", "ec/b.h"),
                             ("src/smp/a.cc", "snapshot/b.h"),
                             ("tools/cli/a.cc", "integrations/b.h")):
            self.assertEqual(1, len(self.check(path, f'#include "{header}"')), path)

    def test_rooms_are_kept_like_layers(self):
        self.assertEqual([], self.check(
            "src/meta/desk/a.cc", '#include "meta/desk/a.h"', '#include "meta/kv/b.h"',
            '#include "meta/core/c.h"', '#include "base/ids.h"'))
        for path, header in (("src/meta/kv/a.cc", "meta/records/b.h"),
                             ("src/meta/core/a.h", "meta/desk/b.h"),
                             ("src/meta/desk/a.h", "meta/attic/b.h"),
                             ("src/meta/desk/a.h", "meta/b.h")):
            self.assertEqual(1, len(self.check(path, f'#include "{header}"')), path)
        for path in ("src/meta/a.cc", "src/meta/attic/a.cc"):
            self.assertEqual(1, len(self.check(path, "#include <vector>")), path)

    def test_refuses_what_the_training_process_must_not_have(self):
        self.assertEqual(3, len(self.check(
            "src/snapshot/a.cc", '#include "base/metrics.h"', '#include "proto/b.h"',
            '  #  include "meta/c.h"', '#include "layout/box.h"')))

    def test_refuses_libraries_outside_their_homes(self):
        self.assertEqual([], self.check("src/base/rocks.cc", "#include <rocksdb/db.h>"))
        self.assertEqual(1, len(self.check("src/base/rocks.h", "#include <rocksdb/db.h>")))
        self.assertEqual(1, len(self.check("src/base/crc.cc", "#include <isa-l.h>")))

    def test_refuses_libraries_without_a_home_and_unknown_layers(self):
        for include in ("<openssl/ssl.h>", '"sibling.h"', '"newlayer/a.h"'):
            self.assertEqual(1, len(self.check("src/base/a.cc", f"#include {include}")), include)
        self.assertEqual(1, len(self.check("src/newlayer/a.cc", "#include <vector>")))


if __name__ == "__main__":
    unittest.main()
