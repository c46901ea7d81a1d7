"""Artifacts in an operator's hand: downloads of the console, and `mcptasks show --artifact`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcptasks.console.looks import place
from mcptasks.errors import ArtifactsUnavailable
from mcptasks.links import RESULT_NAME, Artifact
from mcptasks.model import Claim, Reason, Status, label
from mcptasks.operations import Operations
from mcptasks.settings import Settings
from mcptasks.store.files import BLOCK
from mcptasks.store.store import TaskStore
from tests.support.command import Commands, environment
from tests.support.console import browser
from tests.support.keys import SECRETS
from tests.support.tasks import ended, running

pytestmark = pytest.mark.anyio

PAGE: Final = b"<script>alert(1)</script>"
LARGE: Final = os.urandom(2 * BLOCK + 11)


async def wrote(store: TaskStore, claim: Claim, name: str, data: bytes, mime: str = "text/html") -> Artifact:
    """What the tool has written under that name."""

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    await store.reserve(claim)
    written = await store.files.write(claim.task_id, chunks(), len(data), "The file")
    artifact = Artifact(name=name, mime=mime, **written._asdict())
    assert (await store.artifact(claim, artifact))[0] == "RECORDED"
    return artifact


def file_of(settings: Settings, artifact: Artifact) -> Path:
    """Where it is."""
    [found] = Path(settings.artifacts_url).rglob(artifact.file)
    return found


def address(claim: Claim, name: str) -> str:
    """Where the console has it."""
    return f"/tasks/{label(claim.task_id)}/artifacts/{place(name, claim.task_id)}"


# ------------------------------------------------------------------------------------------------ the console


async def test_an_artifact_is_handed_out_as_a_file_of_no_kind(store: TaskStore, settings: Settings) -> None:
    """A page that a tool wrote is saved and never opened: its scripts would act in the operator's name."""
    claim = await running(store)
    await wrote(store, claim, "report.html", PAGE)
    await wrote(store, claim, "large.bin", LARGE, "application/zip")
    async with browser(settings) as page:
        assert (await page.open(address(claim, "report.html"))).url.path == "/login"
        await page.log_in()
        text = (await page.open(f"/tasks/{label(claim.task_id)}")).text
        assert f'<a href="{address(claim, "report.html")}" download>report.html</a>' in text
        answer = await page.open(address(claim, "report.html"))
        assert (answer.status_code, answer.content) == (200, PAGE)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''report.html"
        assert answer.headers["x-content-type-options"] == "nosniff" and "no-store" in answer.headers["cache-control"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        whole = await page.open(address(claim, "large.bin"))
        assert (whole.content == LARGE, whole.headers["content-length"]) == (True, str(len(LARGE)))


async def test_only_the_tasks_own_artifacts_are_handed_out(store: TaskStore, settings: Settings) -> None:
    """By no name, path or digest, and not of another task."""
    mine, other = await running(store), await running(store)
    artifact = await wrote(store, mine, "a.csv", b"1,2")
    for which in (place("a.csv", other.task_id), "a.csv", artifact.sha256, "..%2f..%2fetc%2fpasswd", artifact.file):
        async with browser(settings) as page:
            await page.log_in()
            for task in (mine, other):
                where = f"/tasks/{label(task.task_id)}/artifacts/{which}"
                assert (await page.open(where)).status_code == 404, (where, which)


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("../../etc/passwd", "_.._etc_passwd"),
        ('a"; filename="b.exe', "a_%3B%20filename%3D_b.exe"),
        ("C:\\x|y.csv. ", "C__x_y.csv"),
        ("naïve \U0001f600.csv", "na%C3%AFve%20%F0%9F%98%80.csv"),
        ("...", "artifact"),
        ("x" * 255, "x" * 150),
    ],
)
async def test_a_name_is_no_path_and_no_header(store: TaskStore, settings: Settings, name: str, saved: str) -> None:
    """It is the tool's."""
    claim = await running(store)
    await wrote(store, claim, name, b"1")
    async with browser(settings) as page:
        await page.log_in()
        answer = await page.open(address(claim, name))
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{saved}"


