"""What the doctor says of the place of artifacts, and that it says what to do."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from mcptasks.cli.artifact_check import SILENT, Place, Workers, artifacts, look_at_artifacts, look_at_workers
from mcptasks.cli.verdict import Status
from mcptasks.settings import Settings
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.keys import SECRETS

HERE: Final = Place(where="/srv/a")
MINE: Final = {"w1@one": ("one", "/srv/a")}


@covers("W7")
@pytest.mark.parametrize(
    ("changes", "workers", "status", "words"),
    [
        ({}, MINE, Status.OK, "/srv/a takes files and gives them back"),
        ({}, {}, Status.OK, "takes files"),
        ({"trouble": "It is full"}, MINE, Status.FAIL, "It is full"),
        ({"kind": "process"}, MINE, Status.FAIL, "each process has one of its own"),
        ({}, MINE | {"w@two": ("two", "/srv/a")}, Status.WARN, "there are 2 machines: one, two"),
        ({"kind": "remote"}, {"w@two": ("two", "/srv/a")}, Status.OK, "takes files"),
        ({}, {"w@one": ("one", "/srv/b")}, Status.FAIL, "w@one has /srv/b, here it is /srv/a"),
        ({}, {"w@one": ("one", "")}, Status.FAIL, "w@one has none"),
    ],
)
def test_workers_and_servers_must_have_one_place(
    changes: dict[str, Any], workers: Workers, status: Status, words: str
) -> None:
    """What one cannot read the other wrote in vain."""
    check = artifacts(replace(HERE, **changes), workers, "one")
    assert (check.status, bool(check.advice)) == (status, status is not Status.OK)
    assert words in check.found


def test_a_place_that_does_not_answer_is_a_failure() -> None:
    """A network share that hangs."""
    assert artifacts(SILENT, {}, "one").status is Status.FAIL


@pytest.mark.parametrize("keys", [(), SECRETS[:1]])
def test_a_look_leaves_nothing(settings: Settings, keys: Any) -> None:
    """What it wrote it removes, sealed or not."""
    settings = settings.model_copy(update={"encryption_keys": keys})
    assert look_at_artifacts(settings) == Place(where=settings.artifacts_url)
    assert os.listdir(settings.artifacts_url) == [".gitignore"]


@pytest.mark.anyio
async def test_what_live_workers_say_is_known_and_what_dead_ones_said_is_not(settings: Settings) -> None:
    """The register keeps entries for a day."""
    store = TaskStore(settings)
    now_ms = await store.now_ms()
    pulse = WorkerPulse(
        at_ms=now_ms, host="h", pid=1, slots=1, active=0, received=0, waiting=0, deaf_ms=0, artifacts="/srv/b"
    )
    await store.report("alive", pulse)
    await store.report("dead", replace(pulse, at_ms=now_ms - 60_000))
    await store.aclose()
    assert await anyio.to_thread.run_sync(look_at_workers, settings) == {"alive": ("h", "/srv/b")}
    nobody = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    assert await anyio.to_thread.run_sync(look_at_workers, nobody) == {}


def test_a_look_at_a_place_that_cannot_be_says_why(settings: Settings, tmp_path: Path) -> None:
    """In the words of whoever would have to write there."""
    (tmp_path / "file").write_text("in the way")
    for url, words in {str(tmp_path / "file"): "cannot be reached", "s3://bucket": "names no place"}.items():
        assert words in look_at_artifacts(settings.model_copy(update={"artifacts_url": url})).trouble
