"""An answer to a task that has waited for so long that nothing looks after it any more (case E06)."""

from __future__ import annotations

import time

import pytest

from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.durable import answer_all, one
from tests.support.house import house
from tests.support.tasks import parked
from tests.support.tools import ask_first

pytestmark = pytest.mark.anyio

ROUNDS = 50
OTHERS = 1_000


@covers("E06")
@pytest.mark.parametrize("others", [0, OTHERS])
async def test_an_answer_moves_a_cold_task_on_at_once(settings: Settings, others: int) -> None:
    """E06: the answer knows the moment; the next re-check, if there were one, would be minutes away."""
    store = TaskStore(settings)
    for _ in range(others):
        await parked(store)
    await store.aclose()
    # No re-checks, no message sent again: only the answer itself can move a task on.
    cold = settings.model_copy(update={"countdowns_ms": (), "resend_ms": 600_000})
    async with house(cold, one(ask_first)) as (home, client), home.fleet.delivering():
        took_s: list[float] = []
        for _ in range(ROUNDS):
            task_id = await client.start("tool")
            await client.until(task_id, lambda state: state["status"] == "input_required")
            answered = time.monotonic()
            await answer_all(client, task_id)
            await client.until(task_id, lambda state: state["status"] == "completed")
            took_s.append(time.monotonic() - answered)
        assert home.fleet.rechecks == []
    assert sorted(took_s)[int(ROUNDS * 0.95) - 1] < 2
    assert max(took_s) < 5
