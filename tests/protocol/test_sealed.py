"""Secrets of a task (B09): what store, logs and other processes may know of them, and what a run without them does."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context, MCPServer
from pydantic import SecretStr

import mcptasks
from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import House, house
from tests.support.inline_fleet import InlineFleet
from tests.support.keys import SECRETS
from tests.support.peek import Peek
from tests.support.raw_client import RawClient
from tests.support.tools import Word

pytestmark = pytest.mark.anyio

OLD, NEW, OTHER = SECRETS
BEARER: Final = "alice#TOK-123"
ACCEPT: Final = {"action": "accept", "content": {"word": "ANS-456"}}
#: All that is said in a task's life and concerns nobody but its caller.
SAID: Final = ("TOK-123", "ARG-234", "Q-345", "ANS-456", "STEP-567", "RES-678", "MSG-789")


class Tools:
    """A tool in whose life everything is said that can be."""

    def __init__(self, hold: str | None = None) -> None:
        self.runs = 0
        self.tokens: list[str] = []
        self._hold = hold

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable(**({"hold": self._hold} if self._hold else {}))
        async def pay(account: str, ctx: Context) -> str:
            self.runs += 1
            caller = get_access_token()
            assert caller is not None and caller.subject == "alice"
            self.tokens.append(caller.token)
            await ctx.report_progress(1, 2, "MSG-789")
            receipt = await mcptasks.step("charge", lambda: "STEP-567")
            answer = await ctx.elicit(f"Pay from {account}? Q-345", Word)
            assert answer.action == "accept" and receipt == "STEP-567"
            return f"RES-678 {account} {answer.data.word}"


async def parked(home: House, client: RawClient) -> str:
    """A task that waits for its answer."""
    task_id = await client.start("pay", {"account": "ARG-234"})
    assert await home.fleet.deliver() == "parked"
    home.fleet.rechecks.clear()
    return task_id


async def answered(client: RawClient, task_id: str) -> None:
    """The person has answered."""
    [key] = (await client.state(task_id))["inputRequests"]
    await client.update(task_id, {key: ACCEPT})


async def text_of(client: RawClient, task_id: str) -> str:
    """What the task came to."""
    return (await client.state(task_id))["result"]["content"][0]["text"]


def with_keys(settings: Settings, *keys: SecretStr, **more: Any) -> Settings:
    """The same store, seen by a process with these keys."""
    return settings.model_copy(update={"encryption_keys": keys, "deferrals_ms": (1_000, 1_000), **more})


@asynccontextmanager
async def another_worker(home: House, settings: Settings) -> AsyncGenerator[InlineFleet]:
    """A worker of the same server with other settings; it gets the messages that the test gives it."""
    fleet = InlineFleet()
    async with fleet.working(settings, home.mcp):
        yield fleet


async def due_again(home: House, peek: Peek, task_id: str) -> None:
    """The time of the task that was put off has come, and the sweeper has sent its message."""
    peek.put(task_id, due="1")
    peek.make_due("unsent", task_id)
    await home.fleet.sweep()


@pytest.fixture
def peek(raw: Any, settings: Settings) -> Peek:
    """What is really stored."""
    return Peek(raw, settings.prefix)


# ------------------------------------------------------------------------------------------------ what is seen


@covers("B09")
@pytest.mark.parametrize("keys", [(), (NEW, OLD)], ids=["plain", "sealed"])
async def test_a_whole_life_leaves_nothing_that_was_said_where_it_must_not_be(
    settings: Settings, peek: Peek, caplog: pytest.LogCaptureFixture, keys: Sequence[SecretStr]
) -> None:
    """B09: the token nowhere, ever; sealed, none of it in any value; and in no line that we log, at any level."""
    caplog.set_level(logging.DEBUG, logger="mcptasks")
    tools, seen = Tools(), list[str]()
    async with house(with_keys(settings, *keys), tools, auth=True, token=BEARER) as (home, alice):
        task_id = await alice.start("pay", {"account": "ARG-234"})
        seen.append(peek.dump())
        await home.fleet.settle()
        seen.append(peek.dump())
        await answered(alice, task_id)
        seen.append(peek.dump())
        await home.fleet.settle()
        seen.append(peek.dump())
        assert await text_of(alice, task_id) == "RES-678 ARG-234 ANS-456"
    found = {word for word in SAID if any(word in dump for dump in seen)}
    assert found == (set() if keys else set(SAID) - {"TOK-123"})
    assert tools.runs == 2 and tools.tokens == ["", ""]
    lines = [f"{record.getMessage()} {record.exc_text}" for record in caplog.records if "mcptasks" in record.name]
    assert lines and not [line for line in lines if any(word in line for word in SAID)]


@covers("B09", "N3", "R8")
async def test_the_callers_token_is_kept_where_the_operator_asks_for_it_and_is_sealed(
    settings: Settings, peek: Peek
) -> None:
    """Then the run has what a live call has, in every run of the task."""
    tools = Tools()
    async with house(with_keys(settings, OLD, keep_token=True), tools, auth=True, token=BEARER) as (home, alice):
        task_id = await parked(home, alice)
        assert "TOK-123" not in peek.dump()
        await answered(alice, task_id)
        await home.fleet.settle()
        assert (await alice.state(task_id))["status"] == "completed"
        assert "TOK-123" not in peek.dump()
    assert tools.tokens == [BEARER, BEARER]


# ------------------------------------------------------------------------------------------------ the wrong key

WRONG: Final = [pytest.param((), id="no key"), pytest.param((OTHER,), id="another key")]


@covers("B09", "P31")
@pytest.mark.parametrize("keys", WRONG)
async def test_a_worker_with_the_wrong_key_never_runs_the_tool_and_the_task_fails_with_the_setting(
    settings: Settings, peek: Peek, caplog: pytest.LogCaptureFixture, keys: Sequence[SecretStr]
) -> None:
    """B09: not run as anonymous, nor with what can be opened; bounded attempts, then an end that says what to do."""
    tools = Tools()
    async with house(with_keys(settings, OLD), tools, auth=True, token=BEARER) as (home, alice):
        task_id = await parked(home, alice)
        await answered(alice, task_id)
        async with another_worker(home, with_keys(settings, *keys)) as wrong:
            assert await wrong.deliver(home.fleet.messages.pop()) == "deferred"
            state = await alice.state(task_id)
            assert state["status"] == "working"
            assert state["statusMessage"] == "Waits for a worker that can open what is stored of it"
            for word in ("deferred", "failed"):
                await due_again(home, peek, task_id)
                assert await wrong.deliver(home.fleet.messages.pop()) == word
        state = await alice.state(task_id)
        assert state["status"] == "failed"
        error = state["error"]
        assert error["code"] == -32603
        assert task_id[:10] in error["message"] and "MCPTASKS_ENCRYPTION_KEYS" in error["message"]
    assert tools.runs == 1
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("MCPTASKS_ENCRYPTION_KEYS" in line and task_id[:10] in line for line in warned) == 3
    assert not any(task_id in line for line in warned)


@covers("B09")
async def test_a_worker_that_gets_the_new_key_late_costs_no_task(settings: Settings, peek: Peek) -> None:
    """Another one has it; until then the task waits, and no attempt is lost."""
    tools = Tools()
    async with house(with_keys(settings, NEW, OLD), tools, auth=True, token=BEARER) as (home, alice):
        task_id = await parked(home, alice)
        await answered(alice, task_id)
        async with another_worker(home, with_keys(settings, OLD)) as late:
            assert await late.deliver(home.fleet.messages.pop()) == "deferred"
        await due_again(home, peek, task_id)
        await home.fleet.settle()
        assert await text_of(alice, task_id) == "RES-678 ARG-234 ANS-456"
        assert peek.field(task_id, "attempt") == "1"


@covers("B09")
async def test_an_answer_that_a_held_run_cannot_open_puts_its_task_off(settings: Settings, peek: Peek) -> None:
    """The server has the new key already, the worker in whose hands the run waits has not: nothing goes on there."""
    tools = Tools(hold="30s")
    async with house(with_keys(settings, OLD), tools, auth=True, token=BEARER) as (home, alice):
        task_id = await alice.start("pay", {"account": "ARG-234"})
        run = home.fleet.begin()
        await alice.until(task_id, lambda state: state["status"] == "input_required")
        home.settings = with_keys(settings, NEW, OLD)
        await answered(await home.open(token=BEARER), task_id)
        assert await run == "deferred"
        await due_again(home, peek, task_id)
        async with another_worker(home, home.settings) as right:
            assert await right.deliver(home.fleet.messages.pop()) == "completed"
        assert tools.runs == 2


@covers("B09", "P12")
@pytest.mark.parametrize("keys", WRONG)
async def test_a_server_with_the_wrong_key_says_so_and_changes_nothing(
    settings: Settings, peek: Peek, caplog: pytest.LogCaptureFixture, keys: Sequence[SecretStr]
) -> None:
    """-32603 and the setting's name for get and update, and a line in its log; only a cancel needs nothing sealed."""
    async with house(with_keys(settings, OLD), Tools(), auth=True, token=BEARER) as (home, alice):
        task_id = await parked(home, alice)
        [key] = (await alice.state(task_id))["inputRequests"]
        before = peek.stored(task_id)
        home.settings = with_keys(settings, *keys)
        stranger = await home.open(token=BEARER)
        for reply in (await stranger.get(task_id), await stranger.update(task_id, {key: ACCEPT})):
            assert reply.error["code"] == -32603
            assert "MCPTASKS_ENCRYPTION_KEYS" in reply.error["message"] and task_id not in reply.error["message"]
        async with home.listen(stranger, task_id) as listener:
            assert await listener.acknowledged() == [task_id]
        assert peek.stored(task_id) == before
        logged = [record for record in caplog.records if record.name == "mcptasks.server"]
        assert len([one for one in logged if one.levelno == logging.ERROR and task_id[:10] in one.getMessage()]) == 2

        nobody = await stranger.with_(token="bob").get(task_id)
        assert nobody.error["code"] == -32602, "who may not see it learns nothing of it"
        assert (await stranger.cancel(task_id)).result == {"resultType": "complete"}
        assert (await alice.state(task_id))["status"] == "cancelled"
