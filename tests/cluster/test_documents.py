"""The documents' blocks: which are run, and that only their variables are replaced."""

import pathlib
import re

import pytest

import documents

TESTS = pathlib.Path(__file__).parent
PAGE = "cluster.md"
pytestmark = pytest.mark.short


def test_every_named_block_is_run():
    code = "\n".join(path.read_text() for path in TESTS.glob("*.py"))
    names = list(documents.blocks(PAGE))
    assert len(names) >= 6
    assert [name for name in names if not re.search(rf'block\(\s*"{name}"', code)] == []


def test_every_block_of_a_shell_has_a_name():
    """But for those of other languages: what has no name may drift from what works."""
    text = (documents.DOCS / PAGE).read_text()
    assert len(re.findall(r"^```$", text, re.MULTILINE)) == 2 * len(documents.blocks(PAGE))


def test_only_what_stands_at_the_top_is_replaced():
    text = 'A=1 B="two words"   # why\nC=$A/x\n\nA=3\necho $A\n'
    assert documents.set_variables(text, {"A": "/tmp/a b", "C": "c"}) == (
        'A="/tmp/a b" B="two words"   # why\nC="c"\n\nA=3\necho $A\n')
    for name in ("D", "echo"):
        with pytest.raises(AssertionError, match=f"{name} is set 0 times"):
            documents.set_variables(text, {name: "1"})


def test_each_alert_has_its_section():
    rules = (documents.DOCS / "alerts.yml").read_text()
    page = (documents.DOCS / "alerts.md").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) >= 10
    assert set(alerts) <= set(re.findall(r"^## (\w+)$", page, re.MULTILINE))


@pytest.mark.parametrize("page", ["cluster.md", "alerts.md"])
def test_every_link_leads_somewhere(page):
    text = (documents.DOCS / page).read_text()
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text)
    assert links
    for path, anchor in links:
        target = (documents.DOCS / path) if path else documents.DOCS / page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target.read_text()), f"{path}#{anchor}"


def anchors(text):
    """As GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
