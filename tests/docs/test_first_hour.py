"""docs/first-hour.md, done as it stands there: from an empty folder and a fresh clone, each command pasted as it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

from tests.docs.pages import DOCS, ROOT

#: Fences of the page: language and text.
_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVES: Final = "mcptasks dev: serving http://127.0.0.1:8000/mcp"
_DONE: Final = "done with that:"


class Reader:
    """Two terminals in one folder: a shell that gets what the page says, and the one in which `mcptasks dev` runs."""

    def __init__(self, folder: Path, shell: subprocess.Popen[str]) -> None:
        self.folder, self._shell = folder, shell
        self._dev: subprocess.Popen[str] | None = None
        #: By command, what it took.
        self.seconds: list[tuple[float, str]] = []

    def paste(self, text: str) -> str:
        """The command has ended; returns what it printed. A command that fails ends the page."""
        began, said = time.monotonic(), ""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f'{text}\necho "{_DONE} $?"\n')
        self._shell.stdin.flush()
        for line in self._shell.stdout:
            if _DONE in line:
                assert line.strip().endswith(f"{_DONE} 0"), f"{text}\n{said}{line}"
                break
            said += line
        self.seconds.append((time.monotonic() - began, text))
        return said

    def save(self, text: str) -> None:
        """The file has the name that its first line says."""
        (self.folder / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)

    def serve(self, command: str) -> None:
        """It serves, in the first terminal."""
        began = time.monotonic()
        self._end()
        words = [str(self.folder / ".venv" / "bin" / "mcptasks"), *command.split()[1:]]
        # What a terminal does: Ctrl-C is for the group in front.
        self._dev = subprocess.Popen(
            words, cwd=self.folder, env=_clean(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._dev.stdout is not None
        assert any(_SERVES in line for line in self._dev.stdout), "it never served"
        self.seconds.append((time.monotonic() - began, command))

    def interrupt(self) -> None:
        """Ctrl-C in the first terminal; all of it has ended."""
        assert self._dev is not None
        self._dev.send_signal(signal.SIGINT)
        self._dev.wait(60)

    def _end(self) -> None:
        """What ran in the first terminal has ended, by itself or by Ctrl-C."""
        if self._dev is not None:
            self._dev.wait(60)
            _shut(self._dev.stdout)

    def close(self) -> None:
        """Nothing runs any more."""
        if self._dev is not None and self._dev.poll() is None:
            self.interrupt()
        self._end()
        _shut(self._shell.stdin)
        self._shell.wait(30)
        _shut(self._shell.stdout)


def _shut(stream: IO[str] | None) -> None:
    assert stream is not None
    stream.close()


def _clean() -> dict[str, str]:
    """The reader's environment: nothing of this one's mcptasks, and no virtual environment."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("MCPTASKS_", "VIRTUAL_ENV"))}
    return {**known, "COLUMNS": "120", "NO_PROXY": "127.0.0.1"}


@contextmanager
def _reader(folder: Path) -> Generator[Reader]:
    shell = subprocess.Popen(
        ["bash"],
        cwd=folder,
        env=_clean(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    reader = Reader(folder / "releases", shell)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.slow
def test_the_first_hour_goes_as_it_stands_on_its_page(tmp_path: Path) -> None:
    """What a newcomer pastes works, in the page's order, and comes to what the page says."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    said = ""
    with _reader(tmp_path) as reader:
        for language, text in _FENCE.findall((DOCS / "first-hour.md").read_text()):
            if language == "python":
                reader.save(text)
            elif language == "sh" and text.startswith("mcptasks dev"):
                reader.serve(text)
            elif language == "sh":
                if text.startswith("mcptasks admission open"):
                    reader.interrupt()
                    reader.serve("mcptasks dev server:mcp --workers 2")
                said += "".join(reader.paste(line) for line in text.splitlines())
    for seconds, command in reader.seconds:
        print(f"{seconds:6.1f} s  {command.strip()}")
    assert "parked (1 open)" in said
    assert re.search(r"answered; task \S+ moves on", said)
    assert re.search(r"lost: run 1", said) and re.search(r"claim: run 2, attempt 2", said)
    assert said.count("end: status completed") == 2
    assert "2 answer: worker1@" in said
    assert "drained; admission is closed" in said
