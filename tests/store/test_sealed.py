"""Sealed, nobody's words stand in the store; a store with the wrong keys neither misreads nor changes a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from pydantic import SecretStr

from mcptasks.errors import Sealed
from mcptasks.model import Claim, Guard, Question, Reason, Status, Submission
from mcptasks.policy import Policy
from mcptasks.store.records import LockedClaim
from mcptasks.store.sealing import SAMPLE, Sealing, look_at_seals
from mcptasks.store.store import TaskStore
from mcptasks.times import InputLimit
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.keys import SECRETS
from tests.support.peek import Peek
from tests.support.tasks import ANN, asking, claimed, create, hint, parked, queued, read, running, submission

pytestmark = pytest.mark.anyio

OLD, NEW, OTHER = SECRETS
#: All that anybody says in these tests has this in it.
SAID: Final = "SAID-789"
GUARD: Final = Guard(round=1, request_state=SAID, keys={"own": "r1-x-1"})


def call() -> Submission:
    """A call with something of everything."""
    return Submission(
        tool="report",
        arguments={"pin": SAID},
        protocol_version="2026-07-28",
        meta={"note": SAID},
        headers={"x-team": SAID},
        principal={"token": SAID, "client_id": SAID, "scopes": []},
        client_info={"name": SAID, "version": "1"},
    )


def asked(key: str, limit: InputLimit | None = None) -> tuple[Question, str]:
    """A question that quotes, with its note as a replay makes it."""
    params = {"mode": "form", "message": SAID, "requestedSchema": {"type": "object", "properties": {}}}
    one = Question(key=key, method="elicitation/create", params=params, limit=limit)
    return one, f"{asking(one)[0][1]} 0.1 the question {SAID!r}"


async def talked(store: TaskStore) -> Claim:
    """A running task in which everything was said that can be, by its caller, its tool and a person."""
    created = await create(store, call=call(), settled=(GUARD, {"r1-x-1": {"content": {"word": SAID}}}))
    claim = await claimed(store, created.task_id)
    await store.progress(claim, SAID, 1, 2)
    await store.step(claim, "charge#1", f'{{"at":"0.1","result":"{SAID}"}}')
    limit = InputLimit(ms=60_000, failure=f"Nobody answered {SAID}")
    assert (await store.ask(claim, [asked("a"), asked("b", limit)], guard=GUARD, hold=False)).outcome == "PARKED"
    await store.answer(claim.task_id, ANN, {"a": {"content": {"word": SAID}}})
    return claim


@covers("B09")
async def test_nothing_that_anybody_said_stands_in_the_store(open_store: OpenStore, peek: Peek) -> None:
    """B09, at every stage and at every end; and all of it is there for who has the key."""
    store = open_store(encryption_keys=(OLD,))
    claim = await talked(store)
    assert SAID not in peek.dump()
    record = await read(store, claim.task_id)
    assert record.status_message == SAID and record.questions["b"]["params"]["message"] == SAID

    await store.answer(claim.task_id, ANN, {"b": {"action": "decline", "why": SAID}})
    claim = await claimed(store, claim.task_id, run=2)
    assert claim.submission == call()
    assert claim.journal.guard == GUARD
    assert claim.journal.asked == {key: asked(key)[1] for key in "ab"}
    assert claim.journal.answers["b"] == {"action": "decline", "why": SAID}
    assert claim.journal.steps["charge#1"]["result"] == SAID
    assert (await store.step(claim, "charge#1", "1")) == ("KNOWN", f'{{"at":"0.1","result":"{SAID}"}}')
    assert SAID not in peek.dump()

    payload = f'{{"content":[],"structuredContent":"{SAID}"}}'
    assert await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload=payload) == "FINISHED"
    assert SAID not in peek.dump()
    assert (await read(store, claim.task_id)).result == {"content": [], "structuredContent": SAID}


@covers("B09")
@pytest.mark.parametrize("how", ["failed", "retrying", "retries exhausted", "cancelled", "told to cancel", "timed out"])
async def test_no_way_to_end_or_wait_says_it_either(open_store: OpenStore, peek: Peek, how: str) -> None:
    """The message of an error is the tool's, the reason of a cancel is a person's, a time-out quotes the question."""
    store = open_store(encryption_keys=(OLD,))
    error = f'{{"code":-32050,"message":"{SAID}","data":"{SAID}"}}'
    claim = await running(store, policy=Policy(retry_ms=(1_000,) if how == "retrying" else ()))
    match how:
        case "failed":
            await store.finish(claim, Status.FAILED, Reason.FAILED, message=SAID, payload=error)
        case "retrying" | "retries exhausted":
            await store.retry(claim, SAID, error)
        case "cancelled" | "told to cancel":
            task_id = claim.task_id if how == "told to cancel" else await queued(store)
            await store.cancel(task_id, ANN, SAID)
            assert SAID not in peek.dump()
            if how == "told to cancel":
                await store.finish(claim, Status.CANCELLED, Reason.CANCELLED, message="Cancelled")
            assert (await read(store, task_id)).status_message == SAID
            return
        case _:
            await store.ask(claim, [asked("a", InputLimit(ms=60_000, failure=SAID))], guard=None, hold=False)
            due, _, rest = (peek.field(claim.task_id, "d:a") or "").partition(" ")
            assert SAID not in peek.dump() and int(due)
            peek.put(claim.task_id, **{"d:a": f"1 {rest}"})
            peek.make_due("expiry", claim.task_id)
            assert (await store.reap(claim.task_id)).outcome == "FAILED"
    assert SAID not in peek.dump()
    record = await read(store, claim.task_id)
    assert record.status_message == SAID
    assert how == "retrying" or (record.error is not None and record.error["message"] == SAID)


@covers("P35")
async def test_progress_that_says_the_same_again_is_no_change_to_the_client(open_store: OpenStore, peek: Peek) -> None:
    """A token is another one each time; the script must not take that for news."""
    store = open_store(encryption_keys=(OLD,))
    claim = await running(store)
    assert await store.progress(claim, SAID, 1, 2) == "SAVED"
    peek.age(claim.task_id)
    assert await store.progress(claim, SAID, 1, 2) == "SAME"
    assert not peek.updated(claim.task_id)


@covers("B09")
async def test_tasks_from_before_encryption_go_on_and_are_sealed_from_then_on(
    open_store: OpenStore, peek: Peek
) -> None:
    """Turning it on costs nobody a task."""
    claim = await talked(open_store())
    assert SAID in peek.dump()
    store = open_store(encryption_keys=(OLD,))
    assert (await read(store, claim.task_id)).questions["b"]["params"]["message"] == SAID
    await store.answer(claim.task_id, ANN, {"b": {"sealed": True}})
    again = await claimed(store, claim.task_id, run=2)
    assert again.submission == call()
    assert again.journal.answers.keys() == {"r1-x-1", "a", "b"}
    assert "sealed" not in str(peek.stored(claim.task_id).journal["a:b"])


@covers("B09")
async def test_a_rotation_changes_nothing_for_a_task(open_store: OpenStore) -> None:
    """Behind the others first, then the first, and the old one last of all."""
    claim = await talked(open_store(encryption_keys=(OLD,)))
    await open_store(encryption_keys=(OLD, NEW)).answer(claim.task_id, ANN, {"b": SAID})
    again = await claimed(open_store(encryption_keys=(NEW, OLD)), claim.task_id, run=2)
    assert again.submission == call() and again.journal.answers["b"] == SAID


# ------------------------------------------------------------------------------------------------ the wrong key

WRONG: Final = [pytest.param((), id="no key"), pytest.param((OTHER,), id="another key")]


@covers("B09")
@pytest.mark.parametrize("keys", WRONG)
async def test_without_the_key_a_record_is_refused_and_left_alone(
    open_store: OpenStore, peek: Peek, keys: Sequence[SecretStr]
) -> None:
    """It is neither misread nor half shown."""
    claim = await talked(open_store(encryption_keys=(OLD,)))
    before = peek.dump()
    stranger = open_store(encryption_keys=keys)
    with pytest.raises(Sealed, match=f"Task {claim.task_id[:10]}: .*MCPTASKS_ENCRYPTION_KEYS"):
        await stranger.read(claim.task_id, ANN)
    with pytest.raises(Sealed):
        await stranger.journal(claim.task_id)
    assert await stranger.read(claim.task_id, "bob") is None
    assert peek.dump() == before


@covers("B09")
@pytest.mark.parametrize("keys", WRONG)
async def test_without_the_key_a_claim_is_locked_and_only_puts_the_task_off(
    open_store: OpenStore, peek: Peek, keys: Sequence[SecretStr]
) -> None:
    """B09: never run with less than was stored. The worker says so in words that everybody can read."""
    right, wrong = open_store(encryption_keys=(OLD,)), open_store(encryption_keys=keys, deferrals_ms=(1_000,))
    claim = await talked(right)
    await right.answer(claim.task_id, ANN, {"b": SAID})
    locked = await wrong.claim(hint(claim.task_id, 2), "w")
    assert isinstance(locked, LockedClaim)
    assert (locked.submission, locked.journal.answers, locked.token) == (None, {}, 2)
    assert await wrong.reload(claim.task_id) == locked

    await wrong.defer(locked, "Waits", {"code": 1, "message": "Nobody"})
    assert (await read(right, claim.task_id)).status_message == "Waits"
    peek.put(claim.task_id, due="1")
    assert (await claimed(right, claim.task_id, run=3)).submission == call()
    await right.release(await reloaded(right, claim.task_id))
    again = await wrong.claim(hint(claim.task_id, 4), "w")
    assert isinstance(again, LockedClaim)
    assert (await wrong.defer(again, "Waits", {"code": 1, "message": "Nobody"})).outcome == "EXHAUSTED"
    record = await read(right, claim.task_id)
    assert (record.status, record.error) == (Status.FAILED, {"code": 1, "message": "Nobody"})


async def reloaded(store: TaskStore, task_id: str) -> Claim:
    """The claim that stands now."""
    claim = await store.reload(task_id)
    assert claim is not None
    return claim


@covers("B09", "B03")
@pytest.mark.parametrize("what", ["call", "answer"])
async def test_what_was_moved_from_another_task_locks_the_claim(open_store: OpenStore, peek: Peek, what: str) -> None:
    """Who can write to the store cannot make a task run with another one's arguments, caller or answers."""
    store = open_store(encryption_keys=(OLD,))
    mine, theirs = await talked(store), await talked(store)
    keys = peek.keys
    if what == "call":
        peek.raw.set(keys.call(mine.task_id), peek.raw.get(keys.call(theirs.task_id)), keepttl=True)
    else:
        peek.raw.hset(keys.journal(mine.task_id), "a:a", peek.raw.hget(keys.journal(theirs.task_id), "a:a"))
    await store.answer(mine.task_id, ANN, {"b": 1})
    locked = await store.claim(hint(mine.task_id, 2), "w")
    assert isinstance(locked, LockedClaim)
    assert "was written for another task or field" in str(locked.why)


