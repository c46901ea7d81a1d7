"""A durable tool that sleeps: what its client sees, what wakes it, and what happens beside it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio.from_thread
import pytest
import redis
from mcp.server.mcpserver import Context

from mcptasks import gather, sleep, sleep_until, step
from mcptasks.errors import ConfigurationError
from mcptasks.runtime.channel import LINGER_S
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.durable import Till, answer_all, let_time_pass, one, text, through, woken
from tests.support.house import Gate, house
from tests.support.tools import Word
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------ alone


@covers("P30", "P12")
async def test_a_sleeping_task_is_working_and_costs_no_worker_and_no_message(
    settings: Settings, raw: redis.Redis
) -> None:
    """Ours: a timer parks like a question, but there is nothing that the client could do."""
    till, runs = Till(), list[int]()

    async def tool() -> str:
        runs.append(1)
        await step("charge", till.charge, "before")
        await sleep("30d")
        await step("charge", till.charge, "after")
        await sleep(timedelta(days=1))
        return "done"

    async with house(settings, one(tool, ttl="100d")) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        state = await client.state(task_id)
        assert state["status"] == "working" and "inputRequests" not in state
        assert (home.fleet.messages, home.fleet.rechecks) == ([], [])
        await home.fleet.sweep()
        assert home.fleet.messages == [], "nobody wakes it before its time"
        assert await woken(home, raw, task_id) == "sleeping"
        assert await woken(home, raw, task_id) == "completed"
        assert text(await client.state(task_id)) == "done"
    assert till.done == ["before", "after"]
    assert len(runs) == 3


async def test_a_short_sleep_is_counted_down_and_never_ends_before_its_time(settings: Settings) -> None:
    """By the store's clock, whoever delivers its message early."""
    seen: list[float] = []

    async def tool() -> str:
        seen.append(time.time())
        await sleep(1.5)
        seen.append(time.time())
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        asleep = time.time()
        [message] = home.fleet.rechecks
        assert 0 < message.countdown_ms <= 1_500

        async def over() -> bool:
            return await home.fleet.deliver(message) == "completed"

        assert await home.fleet.deliver(message) == "sleeping"
        assert 0 < home.fleet.rechecks[1].countdown_ms <= message.countdown_ms
        await eventually(over, description="the sleep is over")
        assert text(await client.state(task_id)) == "done"
    # The timer was set between these two, on this very machine's clock.
    assert seen[0] < asleep
    assert seen[-1] - seen[0] >= 1.5


async def test_what_is_shorter_than_a_second_is_slept_on_the_worker(settings: Settings, raw: redis.Redis) -> None:
    """Letting go and coming back takes about as long; nothing of it is recorded."""

    async def tool() -> str:
        started = time.monotonic()
        await sleep("50ms")
        await sleep(0)
        await sleep_until(time.time() + 0.05)
        await sleep_until(1)
        return str(time.monotonic() - started)

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "completed"
        assert float(text(await client.state(task_id))) >= 0.099
        assert raw.hgetall(f"{settings.prefix}task:{{{task_id}}}:journal") == {}


async def test_sleep_until_is_a_moment_and_no_time_of_day_somewhere(settings: Settings, raw: redis.Redis) -> None:
    """As a datetime with its zone or as Unix seconds."""
    moment = datetime.now(UTC) + timedelta(hours=3)

    async def tool() -> str:
        with pytest.raises(ConfigurationError, match="has no time zone"):
            await sleep_until(datetime.now())  # noqa: DTZ005 - that is the point
        for nonsense in (-1, "soon", "0s"):
            with pytest.raises(ConfigurationError):
                await sleep(nonsense)
        await sleep_until(moment)
        await sleep_until(moment.timestamp() + 60)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        for late in (0, 60):
            assert await home.fleet.deliver() == "sleeping"
            wake = int(str(raw.hget(f"{settings.prefix}task:{{{task_id}}}", "wake")))
            assert 0 <= wake - (moment.timestamp() + late) * 1000 <= 1
            let_time_pass(raw, settings, task_id)
            await home.fleet.sweep()
        assert await home.fleet.deliver() == "completed"


async def test_a_sync_tool_sleeps_from_its_thread(settings: Settings, raw: redis.Redis) -> None:
    """Through anyio, as it asks its client; its thread is not held."""
    till = Till()

    def tool() -> str:
        anyio.from_thread.run(step, "charge", till.charge_sync)
        anyio.from_thread.run(sleep, "1h")
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        assert await woken(home, raw, task_id) == "completed"
    assert till.done == ["charge"]


