"""The package's public names: found on first use, and said to type checkers in a file of their own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import mcptasks

STUB: Final = Path(mcptasks.__file__).with_suffix(".pyi")


def test_every_public_name_is_where_the_stub_says() -> None:
    """What a type checker sees is what there is."""
    found = {name: getattr(mcptasks, name) for name in mcptasks.__all__}
    imports = [node for node in ast.walk(ast.parse(STUB.read_text())) if isinstance(node, ast.ImportFrom)]
    told = {alias.name: getattr(sys.modules[str(node.module)], alias.name) for node in imports for alias in node.names}
    assert told == found
    assert set(mcptasks.__all__) <= set(dir(mcptasks))


def test_another_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'mcptasks' has no attribute 'Task'"):
        getattr(mcptasks, "Task")  # noqa: B009 - a type checker knows that it is not there


def test_a_star_import_brings_the_public_names_and_nothing_else() -> None:
    names: dict[str, object] = {}
    exec("from mcptasks import *", names)
    assert names.keys() - {"__builtins__"} == set(mcptasks.__all__)


def test_the_package_alone_costs_neither_the_sdk_nor_celery() -> None:
    """The embedded store's steward starts before everything else, and stays as long as anybody does."""
    look = "import sys, mcptasks.cli.shared_store; print(*{'mcp', 'celery', 'redis', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