# ------------------------------------------------------------------------------------------------ calls with a key


@covers("B09", "P23")
async def test_an_idempotency_key_names_its_task_through_every_change_of_keys(
    open_store: OpenStore, peek: Peek
) -> None:
    """P23, and what is stored to compare arguments cannot be guessed without a key."""
    ways: list[dict[str, Any]] = [{"key": "k", "digest": "d1", "call": submission(pin=1)}, {"key": "k", "digest": "d2"}]
    task_id = (await create(open_store(), **ways[0])).task_id
    for keys in ((OLD,), (OLD, NEW), (NEW, OLD)):
        store = open_store(encryption_keys=keys)
        same, other = [await create(store, **way) for way in ways]
        assert (same.outcome, same.task_id, other.outcome) == ("EXISTS", task_id, "CONFLICT")

    fresh = await create(open_store(encryption_keys=(OLD,)), key="k2", digest="d1")
    stored = peek.raw.get(peek.keys.idem(ANN, "report", "k2"))
    assert fresh.task_id in stored and "d1" not in stored.split(" ")[1]
    for keys, word in (((NEW, OLD), "EXISTS"), ((NEW,), "CONFLICT"), ((), "CONFLICT")):
        assert (await create(open_store(encryption_keys=keys), key="k2", digest="d1")).outcome == word


