"""The files of tasks, in a folder or wherever fsspec reaches: written in blocks, read in parts, never whole in memory.

A task's files are in a folder named by a hash of its id; a file is named by the digest of what is in it and a chance of
its own. So neither an id nor an artifact's name is ever part of a path, and each file has exactly one owner, who may
remove it. With keys each block is sealed as such, bound to its place in its file. What makes a file an artifact is the
store's record, written when the file is complete.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncIterable, Callable, Generator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from mcptasks.errors import ArtifactsUnavailable, ConfigurationError, TooLarge
from mcptasks.settings import MIB
from mcptasks.store.connection import address
from mcptasks.store.seal import Seal

P = ParamSpec("P")
T = TypeVar("T")

#: Bytes that are written at a time.
BLOCK: Final = 1 * MIB
#: What a remote file system gathers before it sends; some gather 50 MiB if nobody says so.
_BUFFER: Final = 8 * MIB
#: Calls of the file system at once, per process.
_CALLS: Final = 8


class Written(NamedTuple):
    """A file that is complete. Digest and size are those of the bytes that were given, also where it is sealed."""

    file: str
    sha256: str
    size: int
    sealed: bool


class _Missing(ArtifactsUnavailable):
    """There is no such file or folder."""


class Files:
    """The place of all files of one fleet. Usable in every process and after a fork; connects on first use."""

    def __init__(self, url: str, seal: Seal) -> None:
        # Where the process stands now: a tool may go elsewhere.
        self.url = url if "://" in url or "::" in url else str(Path(url).absolute())
        self._seal = seal
        self._made: tuple[int, Any, str] | None = None
        self._calls = anyio.CapacityLimiter(_CALLS)

    @property
    def where(self) -> str:
        """The place, fit for messages: without user and password."""
        return address(self.url) if "://" in self.url else self.url

    @property
    def kind(self) -> Literal["folder", "process", "remote"]:
        """A folder of this machine (or mounted there), the memory of this process alone, or anything else."""
        if "://" not in self.url and "::" not in self.url:
            return "folder"
        match self.url.partition("://")[0]:
            case "file" | "local":
                return "folder"
            case "memory":
                return "process"
            case _:
                return "remote"

    async def write(self, task_id: str, chunks: AsyncIterable[bytes], limit: int, what: str) -> Written:
        """All the bytes are in a new file of the task. Whatever ends the writing before, no file is left.

        Raises:
            TooLarge: there are more bytes than the limit (`what` names them).
            ArtifactsUnavailable: the place does not take the file.
            ConfigurationError: `artifacts_url` names no place.
        """
        writing = await self._call(_Writing, *self._place(), task_id, self._seal)
        try:
            gathered = bytearray()
            async for chunk in chunks:
                for part in _parts(chunk):
                    gathered += part
                    if writing.size + len(gathered) > limit:
                        raise TooLarge(what, writing.size + len(gathered), limit, "MCPTASKS_ARTIFACT_MAX")
                    if len(gathered) >= BLOCK:
                        await self._call(writing.put, bytes(gathered[:BLOCK]))
                        del gathered[:BLOCK]
            if gathered:
                await self._call(writing.put, bytes(gathered))
            return await self._call(writing.finish)
        except BaseException:
            # Also what cancels this must not leave half a file; the folder's end would be its only end.
            with anyio.CancelScope(shield=True), suppress(ArtifactsUnavailable):
                await self._call(writing.abort)
            raise

    async def read(self, task_id: str, file: str, offset: int, length: int, *, sealed: bool = False) -> bytes | None:
        """These bytes of the file, fewer where it ends before; None: there is no such file.

        Raises:
            ArtifactsUnavailable: the place does not answer.
            Sealed: it was sealed with a key that is not here, or damaged.
            ConfigurationError: as `write`.
        """
        fs, root = self._place()
        path = f"{_folder(root, task_id)}/{file}"
        try:
            if not sealed:
                return await self._call(fs.cat_file, path, offset, offset + length)
            if not self._seal.on:
                self._seal.open_bytes(task_id, "", b"")  # which says that there is no key
            gathered = bytearray()
            first, end = offset // BLOCK, offset + length
            for number in range(first, -(-end // BLOCK)):
                at = number * self._sealed_block
                token = await self._call(fs.cat_file, path, at, at + self._sealed_block)
                if token:
                    name = _block(file.rpartition(".")[2], number)
                    gathered += await anyio.to_thread.run_sync(self._seal.open_bytes, task_id, name, token)
            return bytes(gathered[offset - first * BLOCK : end - first * BLOCK])
        except _Missing:
            return None

    @cached_property
    def _sealed_block(self) -> int:
        """The bytes that a whole block has when it is sealed."""
        return len(self._seal.seal_bytes("", "", bytes(BLOCK)))

    async def remove(self, task_id: str, file: str) -> None:
        """The file is gone.

        Raises:
            ArtifactsUnavailable: the place does not answer.
        """
        fs, root = self._place()
        with suppress(_Missing):
            await self._call(fs.rm_file, f"{_folder(root, task_id)}/{file}")

    async def remove_all(self, task_id: str) -> None:
        """All files of the task are gone, and its folder.

        Raises:
            ArtifactsUnavailable: the place does not answer.
        """
        fs, root = self._place()
        with suppress(_Missing):
            await self._call(fs.rm, _folder(root, task_id), recursive=True)

    def _place(self) -> tuple[Any, str]:
        """The file system and the folder in it, of this process: a remote one's connections do not survive a fork."""
        if self._made is None or self._made[0] != os.getpid():
            try:
                fs, root = url_to_fs(self.url)
            except (ImportError, ValueError) as exc:
                raise ConfigurationError(f"MCPTASKS_ARTIFACTS_URL names no place for files: {exc}") from None
            self._made = os.getpid(), fs, root
        return self._made[1:]

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def call() -> T:
            with self._translated():
                return work(*args, **kwargs)

        return await anyio.to_thread.run_sync(call, limiter=self._calls)

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except FileNotFoundError as exc:
            raise _Missing(
                f"A file at {self.where} is missing: others remove what is there, or look elsewhere"
            ) from exc
        except Exception as exc:  # each file system has errors of its own
            why = f"{type(exc).__name__}: {exc.strerror}" if isinstance(exc, OSError) else type(exc).__name__
            raise ArtifactsUnavailable(
                f"The files at {self.where} cannot be reached ({why}). MCPTASKS_ARTIFACTS_URL says where they are; "
                "`mcptasks doctor` checks it."
            ) from exc


