"""Every code block of README.md and docs/ does what its page says."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from unittest import mock

import pytest

from mcptasks.settings import Settings
from tests.docs.blocks import Page
from tests.docs.pages import DOCS, ROOT
from tests.docs.shell import Shell, unknown_variables
from tests.support.command import Commands, environment

#: Decisions are a record of what was, not of what is.
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.glob("*.md") if path.name != "decisions.md")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands, settings: Settings) -> Generator[Path]:
    """Where the page's reader sits: a folder of their own, in which Python finds their files, and a store."""
    commands.env(environment(settings))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # What the page's own code sets is gone with it.
    with mock.patch.dict(os.environ):
        yield tmp_path


@pytest.mark.anyio
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_the_blocks_of_a_page_run(page: Path, folder: Path, commands: Commands) -> None:
    before = set(sys.modules)
    try:
        shown = Page(page, folder, Shell(commands))
        assert shown.languages() <= shown.known, "a block in a language that nobody looks at"
        await shown.run()
    finally:
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_no_variable_that_nothing_reads(page: Path) -> None:
    assert unknown_variables(page.read_text()) == set()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("language", "text", "wrong"),
    [
        ("python", "await asyncio.sleep(0)", "asyncio"),
        ("python", "# test_nothing.py\nx = 1", "has no tests"),
        ("sh", "mcptasks ps --everything", "No such option"),
        ("sh", "mcptasks show --everything abcd", "No such option"),
        ("sh", "mcptasks pss", "No such command"),
        ("console", "$ mcptasks admission slam", "No such command"),
        ("sh", "true && make everything", "make everything"),
        ("sh", "pip install 'mcptasks[everything]'", "no extra"),
        ("json", '{"a": 1,}', "JSON|double quotes"),
        ("yaml", "a: [1", "flow sequence"),
        ("toml", "a = ", "value"),
    ],
)
async def test_a_block_that_is_wrong_is_found(
    language: str, text: str, wrong: str, folder: Path, commands: Commands
) -> None:
    page = folder / "page.md"
    page.write_text(f"# A page\n\n```{language}\n{text}\n```\n")
    with pytest.raises(Exception, match=wrong):
        await Page(page, folder, Shell(commands)).run()


def test_a_variable_that_nothing_reads_is_found() -> None:
    text = "MCPTASKS_REDIS_URL, MCPTASKS_TRACK_*, MCPTASKS_REDIS_URI"
    assert unknown_variables(text) == {"MCPTASKS_REDIS_URI"}
