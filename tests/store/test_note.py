"""The timeline in the store: what stands in it, what does not, and that it never grows beyond its bounds."""

from __future__ import annotations

import json
from typing import Final

import pytest

from mcptasks.model import Status
from mcptasks.observe.timeline import Entry, Timeline, timeline_of
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.base import NOTED_MAX
from mcptasks.store.store import TaskStore
from mcptasks.store.timeline import Remark
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.keys import SECRETS
from tests.support.peek import Peek
from tests.support.tasks import (
    ANN,
    asking,
    claimed,
    end,
    ended,
    hint,
    parked,
    question,
    queued,
    running,
    sleeping,
)

pytestmark = pytest.mark.anyio

MAX: Final = 256
HEAD: Final = 8


def said(text: str, age_ms: int = 0) -> Remark:
    """The tool's own entry."""
    return Remark(age_ms, "note", json.dumps({"text": text}))


async def timeline(store: TaskStore, task_id: str, owner: str | None = ANN) -> Timeline:
    """What the owner sees."""
    told = await store.told(task_id, owner)
    assert told is not None
    return timeline_of(told.record, told.noted, told.labels)


def words(found: Timeline) -> str:
    """What happened, in order."""
    return " ".join(entry.what for entry in found)


def one(found: Timeline, what: str) -> Entry:
    """The one entry of that word."""
    [entry] = [entry for entry in found if entry.what == what]
    return entry


# ------------------------------------------------------------------------------------------------ what stands in it


@covers("W6")
async def test_a_task_to_which_nothing_happens_has_a_timeline_and_no_key_for_it(store: TaskStore, peek: Peek) -> None:
    """Created, run once, ended: its record tells all of that."""
    task_id = await queued(store)
    assert words(await timeline(store, task_id)) == "create"
    claim = await claimed(store, task_id, worker="celery@w1")
    assert words(await timeline(store, task_id)) == "create claim"
    await end(store, claim)
    assert not peek.raw.exists(peek.keys.timeline(task_id))
    found = await timeline(store, task_id)
    assert [(entry.what, entry.about) for entry in found] == [
        ("create", {"tool": "report"}),
        ("claim", {"run": 1, "attempt": 1, "worker": "celery@w1"}),
        ("end", {"status": "completed", "reason": "completed", "message": "Over"}),
    ]
    moments = [entry.at_ms for entry in found]
    assert moments == sorted(moments) and moments[-1] <= peek.now_ms() < moments[0] + 60_000


@covers("W6")
async def test_all_that_happens_stands_in_it_in_order(store: TaskStore, peek: Peek) -> None:
    """Each as its own script wrote it. Who answered and cancelled is told, what was answered is not."""
    claim = await running(store, policy=Policy(retry_ms=(1_000,)))
    await store.step(claim, "charge#1", '{"at":"0.1","result":"SECRET"}')
    await store.retry(claim, "The partner is busy", '{"code":1,"message":"Busy"}')
    peek.put(claim.task_id, due="1")
    claim = await claimed(store, claim.task_id, run=2, worker="w2")
    asked = [(question("elicitation-1"), "digest 0.2 the question 'Sure?'")]
    await store.ask(claim, asked, guard=None, hold=False)
    await store.answer(claim.task_id, ANN, {"elicitation-1": {"content": {"word": "SECRET"}}})
    claim = await claimed(store, claim.task_id, run=3, worker="w1")
    await store.release(claim)
    claim = await claimed(store, claim.task_id, run=4, worker="w2")
    await store.extend(claim, 10**9)
    await store.cancel(claim.task_id, None, "Moving house")
    await end(store, claim, Status.CANCELLED)
    found = await timeline(store, claim.task_id)
    assert words(found) == "create claim step retry claim ask park answer claim release claim extend cancel end"
    assert [entry.about["worker"] for entry in found if entry.what == "claim"] == ["w1", "w2", "w1", "w2"]
    assert [entry.about["attempt"] for entry in found if entry.what == "claim"] == [1, 1, 1, 1]
    assert one(found, "step").about == {"name": "charge#1"}
    assert one(found, "retry").about == {"number": 1, "delayMs": 1_000, "message": "The partner is busy"}
    assert one(found, "ask").about == {
        "questions": [{"key": "elicitation-1", "method": "elicitation/create", "label": "the question 'Sure?'"}]
    }
    assert one(found, "answer").about == {"by": "client", "keys": ["elicitation-1"]}
    assert one(found, "extend").about.keys() == {"by", "until"}
    assert one(found, "cancel").about == {"by": "operator", "why": "Moving house"}
    assert one(found, "end").about["message"] == "Moving house"
    assert "SECRET" not in str(found)


