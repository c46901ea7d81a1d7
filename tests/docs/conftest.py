"""The ring of the documentation: what pages say is held against the code, their blocks are run."""

from __future__ import annotations

import pytest

from tests.support.command import Commands


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs `mcptasks` in this process."""
    return Commands(monkeypatch, capsys)