async def test_a_file_that_is_away_or_changed_is_a_page_that_says_so(store: TaskStore, settings: Settings) -> None:
    """Not an empty file, and not somebody else's bytes."""
    claim = await running(store)
    gone, changed = await wrote(store, claim, "gone", b"12"), await wrote(store, claim, "changed", b"12")
    file_of(settings, gone).unlink()
    file_of(settings, changed).write_bytes(b"13")
    async with browser(settings) as page:
        await page.log_in()
        for name, said in (("gone", "MCPTASKS_ARTIFACTS_URL"), ("changed", "not what its tool wrote")):
            answer = await page.open(address(claim, name))
            assert (answer.status_code, said in answer.text) == (503, True), answer.text


async def test_a_large_file_that_was_changed_never_becomes_whole(store: TaskStore, settings: Settings) -> None:
    """Its last bytes wait for the digest, so whoever downloads it hears that it broke off."""
    claim = await running(store)
    artifact = await wrote(store, claim, "large", LARGE)
    file_of(settings, artifact).write_bytes(LARGE[:-1] + b"x")
    got = bytearray()

    async def downloaded() -> None:
        async with Operations(settings) as fleet:
            async for block in fleet.download(claim.task_id, artifact):
                got.extend(block)

    with pytest.raises(ArtifactsUnavailable):
        await downloaded()
    assert 0 < len(got) < len(LARGE)


async def test_sealed_files_are_handed_out_where_the_key_is(store: TaskStore, settings: Settings) -> None:
    """Without it the page says so."""
    keys = settings.model_copy(update={"encryption_keys": SECRETS[:1]})
    sealing = TaskStore(keys)
    claim = await running(sealing)
    await wrote(sealing, claim, "a.bin", LARGE)
    await sealing.aclose()
    for known, status in ((keys, 200), (settings, 409)):
        async with browser(known) as page:
            await page.log_in()
            answer = await page.open(address(claim, "a.bin"))
            assert (answer.status_code, answer.content == LARGE) == (status, status == 200)


# ------------------------------------------------------------------------------------------------ results


async def test_a_results_kind_and_size_are_shown_and_nothing_of_it(
    store: TaskStore, settings: Settings, commands: Commands
) -> None:
    """Neither in the page nor in the terminal, unless that is asked for; a large one is no download."""
    claim = await running(store)
    content: list[dict[str, Any]] = [{"type": "text", "text": "secret"}] * 2 + [{"type": "resource_link", "uri": "x:y"}]
    payload = json.dumps({"content": content, "structuredContent": {"a": "secret"}, "isError": False})
    await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, message="", payload=payload)
    said = f"there, {len(payload)} bytes: 2 x text, resource link, structured"
    shown = await commands.run("show", claim.task_id)
    assert f"{said}; --result shows it" in shown.out and "secret" not in shown.out
    large = await running(store)
    await wrote(store, large, RESULT_NAME, b'{"content":["secret"]}', "application/json")
    await store.finish(large, Status.COMPLETED, Reason.COMPLETED, message="", payload='{"content":[],"isError":true}')
    async with browser(settings) as page:
        await page.log_in()
        text = (await page.open(f"/tasks/{label(claim.task_id)}")).text
        assert said in text and "secret" not in text
        text = (await page.open(f"/tasks/{label(large.task_id)}")).text
        assert "a tool error, 22 bytes" in text and "/artifacts/" not in text
        assert (await page.open(address(large, RESULT_NAME))).status_code == 404


# ------------------------------------------------------------------------------------------------ the command line