@covers("W6", "N6")
async def test_a_lost_lease_names_the_run_and_its_worker(store: TaskStore, peek: Peek) -> None:
    """And the next attempt is another claim; a lost worker of a held run is told, too."""
    claim = await running(store)
    peek.make_due("leases", claim.task_id)
    await store.reap(claim.task_id)
    again = await claimed(store, claim.task_id, run=2, worker="w2")
    await store.ask(again, asking(question()), guard=None, hold=True)
    peek.make_due("leases", claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "COLD"
    found = await timeline(store, claim.task_id)
    assert words(found) == "create claim lost claim ask lost"
    assert [e.about for e in found if e.what == "lost"] == [{"run": 1, "worker": "w1"}, {"run": 2, "worker": "w2"}]


@covers("W6")
async def test_timers_holds_and_questions_out_of_time_stand_in_it(store: TaskStore, peek: Peek) -> None:
    """A timer says until when; nobody answered means that its time was up."""
    claim = await sleeping(store)
    found = await timeline(store, claim.task_id)
    assert words(found) == "create claim sleep"
    held = await parked(store, hold=True)
    await store.park(held)
    assert words(await timeline(store, held.task_id)) == "create claim ask park"
    await store.answer(held.task_id, None, {"sure": 1})
    assert one(await timeline(store, held.task_id), "answer").about == {"by": "operator", "keys": ["sure"]}


@covers("W6", "W5")
@pytest.mark.parametrize(("owner", "by"), [(ANN, "client"), (None, "operator")])
async def test_who_cancels_a_task_that_waits_is_told(store: TaskStore, owner: str | None, by: str) -> None:
    """It has ended at once; a second cancel changes nothing."""
    task_id = await queued(store)
    await store.cancel(task_id, owner, "No more" if owner is None else None)
    await store.cancel(task_id, ANN, "Again")
    found = await timeline(store, task_id)
    assert words(found) == "create cancel end"
    assert one(found, "cancel").about == {"by": by, **({"why": "No more"} if owner is None else {})}


async def test_a_task_that_no_worker_can_run_says_why_it_waits(store: TaskStore) -> None:
    """With how long."""
    claim = await running(store)
    await store.defer(claim, "No worker has this tool", {"code": 1, "message": "Nobody"})
    assert one(await timeline(store, claim.task_id), "defer").about["message"] == "No worker has this tool"


@covers("W6")
async def test_what_happens_before_the_first_run_comes_before_it(store: TaskStore) -> None:
    """The first claim is stored as soon as the record alone cannot tell of it."""
    task_id = await queued(store)
    await store.extend(task_id, 10**9)
    claim = await claimed(store, task_id)
    await end(store, claim)
    assert words(await timeline(store, task_id)) == "create extend claim end"


# ------------------------------------------------------------------------------------------------ chatter


@covers("W6")
async def test_a_run_of_progress_is_one_entry(store: TaskStore) -> None:
    """From what to what, and how many; another entry in between begins a new one."""
    claim = await running(store)
    for done in (1, 2, 3):
        await store.progress(claim, f"Row {done}", done, 10, reports=2)
    await store.progress(claim, "Row 3", 3, 10)
    await store.step(claim, "s#1", "1")
    await store.progress(claim, "Row 4", 4, None, remarks=[said("half way")])
    found = await timeline(store, claim.task_id)
    assert words(found) == "create claim progress step note progress"
    first, second = (entry.about for entry in found if entry.what == "progress")
    assert {k: v for k, v in first.items() if k != "until"} == {
        "reports": 6,
        "first": 1.0,
        "last": 3.0,
        "total": 10.0,
        "message": "Row 3",
    }
    assert {k: v for k, v in second.items() if k != "until"} == {
        "reports": 1,
        "first": 4.0,
        "last": 4.0,
        "message": "Row 4",
    }


@covers("W6")
async def test_a_remark_has_the_moment_when_it_was_said(store: TaskStore, peek: Peek) -> None:
    """It is written a little later, with others; by the store's clock all the same."""
    claim = await running(store)
    peek.put(claim.task_id, created=str(peek.now_ms() - 60_000), started=str(peek.now_ms() - 50_000))
    before = peek.now_ms()
    assert await store.note(claim, [said("first", 30_000), said("second", 10_000)]) == "NOTED"
    found = await timeline(store, claim.task_id)
    assert words(found) == "create claim note note"
    first, second = (entry.at_ms for entry in found if entry.what == "note")
    assert 0 <= first - (before - 30_000) < 5_000 and second - first == 20_000


@covers("W6")
async def test_a_long_text_is_cut_and_half_an_emoji_costs_one_character(store: TaskStore) -> None:
    """What was cut says so."""
    claim = await running(store)
    await store.progress(claim, "x" * 9_999, 1, 2)
    await store.step(claim, "\ud83d" * 9_999, "1")
    await store.cancel(claim.task_id, ANN, "\u2026 " * 999)
    found = await timeline(store, claim.task_id)
    texts = [
        one(found, what).about[name] for what, name in (("progress", "message"), ("step", "name"), ("cancel", "why"))
    ]
    assert all(len(text) == NOTED_MAX and text.endswith("\u2026") for text in texts)


# ------------------------------------------------------------------------------------------------ bounds


@covers("W6")
@pytest.mark.parametrize("more", [0, 1, 2, 300])
async def test_it_is_bounded_keeps_its_head_and_says_what_is_missing(store: TaskStore, more: int) -> None:
    """W6: 256 entries with creation and end; the first eight stay, and the newest; never a key of more."""
    claim = await running(store)
    notes = MAX - 4 + more
    for start in range(0, notes, 50):
        await store.note(claim, [said(str(n)) for n in range(start, min(start + 50, notes))])
    await end(store, claim)
    found = await timeline(store, claim.task_id)
    texts = [entry.about.get("text") for entry in found]
    assert (found.entries[0].what, found.entries[1].what, found.entries[-1].what) == ("create", "claim", "end")
    assert texts[2:HEAD] == [str(n) for n in range(HEAD - 2)]
    assert texts[-2] == str(notes - 1) and found.omitted == more
    if more:
        assert len(found) == MAX and found.entries[HEAD].what == "omitted"
        assert texts[HEAD + 1 : -1] == [str(n) for n in range(HEAD - 2 + more, notes)]
    else:
        assert texts[2:-1] == [str(n) for n in range(notes)]


@covers("W6", "P35")
@pytest.mark.parametrize("unlimited", [pytest.param(True, marks=pytest.mark.unlimited), False])
async def test_it_dies_with_its_task(store: TaskStore, peek: Peek, unlimited: bool) -> None:
    """Invariant 7, at every stage, extended or not."""
    claim = await running(store, policy=Policy(unlimited=True) if unlimited else Policy(ttl_ms=60_000))
    await store.note(claim, [said("x")])
    longer, after_its_end = (lambda: store.extend(claim, 120_000)), (lambda: store.extend(claim.task_id, 10**9))
    for move in (longer, lambda: end(store, claim), after_its_end):
        await move()
        expires = peek.stored(claim.task_id).expires
        assert peek.keys.timeline(claim.task_id) in expires and len(set(expires.values())) == 1
    assert words(await timeline(store, claim.task_id)).startswith("create claim note")


async def test_only_the_owner_and_the_operator_see_it(store: TaskStore) -> None:
    """As with `read`: missing and not yours are one answer."""
    claim = await ended(store)
    assert await store.told(claim.task_id, "bob") is None
    assert await store.told(claim.task_id[:-1] + "x", None) is None
    assert words(await timeline(store, claim.task_id, None)) == "create claim end"


# ------------------------------------------------------------------------------------------------ sealed


@covers("W6", "B09")
async def test_sealed_nothing_that_anybody_said_stands_in_it_in_plain_text(open_store: OpenStore, peek: Peek) -> None:
    """And all of it is there for who has the key."""
    store, text = open_store(encryption_keys=SECRETS[:1]), "SAID-789"
    claim = await running(store, policy=Policy(retry_ms=(1_000,)))
    await store.progress(claim, text, 1, 2, remarks=[said(text)])
    await store.step(claim, f"{text}#1", "1")
    await store.retry(claim, text, '{"code":1,"message":"x"}')
    await store.cancel(claim.task_id, None, text)
    stored = " ".join(peek.stored(claim.task_id).timeline)
    assert "progress" in stored and text not in stored
    found = await timeline(store, claim.task_id)
    assert [text in str(entry.about) for entry in found] == [False, False, True, True, True, True, True, True]


async def test_an_old_task_tells_what_its_record_still_knows(store: TaskStore, peek: Peek, settings: Settings) -> None:
    """One that was made before there were timelines, in the midst of its life."""
    claim = await running(store)
    await store.release(claim)
    again = await claimed(store, claim.task_id, run=2)
    peek.raw.delete(peek.keys.timeline(claim.task_id))
    await store.release(again)
    await store.claim(hint(claim.task_id, 3), "w9")
    assert words(await timeline(store, claim.task_id)) == "create claim release claim"
