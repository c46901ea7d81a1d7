"""Files of tasks: whole or not at all, nobody's path but their own, in a folder and wherever fsspec reaches."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import fsspec
import pytest
from pydantic import SecretStr

from mcptasks.errors import ArtifactsUnavailable, ConfigurationError, Sealed, TooLarge
from mcptasks.model import new_task_id
from mcptasks.store.files import BLOCK, Files
from mcptasks.store.seal import Seal
from tests.requirements import covers
from tests.support.keys import SECRETS

pytestmark = pytest.mark.anyio

GIB = 1024**3
DATA = os.urandom(2 * BLOCK + 7)


def place(url: str, *keys: SecretStr) -> Files:
    """The files there."""
    return Files(url, Seal(keys))


@pytest.fixture(params=["folder", "file", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """A place that is not there yet."""
    urls = {"folder": str(tmp_path / "a/b"), "file": f"file://{tmp_path}/c", "memory": f"memory://{uuid4().hex}"}
    return place(urls[request.param])


def all_files(files: Files) -> list[str]:
    """The names of all files there, without those that stand beside the tasks' folders."""
    fs, root = fsspec.url_to_fs(files.url)
    found: list[str] = fs.find(root) if fs.exists(root) else []
    return [name for name in found if not name.endswith(".gitignore")]


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    """These."""
    for one in data:
        yield one


@covers("W7")
@pytest.mark.parametrize("cut", [len(DATA), 1_000_000, BLOCK, 4_096])
async def test_what_was_written_is_read_back_whole_and_in_parts(files: Files, cut: int) -> None:
    """In whatever chunks it came."""
    task_id = new_task_id()
    parts = [DATA[at : at + cut] for at in range(0, len(DATA), cut)]
    written = await files.write(task_id, chunks(*parts), GIB, "It")
    assert (written.sha256, written.size) == (hashlib.sha256(DATA).hexdigest(), len(DATA))
    assert await files.read(task_id, written.file, 0, GIB) == DATA
    for offset, length in [(0, 10), (BLOCK - 3, 6), (len(DATA) - 2, 100), (len(DATA), 5), (5, 0)]:
        assert await files.read(task_id, written.file, offset, length) == DATA[offset : offset + length]


async def test_nothing_is_a_file_too(files: Files) -> None:
    """An empty report is a report."""
    task_id = new_task_id()
    written = await files.write(task_id, chunks(), GIB, "It")
    assert written.size == 0
    assert await files.read(task_id, written.file, 0, 10) == b""


@covers("W7")
async def test_a_file_is_named_by_its_digest_in_a_folder_named_by_a_hash_of_its_task(files: Files) -> None:
    """So no id is in any path, and who looks into the place learns no secret."""
    task_id = new_task_id()
    written = await files.write(task_id, chunks(b"x"), GIB, "It")
    [path] = all_files(files)
    folder, name = path.split("/")[-2:]
    assert folder == hashlib.sha256(task_id.encode()).hexdigest()
    assert name == written.file
    assert name.startswith(hashlib.sha256(b"x").hexdigest())


async def test_the_same_bytes_written_twice_are_two_files_each_with_its_own_end(files: Files) -> None:
    """Whoever removes one, because it is not needed, cannot hit the other, which is."""
    task_id = new_task_id()
    first = await files.write(task_id, chunks(b"x"), GIB, "It")
    second = await files.write(task_id, chunks(b"x"), GIB, "It")
    await files.remove(task_id, first.file)
    assert await files.read(task_id, first.file, 0, 1) is None
    assert await files.read(task_id, second.file, 0, 1) == b"x"


async def test_all_files_of_a_task_are_removed_and_nobody_elses(files: Files) -> None:
    """Twice is once, and so is what never was."""
    mine, other = new_task_id(), new_task_id()
    for task_id in (mine, mine, other):
        await files.write(task_id, chunks(b"x"), GIB, "It")
    await files.remove_all(mine)
    await files.remove_all(mine)
    await files.remove(mine, "nothing")
    [left] = all_files(files)
    assert hashlib.sha256(other.encode()).hexdigest() in left


class Broken(Exception):
    """What a tool's own iterator raises."""


@covers("W7")
@pytest.mark.parametrize("how", ["error", "too large", "cancelled"])
async def test_what_ends_the_writing_leaves_no_file(files: Files, how: str) -> None:
    """Neither under its name nor under another."""
    scope = anyio.CancelScope()

    async def source() -> AsyncIterator[bytes]:
        yield b"x" * BLOCK
        yield b"x" * BLOCK
        if how == "error":
            raise Broken
        if how == "cancelled":
            scope.cancel()
            await anyio.sleep_forever()

    task_id = new_task_id()
    with scope:
        if how == "error":
            with pytest.raises(Broken):
                await files.write(task_id, source(), GIB, "It")
        else:
            with pytest.raises(TooLarge, match=r"It has 2,097,152 bytes; the limit is 2,097,151 bytes"):
                await files.write(task_id, source(), 2 * BLOCK - 1 if how == "too large" else GIB, "It")
    assert all_files(files) == []


# ------------------------------------------------------------------------------------------------ sealed


