"""The commands that a page shows, held against what there is."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from mcptasks.cli.main import app
from tests.docs.pages.settings_page import names
from tests.support.command import Commands

ROOT: Final = Path(__file__).parents[2]

#: Commands that only look, or that leave nothing behind, and end by themselves: they are run.
_RUN: Final = (["ps"], ["top", "--once"], ["admission"], ["track", "ps"], ["track", "dead"], ["--version"])
_ENDLESS: Final = frozenset({"--watch", "-f", "--follow"})
_VARIABLE: Final = re.compile(r"MCPTASKS_[A-Z][A-Z_]*[A-Z]")
_ASSIGNED: Final = re.compile(r"[A-Za-z_]+=.*")


def unknown_variables(text: str) -> set[str]:
    """The names of `MCPTASKS_*` variables in the text that mcptasks does not read."""
    # MCPTASKS_TRACK_* stands for all that begin so.
    starred = {name for name in _VARIABLE.findall(text) if f"{name}_*" in text}
    return {name for name in _VARIABLE.findall(text) if name not in names() and name not in starred}


class Shell:
    """Looks at commands, and runs those that can be."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        self._makefile = (ROOT / "Makefile").read_text()

    async def all(self, lines: Iterable[str]) -> None:
        """Every line is a command that exists, with words that it knows.

        Raises:
            AssertionError: one is not; the message has the line.
        """
        for line in "\n".join(lines).replace("\\\n", " ").splitlines():
            for words in _commands(line):
                while words and (words[0] in ("export", "exec", "sudo", "flock") or _ASSIGNED.fullmatch(words[0])):
                    del words[0]
                await self._one(words, line)

    async def _one(self, words: list[str], line: str) -> None:
        match words:
            case [program, *rest] if program.endswith("mcptasks"):
                _parse(rest, line)
                if any(rest[: len(some)] == some for some in _RUN) and not _ENDLESS & set(rest):
                    ended = await self._commands.run(*rest)
                    assert ended.code == 0, f"{line}: {ended.said}"
            case ["make", *targets]:
                for target in targets:
                    assert "=" in target or re.search(rf"^{target}:", self._makefile, re.MULTILINE), line
            case [program, "install", *packages] if program.endswith("pip"):
                for package in packages:
                    self._extras(package, line)
            case _:
                pass

    def _extras(self, package: str, line: str) -> None:
        if (found := re.fullmatch(r"(?:.*/)?mcptasks\[(.*)\]", package)) is not None:
            missing = set(found[1].split(",")) - self._project["optional-dependencies"].keys()
            assert not missing, f"{line}: no extra {missing}"


def _commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, each as its words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, command = True, list[str]()
    for word in lexer:
        if set(word) <= set("&|;()"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _parse(words: list[str], line: str) -> None:
    """The command line takes these words."""
    command: Any = get_command(app)
    parent: Any = None
    try:
        while True:
            context: Any = command.make_context(command.name or "mcptasks", list(words), parent=parent)
            if not hasattr(command, "resolve_command"):
                return
            # What click itself takes them from.
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            parent, (_, command, words) = context, command.resolve_command(context, rest)
    except Exception as wrong:
        # typer brings a click of its own, whose errors are no public names: told apart by what they have.
        if hasattr(wrong, "format_message"):
            raise AssertionError(f"{line!r}: {wrong.format_message()}") from wrong  # pyright: ignore[reportAttributeAccessIssue]
        if not hasattr(wrong, "exit_code"):
            raise
