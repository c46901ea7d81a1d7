"""The console's pages and actions, on a real store: what an operator sees, and what a form that was sent has done."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, Final

import pytest

from mcptasks.console import live
from mcptasks.model import Claim, InputLimit, Question, Status, label
from mcptasks.operations import Operations
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.store import TaskStore
from mcptasks.times import iso
from tests.requirements import covers
from tests.support.console import Browser, browser
from tests.support.peek import Peek
from tests.support.tasks import asking, end, ended, parked, question, queued, read, running

pytestmark = pytest.mark.anyio

FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["approve", "count"],
    "properties": {
        "approve": {"type": "boolean", "title": "Approve?"},
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How many"},
        "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["small", "large"]},
        "word": {"type": "string", "maxLength": 5, "default": "tea"},
        "tell": {"type": "array", "items": {"type": "string", "enum": ["ann", "bob", "eve"]}},
    },
}


async def asked(store: TaskStore, *questions: Question, **how: Any) -> Claim:
    """A task that waits for these answers, by default for a form's."""
    claim = await running(store, **how)
    form = replace(question("q", "Buy?"), params={"mode": "form", "message": "Buy?", "requestedSchema": FORM})
    assert (await store.ask(claim, asking(*(questions or (form,))), guard=None, hold=False)).outcome == "PARKED"
    return claim


async def answers(store: TaskStore, claim: Claim) -> dict[str, Any]:
    """What is stored."""
    return (await store.journal(claim.task_id)).answers


async def told(settings: Settings, task_id: str, what: str) -> dict[str, Any]:
    """What the timeline has of the one event of that name."""
    async with Operations(settings) as fleet:
        [about] = [dict(entry.about) for entry in await fleet.timeline(task_id) if entry.what == what]
    return about


async def at_work(settings: Settings, page: Browser, claim: Claim | str) -> str:
    """The address of the task, whose page was opened."""
    await page.log_in()
    where = f"/tasks/{label(claim if isinstance(claim, str) else claim.task_id)}"
    assert (await page.open(where)).status_code == 200
    return where


# ------------------------------------------------------------------------------------------------ what is shown


async def test_the_list_shows_what_is_unfinished_or_what_is_asked_for(store: TaskStore, settings: Settings) -> None:
    """By status, tool and owner; the words are those of `mcptasks ps`."""
    claim = await running(store, owner="ann")
    await store.progress(claim, "Reading", 3, 12)
    asks, failed = await parked(store, owner="bob"), await ended(store, Status.FAILED)
    names = {name: label(one.task_id) for name, one in (("runs", claim), ("asks", asks), ("failed", failed))}

    def seen(text: str) -> set[str]:
        return {name for name, short in names.items() if f"/tasks/{short}" in text}

    async with browser(settings) as page:
        await page.log_in()
        first = (await page.open("/tasks")).text
        assert seen(first) == {"runs", "asks"}
        assert "Reading: 3 of 12 (25 %)" in first and 'value="25.0"' in first and "1 open" in first
        assert seen((await page.open("/tasks?status=failed")).text) == {"failed"}
        assert seen((await page.open("/tasks?status=all")).text) == set(names)
        assert seen((await page.open("/tasks?status=all&owner=bob")).text) == {"asks"}
        assert seen((await page.open("/tasks?tool=another")).text) == set()
        assert (await page.open("/tasks?after=nonsense")).status_code == 404
        assert not any(one.task_id in first for one in (claim, asks, failed)), "ids are secrets"


async def test_a_long_list_has_pages(store: TaskStore, settings: Settings) -> None:
    """Each task on one of them."""
    tasks = {label(await queued(store)) for _ in range(5)}
    async with browser(settings, page=2) as page:
        await page.log_in()
        where, seen = "/tasks", set[str]()
        while where:
            text = (await page.open(where)).text
            seen |= {one for one in tasks if f"/tasks/{one}" in text}
            _, found, rest = text.partition('href="/tasks?after=')
            cursor = rest.partition('"')[0]
            where = f"/tasks?after={cursor}" if found else ""
    assert seen == tasks


