"""How much of Python's world a command drags in before it does anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("main", {"mcp", "mcp_types", "celery", "kombu", "redis", "uvicorn", "jsonschema", "mcptasks.store"}),
        *((name, {"mcp", "mcp_types", "celery", "kombu", "uvicorn"}) for name in ("ps", "show", "top", "admission")),
    ],
)
def test_a_command_imports_what_it_needs_and_no_more(module: str, never: set[str]) -> None:
    """A list must not wait for Celery and the SDK: seconds on a busy machine, each time."""
    words = [sys.executable, "-c", _CODE, f"mcptasks.cli.{module}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert never & set(done.stdout.split()) == set()