async def test_limits_count_what_was_said_and_not_its_seal(open_store: OpenStore) -> None:
    """The same call fits, whether it is sealed or not."""
    limits: dict[str, Any] = {"arguments_max": 20, "answer_max": 20, "encryption_keys": (OLD,)}
    store = open_store(**limits)
    claim = await parked(store, "sure", text="x" * 9)
    assert (await store.answer(claim.task_id, ANN, {"sure": "y" * 18})).outcome == "QUEUED"


# ------------------------------------------------------------------------------------------------ the doctor's look


@covers("B09")
async def test_a_look_at_a_few_tasks_tells_which_keys_are_still_needed(open_store: OpenStore, peek: Peek) -> None:
    """Before a key is taken out of the list, and when a process has the wrong ones. Nothing is changed by it."""
    for keys in ((), (OLD,), (OLD,), (NEW, OLD)):
        await queued(open_store(encryption_keys=keys))
    await create(open_store(encryption_keys=(OTHER,)), call=submission(long="x" * 100_000))
    before = peek.dump()

    async def look(*keys: SecretStr) -> Sealing:
        store = open_store(encryption_keys=keys)
        return await look_at_seals(store.connection.client, store.keys, store.settings)

    assert await look(NEW, OLD) == Sealing(keys=2, tried=4, plain=1, older=2, locked=0)
    assert await look(OLD, NEW) == Sealing(keys=2, tried=4, plain=1, older=1, locked=0)
    assert await look(NEW) == Sealing(keys=1, tried=4, plain=1, older=0, locked=2)
    assert await look() == Sealing(keys=0, tried=4, plain=1, older=0, locked=3)
    assert peek.dump() == before
    for _ in range(2 * SAMPLE):
        await queued(open_store())
    assert (await look()).tried <= 2 * SAMPLE