async def test_one_tasks_page_has_all_that_show_has(store: TaskStore, settings: Settings) -> None:
    """Timeline, attempt, worker, questions and how long they may be answered."""
    claim = await asked(store)
    async with browser(settings) as page:
        text = (await page.open(await at_work(settings, page, claim))).text
        for part in ("Buy?", "How many", "small", "Send answer", "Decline", "Dismiss", "1 of 3", "park", "claim"):
            assert part in text, part
        assert (await page.open("/tasks/zzzzzz")).status_code == 404
    failed = await ended(store, Status.FAILED)
    async with browser(settings) as page:
        text = (await page.open(await at_work(settings, page, failed))).text
    assert "Error -32050: No" in text and "Retry as a new task" in text and "Cancel this task" not in text


async def test_a_timeline_of_several_days_says_which(store: TaskStore, settings: Settings, peek: Peek) -> None:
    """A time of day is all that today's entries need."""
    task = await queued(store)
    async with browser(settings) as page:
        where = await at_work(settings, page, task)
        assert 'class="day"' not in (await page.open(where)).text
        long_ago_ms = await store.now_ms() - 3 * 86_400_000
        peek.raw.hset(peek.keys.task(task), "created", long_ago_ms)
        assert f'<li class="day">{iso(long_ago_ms)[:10]}</li>' in (await page.open(where)).text


async def test_the_inbox_has_every_open_question(store: TaskStore, settings: Settings) -> None:
    """Of all kinds; those that are asked of a client say so."""
    await asked(store)
    await asked(store, question("one", "First?"), question("two", "Second?"))
    await asked(store, Question(key="model", method="sampling/createMessage", params={"messages": [], "maxTokens": 1}))
    link = {"mode": "url", "message": "Log in", "url": "https://example.com/x", "elicitationId": "e"}
    await asked(store, Question(key="link", method="elicitation/create", params=link))
    async with browser(settings) as page:
        await page.log_in()
        text = (await page.open("/inbox")).text
    for part in ("Buy?", "First?", "Second?", "its client&#39;s model", "https://example.com/x", "4 tasks wait"):
        assert part in text, part
    assert 'href="https://example.com' not in text


async def test_the_fleet_page_shows_workers_and_what_ails_them(store: TaskStore, settings: Settings) -> None:
    """As doctor would say it."""
    pulse = WorkerPulse(
        at_ms=await store.now_ms(), host="box", pid=7, slots=4, active=2, received=1, waiting=3, deaf_ms=40_000
    )
    await store.report("worker1@box", replace(pulse, stuck={"report": 1}))
    async with browser(settings) as page:
        await page.log_in()
        text = (await page.open("/fleet")).text
    assert "pid 7 on box, 2 of 4 slots busy" in text
    assert "taken no message for 40s" in text and "1 run of report cannot be stopped" in text


# ------------------------------------------------------------------------------------------------ answers


@covers("P42")
async def test_a_form_is_an_answer_as_a_client_would_send_it(store: TaskStore, settings: Settings) -> None:
    """The values have the schema's types, what was left empty is left out, and the timeline names who answered."""
    claim = await asked(store)
    async with browser(settings) as page:
        where = await at_work(settings, page, claim)
        form = {"key": "q", "action": "accept", "f:approve": "true", "f:count": "3", "f:size": "l", "f:word": "a\r\nb"}
        done = await page.send(f"{where}/answer", {**form, "f:tell": ["ann", "eve"]})
    assert "Answered. The task moves on." in done.text
    content = {"approve": True, "count": 3, "size": "l", "word": "a\nb", "tell": ["ann", "eve"]}
    assert await answers(store, claim) == {"q": {"action": "accept", "content": content}}
    assert (await read(store, claim.task_id)).status is Status.QUEUED
    assert await told(settings, claim.task_id, "answer") == {"by": "operator", "operator": "olga", "keys": ["q"]}


