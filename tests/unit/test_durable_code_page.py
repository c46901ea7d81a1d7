"""docs/durable-code.md: every claim on the page names a test that exists, and the page fits a screen or two."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import mcptasks
from tests.requirements import covers

ROOT: Final = Path(__file__).parents[2]
#: What a reader sees of it: the code that only its test needs is hidden.
PAGE: Final = re.sub(r"<!--.*?-->\n*", "", (ROOT / "docs/durable-code.md").read_text(), flags=re.DOTALL)


def known_tests() -> set[str]:
    """The names of all tests."""
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if "node_modules" not in path.parts)
    trees = (ast.parse(path.read_text()) for path in files)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}


@covers("E01", "E03", "N7")
def test_every_claim_of_the_page_names_a_test_that_exists() -> None:
    """E01: authors can only be safe if the rule is written down, and what is written down is true."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    assert all(re.search(r"`test_\w+` \|$", row) for row in rows), "a claim without a test"
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - known_tests() == set()


def test_the_page_is_short_and_names_only_what_there_is() -> None:
    """One screen, and nothing that was renamed since."""
    assert len(PAGE.splitlines()) < 60
    assert set(re.findall(r"mcptasks\.(\w+)", PAGE)) <= set(mcptasks.__all__)
