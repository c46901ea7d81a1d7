"""Steps of a durable tool: once per task, whatever happens to its runs."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import anyio.from_thread
import pytest
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

import mcptasks
from mcptasks import Retry, StepFailed, step
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.durable import Till, answer_all, one, text, through
from tests.support.house import Gate, house
from tests.support.tools import Word
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class Receipt(BaseModel):
    """What a step returns."""

    number: int
    at: datetime


RECEIPT: Final = Receipt(number=7, at=datetime(2026, 1, 2, tzinfo=UTC))


# ------------------------------------------------------------------------------------------------ E01


@covers("E01", "N7")
async def test_what_stands_before_a_question_runs_again_with_every_answer(settings: Settings) -> None:
    """E01, bare: a three times, b twice, c once, as the docs say."""
    till = Till()

    async def tool(ctx: Context) -> str:
        await till.charge("a")
        await ctx.elicit("First?", Word)
        await till.charge("b")
        await ctx.elicit("Second?", Word)
        await till.charge("c")
        return "done"

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "done"
    assert [till.done.count(what) for what in "abc"] == [3, 2, 1]


@covers("E01", "N7")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_step_runs_once_however_often_its_tool_does(settings: Settings, kind: str) -> None:
    """E01, with steps: a, b and c once each."""
    till, runs = Till(), list[int]()
    charge: Callable[[str], Any] = till.charge if kind == "async" else till.charge_sync

    async def tool(ctx: Context) -> str:
        runs.append(1)
        words: list[Any] = [await step("charge", charge, "a")]
        await ctx.elicit("First?", Word)
        words.append(await step("charge", charge, "b"))
        await ctx.elicit("Second?", Word)
        words.append(await step("charge", charge, "c"))
        return " ".join(words)

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "a b c"
    assert till.done == ["a", "b", "c"]
    assert len(runs) == 3
    in_loop = [thread is threading.current_thread() for thread in till.threads]
    assert in_loop == [kind == "async"] * 3, "what blocks must not block the loop that other runs live on"


async def test_a_sync_tool_does_steps_from_its_thread(settings: Settings) -> None:
    """Through anyio, as it asks its client."""
    till = Till()

    def tool(ctx: Context) -> str:
        word = anyio.from_thread.run(step, "charge", till.charge_sync)
        anyio.from_thread.run(ctx.elicit, "Sure?", Word)
        return str(word)

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "charge"
    assert till.done == ["charge"]


# ------------------------------------------------------------------------------------------------ results


async def test_a_result_has_its_type_in_the_run_that_made_it_and_in_every_later_one(settings: Settings) -> None:
    """From the annotation or as the call says."""
    seen: list[list[Any]] = []

    async def issue() -> Receipt:
        return RECEIPT

    async def tool(ctx: Context) -> str:
        a = await step("by annotation", issue)
        b = await step("as told", lambda: [RECEIPT], result_type=list[Receipt])
        c = await step("plain", lambda: {"a": (1, 2)})
        seen.append([a, b, c])
        await ctx.elicit("Sure?", Word)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "done"
    assert seen == [[RECEIPT, [RECEIPT], {"a": [1, 2]}]] * 2


async def test_a_record_that_does_not_fit_its_type_any_more_fails_the_task_and_says_so(settings: Settings) -> None:
    """E08: the code changed while the task waited; the tool is not called with half a result, nor does it mask that."""
    types: list[Any] = [dict[str, int], Receipt]

    async def tool(ctx: Context) -> str:
        try:
            await step("issue", lambda: {"number": 7}, result_type=types.pop(0))
        except BaseException as exc:
            return repr(exc)
        await ctx.elicit("Sure?", Word)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    assert state["status"] == "failed"
    assert "The record of step 'issue' does not fit its type (at: missing)" in state["error"]["message"]


@covers("F07")
async def test_a_result_over_the_limit_is_an_error_that_names_it(settings: Settings) -> None:
    """F07: a journal is read as a whole by every run."""

    async def tool() -> str:
        with pytest.raises(mcptasks.MCPTasksError, match=r"step 'big' has 102 bytes.*MCPTASKS_RESULT_MAX") as found:
            await step("big", lambda: "x" * 100)
        return type(found.value).__name__

    async with house(settings.model_copy(update={"result_max": 101}), one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "TooLarge"


# ------------------------------------------------------------------------------------------------ errors


class Declined(Exception):
    """An outcome, as far as the shop is concerned."""


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_recorded_error_is_raised_as_one_type_in_every_run_and_its_step_is_done_once(
    settings: Settings, kind: str
) -> None:
    """The tool takes the same way each time."""
    till, seen = Till(), list[StepFailed]()

    async def charge() -> None:
        till.charge_sync()
        raise Declined("no money \ud83d")

    def charge_sync() -> None:
        till.charge_sync()
        raise Declined("no money \ud83d")

    async def tool(ctx: Context) -> str:
        try:
            await step("charge", charge if kind == "async" else charge_sync, record_errors=(Declined, KeyError))
        except StepFailed as exc:
            seen.append(exc)
        await ctx.elicit("What now?", Word)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "done"
    assert till.done == ["charge"]
    assert [(exc.step, exc.error, exc.message[:8]) for exc in seen] == [
        ("charge", "tests.protocol.test_steps:Declined", "no money")
    ] * 2
    assert isinstance(seen[0].__cause__, Declined)
    assert seen[1].__cause__ is None
    assert str(seen[1]) == "Step 'charge' failed: no money \ufffd"


async def test_any_other_error_is_not_recorded_and_the_next_run_does_the_step_again(settings: Settings) -> None:
    """An error that nobody called an outcome may be gone next time."""
    till = Till()

    async def charge() -> str:
        till.charge_sync()
        if len(till.done) == 1:
            raise LookupError("not now")
        return "charged"

    async def tool(ctx: Context) -> str:
        try:
            return await step("charge", charge, record_errors=Declined)
        except LookupError:
            await ctx.elicit("Once more?", Word)
        return "skipped"

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    assert till.done == ["charge"] * 2
    # It now goes another way than its record: it asked before, and does not this time.
    assert "returned without the question 'Once more?'" in state["error"]["message"]


async def test_a_wish_for_a_retry_is_never_an_outcome(settings: Settings) -> None:
    """N4: it is a tool error by class, and means the contrary."""
    till = Till()

    async def charge() -> str:
        till.charge_sync()
        if len(till.done) == 1:
            raise Retry("Busy")
        return "charged"

    async def tool() -> str:
        return await step("charge", charge, record_errors=ToolError)

    async with house(settings, one(tool, retry=["1ms"])) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "retrying"
        [message] = home.fleet.rechecks

        async def due() -> bool:
            return await home.fleet.deliver(message) == "completed"

        await eventually(due, description="the retry is due")
        assert text(await client.state(task_id)) == "charged"


# ------------------------------------------------------------------------------------------------ siblings, stops


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_step_is_not_interrupted_because_its_sibling_asks(settings: Settings, kind: str) -> None:
    """Its effect would happen twice without anybody dying: the question is put when the step has its record."""
    till, gate, opened = Till(), Gate(), threading.Event()

    async def charge() -> str:
        till.charge_sync()
        await gate.wait()
        return "charged"

    def charge_sync(loop: asyncio.AbstractEventLoop) -> str:
        till.charge_sync()
        loop.call_soon_threadsafe(gate.reached.set)
        assert opened.wait(30)
        return "charged"

    async def tool(ctx: Context) -> str:
        work: Any = charge if kind == "async" else functools.partial(charge_sync, asyncio.get_running_loop())
        word, answer = await asyncio.gather(step("charge", work), ctx.elicit("Sure?", Word))
        return f"{word} {answer.action}"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        run = home.fleet.begin()
        await gate.arrival()
        # As many round trips as any settling could take.
        for _ in range(20):
            assert (await client.state(task_id))["status"] == "working"
            await asyncio.sleep(0.005)
        gate.opened.set()
        opened.set()
        assert await run == "parked"
        assert text(await through(home, client, task_id)) == "charged accept"
    assert till.done == ["charge"]


@covers("N7")
async def test_work_beside_a_question_that_is_no_step_is_cut_off_and_done_again(settings: Settings) -> None:
    """As the docs say: so it belongs into a step."""
    began, ended = list[int](), list[int]()

    async def work() -> None:
        began.append(1)
        await asyncio.sleep(0.3)
        ended.append(1)

    async def tool(ctx: Context) -> str:
        await asyncio.gather(work(), ctx.elicit("Sure?", Word))
        return "done"

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "done"
    assert (len(began), len(ended)) == (2, 1)


@covers("R9")
async def test_a_sync_step_that_a_shutdown_meets_is_recorded_before_the_task_is_given_back(settings: Settings) -> None:
    """A thread cannot be stopped: what it did stands, and nothing of it runs beside the next run."""
    till, gate, opened = Till(), Gate(), threading.Event()

    def charge(loop: asyncio.AbstractEventLoop) -> str:
        till.charge_sync()
        loop.call_soon_threadsafe(gate.reached.set)
        assert opened.wait(30)
        return "charged"

    async def tool() -> str:
        return await step("charge", charge, asyncio.get_running_loop())

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        run = home.fleet.begin()
        await gate.arrival()
        home.fleet.shut_down(task_id)
        for _ in range(5):
            assert not run.done()
            await asyncio.sleep(0.005)
        opened.set()
        assert await run == "released"
        assert text(await through(home, client, task_id)) == "charged"
    assert till.done == ["charge"]


@covers("B04")
async def test_an_async_step_is_interrupted_by_a_cancel(settings: Settings) -> None:
    """B04: a cancel reaches the running body, inside a step, too."""
    gate = Gate()

    async def tool() -> str:
        await step("wait", gate.wait)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        run = home.fleet.begin()
        await gate.arrival()
        await client.cancel(task_id)
        assert await run == "cancelled"


async def test_two_branches_may_do_one_step_and_the_first_result_stands(settings: Settings) -> None:
    """Each branch of `asyncio.gather` counts for itself only in the order in which it comes."""
    till = Till()

    async def tool(ctx: Context) -> str:
        words = await asyncio.gather(*(step("charge", till.charge, what) for what in "ab"))
        await ctx.elicit("Sure?", Word)
        return " ".join(words)

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "a b"
    assert till.done == ["a", "b"]


async def test_a_step_may_ask_and_do_steps_of_its_own(settings: Settings) -> None:
    """It is done again with the answer, and once it is done nothing of it happens again."""
    till, runs = Till(), list[str]()

    async def tool(ctx: Context) -> str:
        async def outer() -> str:
            runs.append("outer")
            word = await step("charge", till.charge)
            answer = await ctx.elicit("Sure?", Word)
            return f"{word} {answer.action}"

        first = await step("outer", outer)
        second = await ctx.elicit("Sure?", Word)
        return f"{first} {second.action}"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        keys = set[str]()
        for _ in range(2):
            await home.fleet.settle()
            keys |= set((await client.state(task_id))["inputRequests"])
            await answer_all(client, task_id)
        assert text(await through(home, client, task_id)) == "charge accept accept"
    assert (till.done, runs, len(keys)) == (["charge"], ["outer"] * 2, 2)


# ------------------------------------------------------------------------------------------------ another tool


class Fickle(Till):
    """A tool that does something else in each run."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.runs = kind, 0

    async def __call__(self, ctx: Context) -> str:
        self.runs += 1
        try:
            match self.kind:
                case "another question":
                    await ctx.elicit(f"Question {self.runs}?", Word)
                case "another step":
                    await step(f"charge {self.runs}", self.charge)
                    await ctx.elicit("Sure?", Word)
                case "a question no more":
                    if self.runs == 1:
                        await ctx.elicit("Sure?", Word)
                case "a step no more":
                    if self.runs == 1:
                        await step("charge", self.charge)
                    await ctx.elicit("Sure?", Word)
                case "a question for a step":
                    if self.runs == 1:
                        await step("charge", self.charge)
                    await ctx.elicit("Sure?", Word)
                    await ctx.elicit("Really?", Word)
                case _:
                    raise LookupError(self.kind)
        except BaseException as exc:
            if not isinstance(exc, Exception):
                raise
            return f"got around it: {exc!r}"
        return "done"


