"""A task's artifact or whole result as a file: `mcptasks show ID --artifact NAME`, or `--result --output FILE`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from mcptasks.cli.operating import on_fleet
from mcptasks.errors import ConfigurationError, MCPTasksError
from mcptasks.links import RESULT_NAME, Artifact
from mcptasks.model import label
from mcptasks.operations import Operations
from mcptasks.shown import plain

Write = Callable[[bytes], object]


class NoSuchFile(MCPTasksError):
    """The task has no artifact of this name, or no result."""


def save(task: str, name: str, output: Path | None) -> None:
    """The task's artifact of this name, or for the empty name its whole result, is in the file, or on standard output.

    Raises:
        ConfigurationError: standard output is a terminal, or the file cannot be written.
        NoSuchFile: there is none; the message has the names that there are.
        ArtifactsUnavailable: it cannot be had, or is not what the tool wrote; then no file was written.
    """
    if output is None and sys.stdout.isatty():
        raise ConfigurationError(
            "A file may hold anything, and a terminal would obey it: give --output FILE, or a pipe."
        )
    with _new(output) as write:
        on_fleet(lambda fleet: _copy(fleet, task, name, write))


async def _copy(fleet: Operations, task: str, name: str, write: Write) -> None:
    task_id = await fleet.find(task)
    found = await fleet.artifacts(task_id)
    artifact = next((one for one in found if one.name == name), None)
    if artifact is not None:
        async with aclosing(fleet.download(task_id, artifact)) as blocks:
            async for block in blocks:
                write(block)
    elif name == RESULT_NAME:
        record = await fleet.read(task_id)
        if record.result is None:
            raise NoSuchFile(f"Task {label(task_id)} has no result: it is {record.status}.")
        write(json.dumps(record.result).encode())
    else:
        raise NoSuchFile(f"Task {label(task_id)} has no artifact {plain(name, 80)!r}; it has {_names(found)}.")


def _names(found: Sequence[Artifact]) -> str:
    return ", ".join(repr(plain(one.name, 80)) for one in found if one.name != RESULT_NAME) or "none"


@contextmanager
def _new(output: Path | None) -> Generator[Write]:
    """Writes to the file, which is there once all of it is, or to standard output."""
    if output is None:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    output = output.resolve()  # what a link leads to is written, and the link stays
    try:
        if output.exists() and not output.is_file():
            # A device or a named pipe is written to; put in its place, a file would be the end of it for everybody.
            with output.open("wb") as device:
                yield device.write
            return
        file = NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False)  # noqa: SIM115
        try:
            with file:
                yield file.write
            os.replace(file.name, output)
        except BaseException:
            os.unlink(file.name)
            raise
    except OSError as exc:
        raise ConfigurationError(f"--output {output} cannot be written: {exc.strerror}") from None