@covers("P42")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"f:count": "3"}, "is needed"),
        ({"f:approve": "true", "f:count": "many"}, "a whole number"),
        ({"f:approve": "true", "f:count": "11"}, "maximum"),
        ({"f:approve": "perhaps", "f:count": "1"}, "yes or no"),
        ({"f:approve": "true", "f:count": "1", "f:size": "xl"}, "one of s, l"),
        ({"f:approve": "true", "f:count": "1", "f:tell": ["ann", "zoe"]}, "one of ann, bob, eve"),
        ({"f:approve": "true", "f:count": "1", "f:word": "longer than five"}, "too long"),
        ({}, "is needed"),
    ],
    ids=["missing", "no number", "too many", "no boolean", "no choice", "none of several", "too long", "empty"],
)
async def test_a_form_that_is_no_answer_comes_back_with_what_is_wrong(
    store: TaskStore, settings: Settings, fields: dict[str, Any], said: str
) -> None:
    """Nothing is stored, and what was typed is still there."""
    claim = await asked(store)
    async with browser(settings) as page:
        where = await at_work(settings, page, claim)
        back = await page.send(f"{where}/answer", {"key": "q", "action": "accept", **fields})
    assert (back.status_code, said in back.text, 'role="alert"' in back.text) == (422, True, True), back.text
    if "f:count" in fields:
        assert f'value="{fields["f:count"]}"' in back.text
    assert await answers(store, claim) == {}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_question_is_declined_or_dismissed_whatever_the_fields_say(
    store: TaskStore, settings: Settings, action: str
) -> None:
    """Both are answers of the protocol."""
    claim = await asked(store)
    async with browser(settings) as page:
        where = await at_work(settings, page, claim)
        done = await page.send(f"{where}/answer", {"key": "q", "action": action, "f:count": "x", "back": "inbox"})
    assert done.url.path == "/inbox" and "Answered" in done.text
    assert await answers(store, claim) == {"q": {"action": action}}


async def test_what_is_asked_of_a_client_takes_json(store: TaskStore, settings: Settings) -> None:
    """By the client's own rules."""
    claim = await asked(store, Question(key="roots", method="roots/list", params={}))
    good = {"roots": [{"uri": "file:///srv"}]}
    async with browser(settings) as page:
        where = await at_work(settings, page, claim)
        for raw, said in (("{", "not JSON"), ("[]", "a JSON object"), ('{"roots": 1}', "no result of roots/list")):
            back = await page.send(f"{where}/answer", {"key": "roots", "action": "raw", "raw": raw})
            assert (back.status_code, said in back.text) == (422, True), back.text
        await page.send(f"{where}/answer", {"key": "roots", "action": "raw", "raw": json.dumps(good)})
    assert await answers(store, claim) == {"roots": good}


@covers("P43")
async def test_the_second_answer_changes_nothing_and_is_told_so(store: TaskStore, settings: Settings) -> None:
    """P43, seen by the operator who came too late."""
    claim = await parked(store)
    async with browser(settings) as page:
        where = await at_work(settings, page, claim)
        await page.send(f"{where}/answer", {"key": "sure", "action": "decline"})
        late = await page.send(f"{where}/answer", {"key": "sure", "action": "accept"})
    assert "Somebody answered this meanwhile" in late.text
    assert await answers(store, claim) == {"sure": {"action": "decline"}}


# ------------------------------------------------------------------------------------------------ other actions


async def test_cancel_extend_and_retry_do_what_they_say_in_the_operators_name(
    store: TaskStore, settings: Settings, peek: Peek
) -> None:
    """Each stands in the timeline."""
    waits = await queued(store, policy=Policy(ttl_ms=86_400_000))
    failed = await ended(store, Status.FAILED)
    async with browser(settings) as page:
        where = await at_work(settings, page, waits)
        assert "It is kept until" in (await page.send(f"{where}/extend", {"by": "2d"})).text
        assert (await page.send(f"{where}/extend", {"by": "soon"})).status_code == 422
        assert "Cancelled." in (await page.send(f"{where}/cancel", {"reason": "Moving <b>house</b>"})).text
        assert "It had ended before" in (await page.send(f"{where}/cancel", {})).text
        where = await at_work(settings, page, failed)
        fresh = await page.send(f"{where}/retry", {})
        assert f"does again what {label(failed.task_id)}" in fresh.text
        assert (await page.send(f"/tasks/{label(waits)}/retry", {})).status_code == 409
    record = await read(store, waits)
    assert (record.status, record.status_message) == (Status.CANCELLED, "Moving <b>house</b> (by operator olga)")
    assert (await told(settings, waits, "extend"))["operator"] == "olga"
    assert (await told(settings, waits, "cancel"))["operator"] == "olga"
    assert (await told(settings, failed.task_id, "retried"))["operator"] == "olga"


