"""What an older mcptasks left in the store is read, run, answered and ended by this one (W9)."""

from __future__ import annotations

from typing import Any, Final

import pytest
import redis

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import SCHEMA_VERSION
from tests.requirements import covers
from tests.support.durable import answer_all
from tests.support.house import house
from tests.support.peek import Peek
from tests.support.recorded import ENDS, KINDS, PREFIX, Tools, file_of, restore, settings_of

pytestmark = pytest.mark.anyio

#: This version, and the one before it (versions begin with 1): what a release has to read.
READ: Final = [version for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION) if version]
RECORDED: Final = [pytest.param(kind, version, id=f"v{version} {kind}") for version in READ for kind in KINDS]
_ROUNDS: Final = 10


@covers("W9")
@pytest.mark.parametrize(("kind", "version"), RECORDED)
async def test_every_recorded_task_is_seen_as_it_was_and_goes_on_to_its_end(
    valkey: EmbeddedValkey, raw: redis.Redis, kind: str, version: int
) -> None:
    """W9: in all states at once, after a stop of years; steps and answers of then are not done or asked again.

    Without the file of a new version: write it, as `tests.support.recorded` says.
    """
    recorded = restore(raw, file_of(kind, version))
    tasks: dict[str, str] = recorded["tasks"]
    assert recorded["schema"] == version and tasks.keys() == ENDS.keys()
    async with house(settings_of(valkey.url, kind), Tools("now")) as (home, client):
        assert {label: await client.state(task_id) for label, task_id in tasks.items()} == recorded["seen"]
        states: dict[str, dict[str, Any]] = {}
        for _ in range(_ROUNDS):
            await home.fleet.sweep()
            await home.fleet.settle()
            states = {label: await client.state(task_id) for label, task_id in tasks.items()}
            for label, state in states.items():
                if state["status"] == "input_required":
                    await answer_all(client, tasks[label])
        assert {label: _end(state) for label, state in states.items()} == ENDS
        again = (await client.call("order", {"item": "tea"}, idempotencyKey="key-1")).result
        assert again["taskId"] == tasks["queued with a key"]
    peek = Peek(raw, PREFIX)
    assert [peek.raw.zcard(f"{PREFIX}{index}") for index in ("unsent", "leases", "expiry", "active")] == [0] * 4


def _end(state: dict[str, Any]) -> str:
    return state["result"]["content"][0]["text"] if state["status"] == "completed" else state["status"]
