"""The list of requirements and the tests that prove them agree, both ways."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.requirements import REQUIREMENTS, covers

TESTS: Final = Path(__file__).parents[1]
Decorated = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@functools.cache
def claims() -> dict[str, list[str]]:
    """Every id that some test claims to cover, with the tests."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        if "node_modules" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Decorated):
                for claimed in _claimed(node, path):
                    found[claimed].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def _claimed(node: Decorated, path: Path) -> Iterator[str]:
    for decorator in node.decorator_list:
        if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "covers"):
            continue
        assert node.name.lower().startswith("test"), f"{path.name}: {node.name} is no test, it covers nothing"
        for argument in decorator.args:
            assert isinstance(argument, ast.Constant) and isinstance(argument.value, str), (
                f"{path.name}: {node.name} must name what it covers literally"
            )
            yield argument.value


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_has_a_test(requirement: str) -> None:
    """Ours: a duty that no test claims is a duty nobody would miss."""
    assert claims().get(requirement), f"no test covers {requirement}: {REQUIREMENTS[requirement]}"


def test_every_covered_id_exists() -> None:
    """Ours: a claim to something that is not on the list would be lost from sight."""
    assert {claimed for claimed in claims() if claimed not in REQUIREMENTS} == set()


def test_an_unknown_id_is_refused_where_it_is_written() -> None:
    """Ours: a typing mistake in an id fails at import, with its name."""
    with pytest.raises(KeyError, match="P99"):
        covers("P01", "P99")
    with pytest.raises(KeyError, match="none was named"):
        covers()
