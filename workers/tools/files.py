"""`index_files`: reads every file below a folder, in slices so small that a cancel never waits for long."""

import codecs
import fnmatch
import hashlib
import heapq
import os
import stat
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from anyio import to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from workers.tools.words import FrequentWord, RunningCount

_SLICE_BYTES: Final = 256 * 1024
_REPORT_AFTER_S: Final = 1.0
_LARGEST: Final = 10
_FREQUENT: Final = 20


class IndexedFile(BaseModel):
    """One file of the index."""

    path: str = Field(description="Below the folder, with forward slashes")
    bytes: int


class FolderIndex(BaseModel):
    """What is in a folder."""

    folder: str
    files: int = Field(description="Files that were read")
    unreadable: int = Field(description="Files and folders that exist but could not be read")
    changed: int = Field(description="Files whose content differed between two passes")
    bytes: int
    text_files: int
    lines: int = Field(description="Lines of the text files")
    words: int = Field(description="Words of the text files")
    largest: list[IndexedFile]
    most_frequent: list[FrequentWord]
    digest: str = Field(description="SHA-256 over all paths and contents: equal digests, equal folders")


class Slice(NamedTuple):
    """How far the work is, in bytes read plus one for each finished file."""

    done: int
    total: int
    message: str

    @property
    def percent(self) -> float:
        """Rounded down to a tenth: 100 only when all is done. Bytes would be no numbers for people."""
        return 1_000 * self.done // self.total / 10 if self.total else 0.0


class _Entry(NamedTuple):
    name: str
    path: Path
    size: int


class FolderIndexer:
    """The index of one folder in the making: run `slices()` to its end, then take `report()`."""

    def __init__(self, root: Path, pattern: str, passes: int) -> None:
        self._root, self._pattern, self._passes = root, pattern, passes
        self._entries: list[_Entry] = []
        self._digests: dict[Path, str] = {}
        self._unreadable: set[str] = set()
        self._changed: set[Path] = set()
        self._count = RunningCount()
        self._text_files = 0

    def slices(self) -> Generator[Slice]:
        """Every file has been read `passes` times; each slice in between takes some milliseconds."""
        for folder, _, names in os.walk(self._root, onerror=self._refused):
            self._list(Path(folder), names)
            yield Slice(0, 0, "listing the files")
        self._entries.sort()
        total = self._passes * sum(entry.size + 1 for entry in self._entries)
        done = 0
        for number in range(1, self._passes + 1):
            for position, entry in enumerate(self._entries, start=1):
                message = f"pass {number} of {self._passes}, file {position:,} of {len(self._entries):,}"
                for read in self._visit(entry, first=number == 1):
                    yield Slice(done + read, total, message)
                done += entry.size + 1
                yield Slice(done, total, message)

    def report(self) -> FolderIndex:
        """The finished index."""
        readable = [entry for entry in self._entries if entry.path in self._digests]
        lines = "".join(f"{entry.name}\0{self._digests[entry.path]}\n" for entry in readable)
        largest = heapq.nlargest(_LARGEST, readable, key=lambda entry: entry.size)
        return FolderIndex(
            folder=_printable(str(self._root)),
            files=len(readable),
            unreadable=len(self._unreadable),
            changed=len(self._changed),
            bytes=sum(entry.size for entry in readable),
            text_files=self._text_files,
            lines=self._count.lines,
            words=self._count.words,
            largest=[IndexedFile(path=entry.name, bytes=entry.size) for entry in largest],
            most_frequent=self._count.most_frequent(_FREQUENT),
            digest=hashlib.sha256(lines.encode()).hexdigest(),
        )

    def _refused(self, error: OSError) -> None:
        self._unreadable.add(str(error.filename))

    def _list(self, folder: Path, names: list[str]) -> None:
        for name in fnmatch.filter(names, self._pattern):
            path = folder / name
            try:
                status = path.lstat()
            except OSError as error:
                self._refused(error)
                continue
            # A link may lead out of the folder, and opening a pipe or a device may never return.
            if stat.S_ISREG(status.st_mode):
                self._entries.append(_Entry(_printable(path.relative_to(self._root).as_posix()), path, status.st_size))

    def _visit(self, entry: _Entry, *, first: bool) -> Generator[int]:
        try:
            digest = yield from self._read(entry, count=first)
        except OSError as error:
            self._refused(error)
            self._count.end_of_text()
            return
        if self._digests.setdefault(entry.path, digest) != digest:
            self._changed.add(entry.path)

    def _read(self, entry: _Entry, *, count: bool) -> Generator[int, None, str]:
        """Yields the bytes read so far after each full slice; returns the SHA-256 of the content."""
        digest = hashlib.sha256()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        read = 0
        with entry.path.open("rb") as file:
            # No further than the size when listed: a log that grows faster than it is read would have no end.
            while piece := file.read(min(_SLICE_BYTES, entry.size - read)):
                digest.update(piece)
                if read == 0 and count:
                    count = b"\0" not in piece
                    self._text_files += count
                if count:
                    self._count.feed(decoder.decode(piece))
                read += len(piece)
                if read < entry.size:
                    yield read
        if count:
            self._count.feed(decoder.decode(b"", final=True))
            self._count.end_of_text()
        return digest.hexdigest()


def _printable(name: str) -> str:
    """A file name as valid Unicode: a name of other bytes carries lone surrogates, which no JSON may hold."""
    return os.fsencode(name).decode("utf-8", "replace")


def _existing_folder(folder: str) -> Path:
    try:
        root = Path(folder).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolError(f"There is no folder {folder!r} on this machine.") from error
    if not root.is_dir():
        raise ToolError(f"{folder!r} is a file, not a folder; name the folder that holds it.")
    return root


async def _run(work: Generator[Slice], ctx: Context) -> None:
    """`work` has run to its end, a slice at a time, off the event loop; each percent or second was reported."""
    reported, reported_at = 0.0, time.monotonic()
    try:
        while (part := await to_thread.run_sync(next, work, None)) is not None:
            percent = part.percent
            due = percent == 100 or time.monotonic() - reported_at >= _REPORT_AFTER_S
            if percent >= reported + 1 or (due and percent > reported):
                await ctx.report_progress(percent, 100, part.message)
                reported, reported_at = percent, time.monotonic()
    finally:
        # A cancel may find the latest slice still in its thread; then the end of that slice closes the work.
        with suppress(ValueError):
            work.close()


async def index_files(
    folder: str,
    ctx: Context,
    pattern: Annotated[str, Field(min_length=1, max_length=200)] = "*",
    passes: Annotated[int, Field(ge=1, le=10_000)] = 1,
) -> FolderIndex:
    """Read every file below a folder and say what is in it: how many files, bytes, lines and words, the largest
    files, the most frequent words and one checksum over everything.

    Links are not followed; files that are not text count with their bytes only. Large folders take minutes:
    progress is reported at least every second, and a cancel takes effect within a moment.

    Args:
        folder: The folder, absolute or relative to where the server runs; `~` is the server's home.
        pattern: Only files whose name matches it, with shell wildcards, for instance `*.py`.
        passes: How often each file is read. More than once verifies that nothing changes meanwhile, and takes longer.
    """
    root = await to_thread.run_sync(_existing_folder, folder)
    indexer = FolderIndexer(root, pattern, passes)
    await _run(indexer.slices(), ctx)
    return await to_thread.run_sync(indexer.report)