class _Writing:
    """One file that is being written. Blocks; every call in some thread."""

    def __init__(self, fs: Any, root: str, task_id: str, seal: Seal) -> None:
        self._fs, self._folder, self._task_id, self._seal = fs, _folder(root, task_id), task_id, seal
        self._chance = secrets.token_hex(8)
        self._temporary = f"{self._folder}/{self._chance}.part"
        self._digest, self._stored = hashlib.sha256(), hashlib.sha256()
        self.size = self._blocks = 0
        if isinstance(fs, LocalFileSystem):
            _private(Path(root))
        fs.makedirs(self._folder, exist_ok=True)
        self._out: Any = fs.open(self._temporary, "wb", block_size=_BUFFER)

    def put(self, block: bytes) -> None:
        """The block is written behind those before."""
        self._digest.update(block)
        self.size += len(block)
        if self._seal.on:
            block = self._seal.seal_bytes(self._task_id, _block(self._chance, self._blocks), block)
            self._stored.update(block)
        self._blocks += 1
        self._out.write(block)

    def finish(self) -> Written:
        """The file is complete and has its name."""
        if isinstance(self._fs, LocalFileSystem):
            # The record that will name it survives a power cut, or nearly; so must the file.
            self._out.flush()
            os.fsync(self._out.fileno())
        self._out.close()
        # The digest of bytes that are sealed is for nobody who only sees the file.
        file = f"{(self._stored if self._seal.on else self._digest).hexdigest()}.{self._chance}"
        self._fs.mv(self._temporary, f"{self._folder}/{file}")
        return Written(file, self._digest.hexdigest(), self.size, self._seal.on)

    def abort(self) -> None:
        """Nothing is left of it."""
        with suppress(Exception):  # a remote file may refuse to be closed half-written
            self._out.close()
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._temporary)


def _parts(chunk: bytes) -> Generator[memoryview]:
    view = memoryview(chunk)
    for at in range(0, len(view), BLOCK):
        yield view[at : at + BLOCK]


def _block(chance: str, number: int) -> str:
    return f"{chance}:{number}"


def _folder(root: str, task_id: str) -> str:
    return f"{root}/{hashlib.sha256(task_id.encode()).hexdigest()}"


def _private(root: Path) -> None:
    """What tools return is in there: for nobody else on this machine, and not for git. One that exists is as it is."""
    if not root.exists():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / ".gitignore").write_text("*\n")