async def test_a_sleep_in_a_step_lets_go_of_the_worker_too(settings: Settings, raw: redis.Redis) -> None:
    """The step is done again with its sleep behind it."""
    runs = list[str]()

    async def tool() -> str:
        async def outer() -> str:
            runs.append("outer")
            await sleep("1h")
            return "slept"

        word = await step("outer", outer)
        await sleep("1h")
        return word

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        assert await woken(home, raw, task_id) == "sleeping"
        assert await woken(home, raw, task_id) == "completed"
    assert runs == ["outer", "outer"]


@covers("P50", "P52")
async def test_a_cancel_ends_a_sleep_at_once(settings: Settings, raw: redis.Redis) -> None:
    """There is no worker to be asked."""

    async def tool() -> str:
        await sleep("1h")
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        await client.cancel(task_id)
        assert (await client.state(task_id))["status"] == "cancelled"
        await home.fleet.sweep()
        assert home.fleet.messages == []


@covers("W4")
async def test_time_asleep_is_not_the_tools_time(settings: Settings, raw: redis.Redis) -> None:
    """Each run has its whole limit, and no limit goes on while there is none."""

    async def tool() -> str:
        for _ in range(3):
            await asyncio.sleep(0.2)
            await sleep("1h")
        return "done"

    # Three passes of 0.2, 0.4 and 0.6 seconds and one more; all together they take longer than the limit.
    async with house(settings, one(tool, time_limit="1500ms")) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        words = [await woken(home, raw, task_id) for _ in range(3)]
        assert words == ["sleeping", "sleeping", "completed"], await client.state(task_id)


# ------------------------------------------------------------------------------------------------ beside questions


@covers("E05", "P30", "R3")
async def test_a_timer_beside_a_question_goes_off_while_the_person_thinks(settings: Settings, raw: redis.Redis) -> None:
    """Its branch goes on at its time; the question stays open under its key all the while, and is never asked again."""
    till, gate, runs = Till(), Gate(), list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)

        async def later() -> str:
            await sleep("1h")
            return await step("charge", charge)

        async def charge() -> str:
            await gate.wait()
            return await till.charge()

        answer, word = await gather(ctx.elicit("Sure?", Word), later())
        return f"{answer.action} {word}"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "parked"
        asked = (await client.state(task_id))["inputRequests"]
        assert len(asked) == 1
        let_time_pass(raw, settings, task_id)
        await home.fleet.sweep()
        assert (await client.state(task_id))["inputRequests"] == asked
        run = home.fleet.begin()
        await gate.arrival()
        # It runs, and the question can be seen and answered as before.
        state = await client.state(task_id)
        assert (state["status"], state["inputRequests"]) == ("input_required", asked)
        await answer_all(client, task_id)
        assert (await client.state(task_id))["status"] == "working"
        gate.opened.set()
        assert await run == "completed"
        assert text(await client.state(task_id)) == "accept charge"
    assert till.done == ["charge"]
    assert home.fleet.messages == []


async def test_a_run_that_a_timer_began_parks_again_when_only_the_person_is_left(
    settings: Settings, raw: redis.Redis
) -> None:
    """What the branch does after its sleep is done by then, also where it is no step and takes its time."""
    done = list[str]()

    async def tool(ctx: Context) -> str:
        async def later() -> None:
            await sleep("1h")
            await asyncio.sleep(0.2)
            await step("note", done.append, "noted")

        answer, _ = await gather(ctx.elicit("Sure?", Word), later())
        return answer.action

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "parked"
        assert await woken(home, raw, task_id) == "parked"
        assert done == ["noted"]
        await home.fleet.sweep()
        assert home.fleet.messages == [], "no timer is left"
        assert text(await through(home, client, task_id)) == "accept"
    assert done == ["noted"]


async def test_an_answer_beside_a_sleep_is_taken_at_once_and_the_sleep_goes_on(
    settings: Settings, raw: redis.Redis
) -> None:
    """The task then works, as far as its client can see."""
    till = Till()

    async def tool(ctx: Context) -> str:
        async def ask() -> str:
            answer = await ctx.elicit("Sure?", Word)
            await step("charge", till.charge)
            return answer.action

        return (await gather(ask(), sleep("1h")))[0]

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "parked"
        await answer_all(client, task_id)
        assert await home.fleet.deliver() == "sleeping"
        assert (await client.state(task_id))["status"] == "working"
        assert till.done == ["charge"]
        assert await woken(home, raw, task_id) == "completed"
        assert text(await client.state(task_id)) == "accept"
    assert till.done == ["charge"]


