"""Imports only go down: import-linter keeps every contract, and a planted violation breaks the one it is against."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
LINTER: Final = Path(sys.executable).with_name("lint-imports")

DOWN: Final = "Imports only go down (DESIGN: the house)"
SERVER: Final = "The server never imports the runtime: it cannot run a tool by accident"
REDIS: Final = "Only the store knows Redis"
CELERY: Final = "Only dispatch, fleet and tracker know Celery"
SDK: Final = "Only server, runtime, client, tracker, wire, seams and workers know the MCP SDK"
CONTRACTS: Final = {DOWN, SERVER, REDIS, CELERY, SDK}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the packages and of their contracts."""
    for package in ("mcptasks", "workers"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken(house: Path) -> set[str]:
    """The contracts that the copy breaks."""
    done = subprocess.run(
        [LINTER, "--no-cache"],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)$", done.stdout, re.MULTILINE))
    assert verdicts.keys() == CONTRACTS, done.stdout + done.stderr
    assert (done.returncode != 0) == ("BROKEN" in verdicts.values())
    return {name for name, verdict in verdicts.items() if verdict == "BROKEN"}


def plant(house: Path, module: str, line: str) -> None:
    """The module's last line is this import."""
    file = house / module
    file.write_text(f"{file.read_text()}\n{line}\n")


def test_the_house_as_it_is_keeps_every_contract(house: Path) -> None:
    """DESIGN, the house."""
    assert broken(house) == set()


@pytest.mark.parametrize(
    ("module", "line", "contracts"),
    [
        ("mcptasks/errors.py", "import mcptasks.model", {DOWN}),
        ("mcptasks/store/keys.py", "import mcptasks.server.owner", {DOWN}),
        ("mcptasks/fleet/health.py", "import mcptasks.client", {DOWN}),
        ("mcptasks/server/owner.py", "import mcptasks.runtime.runner", {SERVER}),
        ("mcptasks/client/handle.py", "import mcptasks.tracker.remote", {DOWN}),
        ("mcptasks/fleet/health.py", "import redis.asyncio", {REDIS}),
        ("mcptasks/tracker/store/keys.py", "import redis.asyncio", {REDIS}),
        ("mcptasks/store/keys.py", "import kombu", {CELERY}),
        ("mcptasks/policy.py", "import mcp_types", {SDK}),
        ("mcptasks/cli/main.py", "import workers.server", {DOWN}),
    ],
    ids=["bottom", "store", "siblings", "runtime", "tracker", "redis", "tracked", "celery", "sdk", "workers"],
)
def test_a_planted_import_breaks_its_contract(house: Path, module: str, line: str, contracts: set[str]) -> None:
    """Issue 2: a contract that nothing can break guards nothing."""
    plant(house, module, line)
    assert broken(house) == contracts


def test_an_import_inside_a_function_is_seen_too(house: Path) -> None:
    """The usual way around a layer."""
    file = house / "mcptasks/fleet/health.py"
    file.write_text(f"{file.read_text()}\n\ndef later() -> None:\n    import mcptasks.tasks\n")
    assert broken(house) == {DOWN}


def test_every_module_of_the_house_belongs_to_a_layer() -> None:
    """A package that no contract names could import whatever it likes."""
    layers = (ROOT / "pyproject.toml").read_text()
    parts = {path.stem for path in (ROOT / "mcptasks").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {part for part in parts - {"__init__", "__pycache__"} if f"mcptasks.{part}" not in layers} == set()
