"""ps --watch and top in a real terminal: painted again and again, until Ctrl-C."""

from __future__ import annotations

import re

import pytest
import redis

from mcptasks.model import label
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.support.command import environment
from tests.support.tasks import end, queued, running
from tests.support.terminal import LINES, terminal

pytestmark = pytest.mark.anyio

#: Of rich's bars.
BAR = "━"


def row(screen: str, task_id: str) -> str:
    """The task's line."""
    return next((line for line in screen.splitlines() if line.startswith(label(task_id))), "")


async def test_a_watched_list_moves_with_its_tasks(store: TaskStore, settings: Settings) -> None:
    """Bars, ends and new tasks; Ctrl-C is no error, and leaves the terminal as it was."""
    claim = await running(store)
    await store.progress(claim, "Baking: 1 of 4 (25 %)", 1, 4, None)
    with terminal("ps", "--watch", "--interval", "0.1", env=environment(settings)) as screen:
        shown = screen.await_text("1 of 4 (25 %)")
        assert "Ctrl-C ends it" in shown
        assert BAR in row(shown, claim.task_id)
        await store.progress(claim, "Baking: 3 of 4 (75 %)", 3, 4, None)
        shown = screen.await_text("3 of 4 (75 %)")
        other = await queued(store)
        shown = screen.await_text(label(other))
        assert shown.index(label(other)) < shown.index(label(claim.task_id)), "newest first"
        await end(store, claim)
        shown = screen.await_text("queued")
        while label(claim.task_id) in shown:
            shown = screen.screen()
        screen.interrupt()
        assert screen.end() == 0
        assert "Traceback" not in screen.screen()
    # The other screen, and back; with a cursor.
    assert screen.raw.startswith(b"\x1b[?1049h") and screen.raw.endswith(b"\x1b[?25h\x1b[?1049l")


async def test_a_watched_list_is_never_longer_than_its_screen(store: TaskStore, settings: Settings) -> None:
    """And says that there are more."""
    for _ in range(LINES + 5):
        await queued(store)
    with terminal("ps", "--watch", "--interval", "0.1", env=environment(settings)) as screen:
        shown = screen.await_text("there are more")
        assert shown.splitlines()[0].startswith("ID")
        assert shown.count("queued") == LINES - 4
        screen.interrupt()
        assert screen.end() == 0


async def test_top_is_painted_until_ctrl_c_and_outlives_its_store(
    store: TaskStore, settings: Settings, raw: redis.Redis
) -> None:
    """What was last seen stays, under the reason why it is old."""
    await queued(store)
    with terminal(
        "top", "--interval", "0.1", env=environment(settings) | {"MCPTASKS_STORE_TIMEOUT_MS": "300"}
    ) as screen:
        screen.await_text("queued 1")
        await queued(store)
        shown = screen.await_text("queued 2")
        assert re.search(r"\d\.\d created and \d\.\d ended a second", shown)
        assert "no worker is heard of" in shown
        raw.client_pause(1_500)
        screen.await_text("What was last seen:")
        await queued(store)
        screen.await_text("queued 3")
        screen.interrupt()
        assert screen.end() == 0
