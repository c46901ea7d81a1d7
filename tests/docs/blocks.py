"""Runs the code blocks of a page, top to bottom, in one namespace. Sybil finds them, hidden ones in HTML comments too:

    <!-- invisible-code-block: python
    ...
    -->

- **python** is run, with `await` where it stands. A block that begins with `# name.py` becomes that file in the page's
  folder, and is imported; of a `# test_name.py` the tests are run. The address of a server in a page is `served`,
  where the page's hidden code has set it to a server in this process. What enters `stack` is closed at the end.
- **sh** and **console**: words of `mcptasks` must be words of the command line, those that only look are run; a `make`
  target, an extra of `pip install`, a variable `MCPTASKS_*` must exist.
- **json**, **yaml**, **toml**, **ini** are parsed. **text** is what programs print, and is left alone.

`<!-- skip: next "why" -->` before a block leaves it out.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from unittest import SkipTest

import yaml
from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from tests.docs.shell import Shell

#: The address that pages show.
ADDRESS: Final = '"http://127.0.0.1:8000/mcp"'
_FILE: Final = re.compile(r"# ([a-z_/]+\.(?:py))\b")
_NOTHING: Final = frozenset({"text"})


class Page:
    """The blocks of one page."""

    def __init__(self, path: Path, folder: Path, shell: Shell) -> None:
        self._folder, self._shell = folder, shell
        self._waiting: Any = None
        kinds: dict[str, Callable[[Example], Any]] = {
            "python": self._python,
            "sh": self._commands,
            "console": self._session,
            "json": lambda one: json.loads(str(one.parsed)),
            "yaml": lambda one: list(yaml.safe_load_all(str(one.parsed))),
            "toml": lambda one: tomllib.loads(str(one.parsed)),
            "ini": lambda one: configparser.ConfigParser(interpolation=None).read_string(str(one.parsed)),
            "text": lambda one: None,
        }
        parsers = [CodeBlockParser(language, _silent(kind)) for language, kind in kinds.items()]
        self._document = Document.parse(str(path), *parsers, SkipParser())
        self._known = kinds.keys()

    def languages(self) -> set[str]:
        """The languages of all blocks that can be seen, "" where none is named."""
        fences = re.findall(r"^ *```(.*)$", self._document.text, re.MULTILINE)
        return {fence.strip() for fence in fences[::2]}

    @property
    def known(self) -> set[str]:
        """The languages that are looked at."""
        return set(self._known)

    async def run(self) -> int:
        """All blocks have been run, and what they opened is closed; returns how many there were.

        Raises:
            TimeoutError: the page takes over half a minute.
            Exception: what a block raises; its traceback names the page and the line.
        """
        count = 0
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            self._document.namespace["stack"] = stack
            self._document.namespace["__name__"] = "page"
            for example in self._document.examples():
                self._waiting = None
                try:
                    example.evaluate()
                except SkipTest:
                    continue
                if inspect.isawaitable(self._waiting):
                    await self._waiting
                count += 1
        return count

    def _python(self, example: Example) -> None:
        source = str(example.parsed)
        if (named := _FILE.match(source)) is not None:
            self._file(named[1], source, example)
            return
        line = example.line + example.parsed.line_offset
        text = "\n" * line + (source.replace(ADDRESS, "served") if "served" in example.namespace else source)
        code = compile(text, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        self._waiting = eval(code, example.namespace)

    def _file(self, name: str, source: str, example: Example) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        module = name.removesuffix(".py").replace("/", ".")
        sys.modules.pop(module, None)
        __import__(module)
        imported = sys.modules[module]
        if module.startswith("test_"):
            tests = [one for name, one in vars(imported).items() if name.startswith("test_")]
            assert tests, f"{example.path}: {name} has no tests"
            self._waiting = _all(tests)
        else:
            # As if the reader had typed it here: what follows in the page goes on with its names.
            example.namespace.update({k: v for k, v in vars(imported).items() if not k.startswith("__")})

    def _commands(self, example: Example) -> None:
        self._waiting = self._shell.all(str(example.parsed).splitlines())

    def _session(self, example: Example) -> None:
        lines = [line.removeprefix("$ ") for line in str(example.parsed).splitlines() if line.startswith("$ ")]
        self._waiting = self._shell.all(lines)


async def _all(tests: list[Callable[[], Any]]) -> None:
    for test in tests:
        outcome = test()
        if inspect.isawaitable(outcome):
            await outcome


def _silent(kind: Callable[[Example], Any]) -> Callable[[Example], None]:
    """Sybil takes what an evaluator returns for a failure."""

    def evaluate(example: Example) -> None:
        kind(example)

    return evaluate
