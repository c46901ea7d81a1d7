"""The command line in this very process: a start of Python for every case would take seconds."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import pytest

from mcptasks.cli.main import main
from mcptasks.settings import Settings


@dataclass(frozen=True)
class Ended:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """What it complained of, in one line, and without the box that usage errors stand in."""
        return " ".join(self.err.replace("│", " ").split())

    @property
    def json(self) -> Any:
        """What it printed for programs."""
        return json.loads(self.out)


def environment(settings: Settings) -> dict[str, str]:
    """What makes a command work on the tasks of these settings."""
    return {
        "MCPTASKS_REDIS_URL": settings.redis_url,
        "MCPTASKS_PREFIX": settings.prefix,
        "MCPTASKS_ARTIFACTS_URL": settings.artifacts_url,
        "MCPTASKS_OPERATOR": "olga",
    }


class Commands:
    """Runs `mcptasks WORDS`; made by the fixture `commands`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys

    def env(self, values: Mapping[str, str]) -> None:
        """Commands see these variables, and nothing of a developer's own MCPTASKS_*."""
        for name in [name for name in os.environ if name.startswith("MCPTASKS_")]:
            self._patch.delenv(name)
        for name, value in values.items():
            self._patch.setenv(name, value)
        # As wide as people's terminals are.
        self._patch.setenv("COLUMNS", "140")

    async def run(self, *words: str, stdin: str = "") -> Ended:
        """The command has ended; it ran in a thread, because it brings an event loop of its own."""
        self._capsys.readouterr()
        self._patch.setattr(sys, "stdin", io.StringIO(stdin))
        self._patch.setattr(sys, "argv", ["mcptasks", *words])
        code = await anyio.to_thread.run_sync(_code)
        said = self._capsys.readouterr()
        return Ended(code, said.out, said.err)


def _code() -> int:
    try:
        main()
    except SystemExit as exc:
        return int(exc.code or 0)
    raise AssertionError("main never returns")