async def test_the_door_is_closed_and_opened_and_the_rest_cancelled(store: TaskStore, settings: Settings) -> None:
    """Drain: what is left is counted; cancelling all of it wants to be meant."""
    waits = await queued(store)
    async with browser(settings) as page:
        await page.log_in()
        await page.open("/fleet")
        assert (await page.send("/fleet/close", {"reason": " "})).status_code == 422
        closed = await page.send("/fleet/close", {"reason": "Deploy <i>7</i>"})
        assert "Draining: <b>1</b> unfinished task" in closed.text and "Deploy &lt;i&gt;7&lt;/i&gt;" in closed.text
        assert await store.admission() == "Deploy <i>7</i>"
        assert (await page.send("/fleet/cancel", {"reason": "Move"})).status_code == 422
        assert (await read(store, waits)).status is Status.QUEUED
        assert "1 tasks were cancelled" in (await page.send("/fleet/cancel", {"reason": "Move", "sure": "yes"})).text
        assert (await read(store, waits)).status_message == "Move (by operator olga)"
        await page.open("/fleet")
        assert "accepted again" in (await page.send("/fleet/open", {})).text
    assert await store.admission() is None


# ------------------------------------------------------------------------------------------------ live


async def test_the_living_part_is_drawn_again_when_something_changes_and_sent_if_it_differs(
    store: TaskStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An age that grew is no difference. No look that was due anyway helps here: the change is heard."""
    monkeypatch.setattr(live, "_TICK_S", 60.0)
    claim = await running(store)
    async with Operations(settings) as fleet:
        drawings = 0

        async def draw() -> str:
            nonlocal drawings
            drawings += 1
            return f"<time>{drawings}</time> {(await fleet.read(claim.task_id)).status}"

        stream = live.drawn(fleet, draw)
        assert (await anext(stream)).endswith("running")
        await end(store, claim)
        async with asyncio.timeout(30):
            assert (await anext(stream)).endswith("completed")
        assert drawings < 20
        await stream.aclose()


async def test_time_that_passes_is_no_news(store: TaskStore, settings: Settings, peek: Peek) -> None:
    """A page in which only ages and what is left have changed is not sent again: each tick would be a whole page."""
    claim = await asked(store, replace(question("q"), limit=InputLimit(ms=86_400_000, failure=None)))
    async with browser(settings) as page:
        where = await at_work(settings, page, claim)
        for path in (where, "/inbox"):
            parts = list[str]()
            for _ in range(2):
                text = (await page.open(path)).text
                assert "Time is up in" in text
                parts.append(live.news(text.partition('id="live"')[2]))
                # As if it were a while later.
                limits = [name for name in peek.raw.hkeys(peek.keys.task(claim.task_id)) if str(name).startswith("d:")]
                assert limits
                peek.raw.hset(peek.keys.task(claim.task_id), limits[0], f"{await store.now_ms() + 3_600_000} cancel")
            assert parts[0] == parts[1], path


async def test_who_listens_hears_of_every_task(store: TaskStore, settings: Settings) -> None:
    """Also where the prefix has characters that a pattern would mean something by."""
    settings = settings.model_copy(update={"prefix": settings.prefix + "a[b]*?:"})
    other = TaskStore(settings)
    async with Operations(settings) as fleet:
        heard = asyncio.Event()
        fleet.listen(heard.set)
        async with asyncio.timeout(30):
            await heard.wait()  # it is connected
            heard.clear()
            await parked(store)  # of another prefix
            await parked(other)
            await heard.wait()
        fleet.leave(heard.set)
    await other.aclose()
