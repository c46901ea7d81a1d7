"""The store under test, on this process's real Valkey."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final, Protocol, cast

import pytest
import redis

from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from mcptasks.store.store import TaskStore
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.store import TrackStore
from tests.support.command import Commands, environment
from tests.support.peek import Peek
from tests.support.tracker_desk import Desk, OneDriver, ScriptedDriver, desk
from tests.support.tracking import TrackPeek

_MARKER: Final = "marker"


class OpenStore(Protocol):
    """Opens one more store on the same tasks, as another process would have it."""

    def __call__(self, **changed: Any) -> TaskStore: ...


@pytest.fixture
async def open_store(settings: Settings, anyio_backend: str) -> AsyncGenerator[OpenStore]:
    """Stores of the same prefix, with other settings where they are given; all are closed at the end."""
    opened: list[TaskStore] = []

    def open_one(**changed: Any) -> TaskStore:
        opened.append(TaskStore(settings.model_copy(update=changed)))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.aclose()


@pytest.fixture
def store(open_store: OpenStore) -> TaskStore:
    """The store."""
    return open_store()


@pytest.fixture
async def tracks(settings: Settings, anyio_backend: str) -> AsyncGenerator[TrackStore]:
    """The tracker's store."""
    store = TrackStore(settings, TrackOptions())
    yield store
    await store.aclose()


@pytest.fixture
def track_peek(raw: redis.Redis, settings: Settings) -> TrackPeek:
    """What is really stored of tracked tasks."""
    return TrackPeek(raw, settings.prefix)


@pytest.fixture
def peek(raw: redis.Redis, settings: Settings) -> Peek:
    """What is really stored."""
    return Peek(raw, settings.prefix)


@pytest.fixture
def heard(raw: redis.Redis, settings: Settings) -> Generator[Callable[[], list[str]]]:
    """Returns what was published on the wakes channel since it was last called."""
    with raw.pubsub() as pubsub:
        subscription, channel = cast("Any", pubsub), Keys(settings.prefix).wakes
        subscription.subscribe(channel)

        def news() -> list[str]:
            # A marker of our own comes after everything that was published before: no waiting for silence.
            raw.publish(channel, _MARKER)
            found: list[str] = []
            while (message := subscription.get_message(timeout=30))["data"] != _MARKER:
                if message["type"] == "message":
                    found.append(str(message["data"]))
            return found

        yield news


@pytest.fixture
def commands(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """The command line, on the tasks of the store."""
    mine = Commands(monkeypatch, capsys)
    mine.env(environment(settings))
    return mine


@pytest.fixture
def driver() -> ScriptedDriver:
    """A server in memory."""
    return ScriptedDriver()


@pytest.fixture
async def front(settings: Settings, raw: redis.Redis, driver: ScriptedDriver) -> AsyncGenerator[Desk]:
    """A tracker of that server."""
    async with desk(settings, raw, OneDriver(driver)) as made:
        yield made