@covers("E03", "N8")
@pytest.mark.parametrize(
    ("kind", "named", "runs", "charges"),
    [
        ("another question", ["'Question 2?'", "'Question 1?'"], 2, 0),
        ("another step", ["step 'charge 2'", "step 'charge 1'"], 2, 1),
        ("a question no more", ["returned without the question 'Sure?'"], 2, 0),
        ("a step no more", ["step 'charge'"], 2, 1),
        ("a question for a step", ["'Really?'", "step 'charge'"], 2, 1),
    ],
)
async def test_a_tool_that_is_not_the_one_of_its_record_fails_once_and_both_are_named(
    settings: Settings, kind: str, named: list[str], runs: int, charges: int
) -> None:
    """E03: a loud single failure instead of a loop, a wrong answer, or an effect done twice."""
    fickle = Fickle(kind)

    async def tool(ctx: Context) -> str:
        return await fickle(ctx)

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    assert state["status"] == "failed", state
    message = state["error"]["message"]
    assert all(one in message for one in named), message
    assert "do the same things in the same order" in message
    assert (fickle.runs, len(fickle.done)) == (runs, charges)


@covers("E03")
async def test_questions_asked_together_may_come_in_any_order(settings: Settings) -> None:
    """E03: answers bind by key; a third question that comes later is one more, and nothing is swapped."""
    orders = iter(["ab", "ba", "ab"])
    runs = list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)

        async def ask(text: str) -> tuple[str, str]:
            answer = await ctx.elicit(f"{text}?", Word)
            assert answer.action == "accept"
            return text, answer.data.word

        words = dict(await asyncio.gather(*(ask(text) for text in next(orders))))
        if len(runs) > 1:
            words |= dict([await ask("c")])
        return str(sorted(words.items()))

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        for _ in range(2):
            await home.fleet.settle()
            asked = (await client.state(task_id))["inputRequests"]
            answers = {key: request["params"]["message"][0].upper() for key, request in asked.items()}
            await client.update(
                task_id, {key: {"action": "accept", "content": {"word": word}} for key, word in answers.items()}
            )
        assert text(await through(home, client, task_id)) == str([("a", "A"), ("b", "B"), ("c", "C")])
    assert len(runs) == 3


@covers("E03")
async def test_a_tool_that_fails_before_it_gets_as_far_as_its_record_fails_with_its_own_error(
    settings: Settings,
) -> None:
    """R5: the error is what people must see; the record is none of their business."""
    runs = list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)
        if len(runs) == 2:
            raise ToolError("the shop has closed")
        await ctx.elicit("Sure?", Word)
        return "done"

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    assert (state["status"], state["result"]["isError"]) == ("completed", True)
    assert "the shop has closed" in text(state)


# ------------------------------------------------------------------------------------------------ no task


async def test_outside_a_task_a_step_just_runs() -> None:
    """The same tool, called live or from a unit test."""
    till = Till()
    assert await step("charge", till.charge) == "charge"
    assert await step("charge", till.charge_sync, "sync") == "sync"
    assert await step("issue", lambda: RECEIPT, result_type=Receipt) is RECEIPT
    assert till.done == ["charge", "sync"]

    def decline() -> None:
        raise Declined("no money")

    with pytest.raises(StepFailed, match="Step 'charge' failed: no money"):
        await step("charge", decline, record_errors=Declined)
    with pytest.raises(Declined):
        await step("charge", decline)