@pytest.mark.parametrize("first", ["person", "timer"])
async def test_a_tool_may_wait_for_the_faster_of_a_person_and_a_timer(
    settings: Settings, raw: redis.Redis, first: str
) -> None:
    """The ordinary way: wait for the first of two, cancel the other."""

    async def tool(ctx: Context) -> str:
        answer, late = asyncio.ensure_future(ctx.elicit("Sure?", Word)), asyncio.ensure_future(sleep("1h"))
        await asyncio.wait({answer, late}, return_when=asyncio.FIRST_COMPLETED)
        for loser in (answer, late):
            loser.cancel()
        return answer.result().action if answer.done() and not answer.cancelled() else "too late"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "parked"
        if first == "person":
            await answer_all(client, task_id)
            assert await home.fleet.deliver() == "completed"
        else:
            assert await woken(home, raw, task_id) == "completed"
        state = await client.state(task_id)
        assert text(state) == ("accept" if first == "person" else "too late")
        assert "inputRequests" not in state


async def test_a_tool_that_has_cancelled_its_question_is_not_let_go_because_of_it(
    settings: Settings, raw: redis.Redis
) -> None:
    """It waits for nobody any more; what it does now is its own time."""
    gate = Gate()

    async def tool(ctx: Context) -> str:
        answer, late = asyncio.ensure_future(ctx.elicit("Sure?", Word)), asyncio.ensure_future(sleep("1h"))
        await asyncio.wait({answer, late}, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        await gate.wait()
        return "too late"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "parked"
        let_time_pass(raw, settings, task_id)
        await home.fleet.sweep()
        run = home.fleet.begin()
        await gate.arrival()
        await asyncio.wait({run}, timeout=LINGER_S + 0.3)
        assert not run.done()
        gate.opened.set()
        assert await run == "completed"
        assert text(await client.state(task_id)) == "too late"


# ------------------------------------------------------------------------------------------------ replay


@covers("E03")
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("no sleep", "returned without sleep 1, which an earlier run of it had"),
        ("a step", "came to step 'charge' where an earlier run of it had sleep 1"),
    ],
)
async def test_a_tool_that_does_not_come_to_its_sleep_again_fails(
    settings: Settings, raw: redis.Redis, kind: str, named: str
) -> None:
    """E03: as with steps and questions."""
    till, runs = Till(), list[int]()

    async def tool() -> str:
        runs.append(1)
        if len(runs) == 1:
            await sleep("1h")
        elif kind == "a step":
            await step("charge", till.charge)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        assert await woken(home, raw, task_id) == "failed"
        assert named in (await client.state(task_id))["error"]["message"]
    assert till.done == []


@covers("E03")
async def test_the_number_of_runs_is_bounded_and_the_error_names_the_setting(
    settings: Settings, raw: redis.Redis
) -> None:
    """A loop that never ends must not run for ever, each time from the top."""
    runs = list[int]()

    async def tool() -> str:
        runs.append(1)
        while True:
            await sleep("1h")

    async with house(settings.model_copy(update={"replays_max": 4}), one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        words = [await woken(home, raw, task_id) for _ in range(4)]
        assert words == ["sleeping"] * 3 + ["failed"]
        message = (await client.state(task_id))["error"]["message"]
        assert "run from the top 4 times" in message and "MCPTASKS_REPLAYS_MAX" in message
    assert len(runs) == 4


async def test_a_moment_that_is_recorded_stands(settings: Settings, raw: redis.Redis) -> None:
    """Whatever the next run says, and however late it comes."""
    delays: list[Any] = ["1h", "90d"]

    async def tool() -> str:
        await sleep(delays.pop(0))
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "sleeping"
        assert await woken(home, raw, task_id) == "completed"


# ------------------------------------------------------------------------------------------------ no task


async def test_outside_a_task_a_sleep_is_a_sleep() -> None:
    """The same tool, called live or from a unit test."""
    started = time.monotonic()
    await sleep("30ms")
    await sleep_until(time.time() + 0.03)
    await sleep_until(datetime.now(UTC) - timedelta(days=1))
    await sleep(0)
    assert time.monotonic() - started >= 0.059
