"""What has no end of its own is ended when uvicorn was told to end, and not before."""

from __future__ import annotations

import asyncio
import signal

import pytest
import uvicorn
from sse_starlette.sse import AppStatus

from mcptasks.server import closing as module
from mcptasks.server.closing import Closing, told_to_end
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.005)


async def test_uvicorns_end_ends_what_is_open_and_what_comes_later() -> None:
    """It asks nobody, and waits for every open request."""
    server = uvicorn.Server(uvicorn.Config("nobody:app"))
    closing, ended = Closing(), list[str]()

    def gone() -> None:
        ended.append("gone")

    async def begun() -> bool:
        return closing.begun

    with server.capture_signals():
        assert not told_to_end()
        closing.add(lambda: ended.append("open"))
        closing.add(gone)
        closing.discard(gone)
        assert not closing.begun
        server.should_exit = True
        await eventually(begun, description="the end is seen")
    closing.add(lambda: ended.append("late"))
    assert ended == ["open", "late"]


async def test_it_is_looked_for_again_after_a_quiet_time() -> None:
    """Nobody looks while nothing is open."""
    server = uvicorn.Server(uvicorn.Config("nobody:app"))
    closing, ended = Closing(), asyncio.Event()

    def nothing() -> None:
        pass

    async def quiet() -> bool:
        return len(asyncio.all_tasks()) == before

    before = len(asyncio.all_tasks())
    closing.add(nothing)
    closing.discard(nothing)
    await eventually(quiet, description="nobody looks")
    with server.capture_signals():
        server.should_exit = True
        closing.add(ended.set)
        async with asyncio.timeout(30):
            await ended.wait()


async def test_event_streams_are_not_cut_before_all_have_answered() -> None:
    """sse-starlette would, half a second after uvicorn was told to end: a call that waits would get no answer.

    Should its switch go: what a server that goes down tells its callers must be waited for in another way.
    """
    server = uvicorn.Server(uvicorn.Config("nobody:app"))
    one, other = Closing(), Closing()

    def slow() -> None:
        pass

    async def begun() -> bool:
        return one.begun and other.begun

    async def cut() -> bool:
        return AppStatus.enable_automatic_graceful_drain

    with server.capture_signals():
        one.add(slow)
        other.add(slow)
        await asyncio.sleep(0)
        server.handle_exit(signal.SIGTERM, None)
        await eventually(begun, description="the end is seen")
        one.discard(slow)
        await asyncio.sleep(0.05)
        assert not await cut() and not AppStatus.should_exit, "the other has not answered"
        other.discard(slow)
        await eventually(cut, description="all have answered")
        # uvicorn hands on at its end what it had caught; here there is nobody to take it.
        server._captured_signals.clear()  # pyright: ignore[reportPrivateUsage]


async def test_under_another_server_somebody_has_to_say_so() -> None:
    """An ordinary handler of SIGTERM tells nothing."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert not told_to_end()
    finally:
        signal.signal(signal.SIGTERM, before)
    closing, ended = Closing(), asyncio.Event()
    closing.add(ended.set)
    closing.begin()
    assert ended.is_set()