async def test_show_writes_an_artifact_to_a_file_or_a_pipe(
    store: TaskStore, commands: Commands, tmp_path: Path
) -> None:
    """All of it or nothing, and only under the name that was given."""
    claim = await running(store)
    await wrote(store, claim, "../large.bin", LARGE)
    await wrote(store, claim, "page.html", PAGE)
    target = tmp_path / "out.bin"
    told = (await commands.run("show", claim.task_id)).out
    assert f"mcptasks show {label(claim.task_id)} --artifact ../large.bin --output FILE" in told
    done = await commands.run("show", claim.task_id[:8], "--artifact", "../large.bin", "-o", str(target))
    assert (done.code, done.out, target.read_bytes() == LARGE) == (0, "", True)
    assert os.listdir(tmp_path) == ["out.bin"]
    assert (await commands.run("show", claim.task_id, "--artifact", "page.html")).out == PAGE.decode()


async def test_what_is_no_file_is_written_to_and_never_replaced(
    store: TaskStore, commands: Commands, tmp_path: Path
) -> None:
    """Root's `--output /dev/null` must not leave a machine without it; a link goes on leading where it led."""
    claim = await running(store)
    await wrote(store, claim, "a.csv", b"1,2")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("pipe", "link"):
            done = await commands.run("show", claim.task_id, "--artifact", "a.csv", "-o", str(tmp_path / name))
            assert (done.code, done.err) == (0, "")
        assert os.read(reader, 10) == b"1,2"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"1,2"


async def test_a_full_disk_is_told_in_a_line(store: TaskStore, settings: Settings) -> None:
    """Wherever standard output goes."""
    claim = await running(store)
    await wrote(store, claim, "large", LARGE)
    env = {**os.environ, **environment(settings)}
    for words in (["ps"], ["ps", "--json"], ["show", claim.task_id, "--artifact", "large"]):
        argv = [sys.executable, "-m", "mcptasks.cli.main", *words]
        full = os.open("/dev/full", os.O_WRONLY)
        done = await anyio.run_process(argv, stdout=full, env=env, check=False)
        os.close(full)
        said = done.stderr.decode()
        assert (done.returncode, "No space left on device" in said, "Traceback" in said) == (1, True, False), said


async def test_show_writes_the_whole_result_large_or_small(
    store: TaskStore, commands: Commands, tmp_path: Path
) -> None:
    """As JSON."""
    target = tmp_path / "result.json"
    small, large, none = await ended(store), await running(store), await running(store)
    await wrote(store, large, RESULT_NAME, b'{"content":[1]}')
    for claim, content in ((small, []), (large, [1])):
        assert (await commands.run("show", claim.task_id, "--result", "-o", str(target))).code == 0
        assert json.loads(target.read_bytes())["content"] == content
    none_yet = await commands.run("show", none.task_id, "--result", "-o", str(target))
    assert (none_yet.code, "has no result: it is running" in none_yet.said) == (1, True)


async def test_what_cannot_be_written_leaves_no_file(
    store: TaskStore, settings: Settings, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a terminal is not fed with what a tool wrote."""
    claim = await running(store)
    artifact = await wrote(store, claim, "a.csv", b"1,2")
    ask = ("show", claim.task_id, "--artifact", "a.csv")
    for words, code, said in (
        ((*ask, "--json"), 2, "goes with"),
        ((*ask, "--result"), 2, "goes with"),
        (("show", claim.task_id, "-o", str(tmp_path / "x")), 2, "goes with"),
        ((*ask, "-o", str(tmp_path / "no" / "x")), 2, "cannot be written"),
        ((*ask, "-o", str(tmp_path)), 2, "cannot be written"),
        (("show", claim.task_id, "--artifact", "b.csv"), 1, "it has 'a.csv'"),
    ):
        refused = await commands.run(*words)
        assert (refused.code, said in refused.said) == (code, True), refused
    file_of(settings, artifact).write_bytes(b"1,3")
    changed = await commands.run(*ask, "-o", str(tmp_path / "x"))
    assert (changed.code, "not what its tool wrote" in changed.said) == (1, True)
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    fed = await commands.run(*ask)
    assert (fed.code, fed.out, "give --output FILE" in fed.said) == (2, "", True)
