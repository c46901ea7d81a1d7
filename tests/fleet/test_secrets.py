"""Secrets of a task on a real fleet (B09): store and broker, logs at DEBUG, events; and a worker with the wrong key."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from mcptasks.model import Reason, label
from tests.fleet.conftest import ENDED
from tests.fleet.system import CELERY, TARGET, Fleet, Proc, answer, client, outcome, questions, start
from tests.fleet.test_pools import events
from tests.requirements import covers
from tests.support.keys import SECRETS
from tests.support.peek import Peek
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OURS, OTHER = (key.get_secret_value() for key in SECRETS[:2])
#: Of the call, its caller, the tool and the person; and the key of all.
SAID: Final = ("TOK-123", "ARG-234", "Q-345", "ANS-456", "STEP-567", "RES-678", "MSG-789", OURS, OTHER)


def worker(fleet: Fleet, **env: str) -> Proc:
    """A worker that says all it can, to its log and to monitors."""
    argv = [sys.executable, "-m", "celery", "-A", CELERY, "worker", "-E", "--pool", "threads", "--loglevel", "DEBUG"]
    return fleet.start_other("worker", argv, **env)


def told(place: str) -> set[str]:
    """What of all that was said stands there."""
    return {word for word in SAID if word in place}


@covers("B09", "B08")
async def test_of_a_whole_life_nothing_is_left_where_others_read(tmp_path: Path) -> None:
    """B09: sealed, neither the token nor anything else that was said, anywhere; and the wrong key fails the task."""
    env = {"MCPTASKS_ENCRYPTION_KEYS": OURS, "MCPTASKS_KEEP_TOKEN": "true", "FLEET_AUTH": "1"}
    with Fleet(tmp_path, **env) as fleet, events(fleet) as seen:
        peek, dumps = Peek(fleet.raw, ""), list[str]()
        server = fleet.start("serve", TARGET, "--port", "0", "--log-level", "debug")
        url = fleet.ready(server)
        async with client(url, token="alice#TOK-123") as connection:
            task = await start(connection, "confide", key="ARG-234")
            other = await start(connection, "confide", key="ARG-234")
            dumps.append(peek.dump())
            assert fleet.messages(), "the messages, too, lie in this store"
            right = worker(fleet)
            for one in (task, other):
                await questions(one)
            dumps.append(peek.dump())
            await answer(task, "ANS-456")
            assert await outcome(task) == "RES-678 ARG-234 STEP-567 ARG-234 ANS-456 alice#TOK-123"
            wait_until(lambda: "task-succeeded" in json.dumps(seen, default=str), description="monitors know the end")
            assert right.stop() == 0

            wrong = worker(fleet, MCPTASKS_ENCRYPTION_KEYS=OTHER, MCPTASKS_DEFERRALS_MS='["100ms","100ms"]')
            await answer(other, "ANS-456")
            record = fleet.await_status(other, "failed")
            dumps.append(peek.dump())
            assert record.reason is Reason.FAILED and record.error is not None
            said = record.error["message"]
            assert "MCPTASKS_ENCRYPTION_KEYS" in said and label(other.task_id) in said and "ARG" not in said
            assert fleet.ledger.count("confide") == 3, "two runs of the first task, one of the second"
        assert wrong.stop() == 0
        assert server.stop() in ENDED
        for place, text in {
            "store and broker": "".join(dumps),
            "events": json.dumps(seen, default=str),
            "workers' logs": right.output + wrong.output,
            "server's log": server.output,
        }.items():
            assert text and told(text) == set(), place
        assert "DEBUG" in right.output and label(task.task_id) in right.output
        assert f"Task {label(other.task_id)}: confide: DEFERRED: " in wrong.output
