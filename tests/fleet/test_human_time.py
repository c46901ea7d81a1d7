"""A question that nobody answers, in a fleet that changes meanwhile (W4)."""

from __future__ import annotations

import pytest
from mcp_types import INTERNAL_ERROR

from mcptasks.client import TaskFailed
from mcptasks.model import Reason
from tests.fleet.system import Fleet, client, new_key, outcome, questions, start
from tests.requirements import covers

pytestmark = pytest.mark.anyio


@covers("W4", "R7")
async def test_a_questions_time_is_kept_by_whatever_worker_there_is(fleet: Fleet) -> None:
    """Nobody who saw it asked lives when its time is up."""
    server, first = fleet.start_server(), fleet.start_worker()
    async with client(fleet.ready(server, first)) as connection:
        keys = {then: new_key() for then in ("cancel", "fail")}
        handles = {then: await start(connection, "ask_briefly", key=key, then=then) for then, key in keys.items()}
        for handle in handles.values():
            await questions(handle)
        first.kill()
        dues = {then: fleet.record(handle).answer_by_ms for then, handle in handles.items()}
        fleet.ready(fleet.start_worker())
        for handle in handles.values():
            await handle.wait(60)
        assert await outcome(handles["cancel"]) == "cancel"
        with pytest.raises(TaskFailed, match=rf"Nobody answered the question '{keys['fail']}\?' within 3 s") as failed:
            await handles["fail"].result(60)
    assert failed.value.code == INTERNAL_ERROR
    record = fleet.record(handles["fail"])
    assert record.reason is Reason.INPUT_TIMEOUT
    assert record.updated_ms >= max(dues["fail"].values()), "never early"
    assert [fleet.ledger.count(key, "run") for key in keys.values()] == [2, 1]