@covers("B09", "W7")
@pytest.mark.parametrize("size", [0, 1, BLOCK, len(DATA)])
async def test_a_sealed_file_is_read_like_any_other_and_says_nothing(tmp_path: Path, size: int) -> None:
    """Not its bytes, and not by its name whether they are what somebody guesses."""
    files, task_id, data = place(str(tmp_path), SECRETS[0]), new_task_id(), DATA[:size]
    written = await files.write(task_id, chunks(data), GIB, "It")
    assert (written.sha256, written.size, written.sealed) == (hashlib.sha256(data).hexdigest(), size, True)
    for offset, length in [(0, GIB), (0, 10), (BLOCK - 3, 6), (size, 5), (5, 0), (BLOCK, BLOCK)]:
        got = await files.read(task_id, written.file, offset, min(length, 4 * BLOCK), sealed=True)
        assert got == data[offset : offset + length]
    [path] = all_files(files)
    stored = await anyio.Path(path).read_bytes()
    assert DATA[:64] not in stored
    assert path.rpartition("/")[2].startswith(hashlib.sha256(stored).hexdigest())
    if size:
        assert written.sha256 not in path


@covers("B09")
async def test_a_sealed_file_is_read_with_every_key_of_the_list_and_no_other(tmp_path: Path) -> None:
    """Keys are changed one step at a time."""
    old, new, other = SECRETS
    task_id = new_task_id()
    written = await place(str(tmp_path), old).write(task_id, chunks(b"x"), GIB, "It")
    assert await place(str(tmp_path), new, old).read(task_id, written.file, 0, 9, sealed=True) == b"x"
    for keys in ((other,), ()):
        with pytest.raises(Sealed):
            await place(str(tmp_path), *keys).read(task_id, written.file, 0, 9, sealed=True)


@covers("B09")
async def test_blocks_of_a_sealed_file_stay_where_they_are(tmp_path: Path) -> None:
    """Who can write to the place cannot make another file of them."""
    files, task_id = place(str(tmp_path), SECRETS[0]), new_task_id()
    written = await files.write(task_id, chunks(DATA[: 2 * BLOCK]), GIB, "It")
    path = anyio.Path(all_files(files)[0])
    stored = await path.read_bytes()
    half = len(stored) // 2
    await path.write_bytes(stored[half:] + stored[:half])
    with pytest.raises(Sealed):
        await files.read(task_id, written.file, 0, BLOCK, sealed=True)


# ------------------------------------------------------------------------------------------------ a folder


@covers("W7")
async def test_a_new_folder_is_for_nobody_else_on_the_machine_and_not_for_git(tmp_path: Path) -> None:
    """What tools return is in there."""
    files = place(str(tmp_path / "place"))
    await files.write(new_task_id(), chunks(b"x"), GIB, "It")
    assert stat.S_IMODE(os.stat(tmp_path / "place").st_mode) == 0o700
    with open(tmp_path / "place/.gitignore") as ignored:  # noqa: ASYNC230
        assert ignored.read() == "*\n"


async def test_a_folder_stays_where_it_was_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool may change the current directory."""
    monkeypatch.chdir(tmp_path)
    files = place("place")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await files.write(new_task_id(), chunks(b"x"), GIB, "It")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert files.where == str(tmp_path / "place")


@covers("W10")
async def test_a_place_that_takes_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    """For people: what, where, what to do; and nothing of the task."""
    (tmp_path / "place").write_text("in the way")
    files, task_id = place(str(tmp_path / "place")), new_task_id()
    with pytest.raises(
        ArtifactsUnavailable, match=rf"{tmp_path}/place cannot be reached .*MCPTASKS_ARTIFACTS_URL"
    ) as e:
        await files.write(task_id, chunks(b"x"), GIB, "It")
    assert task_id not in str(e.value)


@pytest.mark.parametrize("url", ["nope://place", "s3://bucket/place"])
async def test_a_url_that_nobody_here_knows_names_its_setting(url: str) -> None:
    """Another place needs its fsspec package."""
    with pytest.raises(ConfigurationError, match=r"MCPTASKS_ARTIFACTS_URL names no place for files: "):
        await place(url).write(new_task_id(), chunks(b"x"), GIB, "It")


def test_a_password_in_the_url_is_not_shown() -> None:
    """Messages name the place."""
    assert place("ftp://me:secret@host:21/place").where == "ftp://host:21/place"


async def test_every_process_has_connections_of_its_own(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote file system's do not survive a fork."""
    made: list[Any] = []
    monkeypatch.setattr("mcptasks.store.files.url_to_fs", lambda url: made.append(url) or fsspec.url_to_fs(url))
    for pid in (1, 1, 2):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        await files.read(new_task_id(), "x", 0, 1)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("here", "folder"),
        ("file:///here", "folder"),
        ("memory://x", "process"),
        ("s3://bucket/x", "remote"),
        ("simplecache::s3://bucket/x", "remote"),
    ],
)
def test_the_kind_of_a_place_is_known_without_going_there(url: str, kind: str) -> None:
    """The doctor asks."""
    assert place(url).kind == kind
