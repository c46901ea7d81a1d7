"""create: the task exists and can be read, or the idempotency key names the one that does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcptasks.errors import BadPayload, TooLarge
from mcptasks.model import Envelope, Guard, Status, new_task_id
from mcptasks.policy import Policy
from mcptasks.store.callers import EXPIRY_GRACE_MS, Created, Refused
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, Terminal, claimed, create, end, offer, queued, running, submission

pytestmark = pytest.mark.anyio


@covers("P20", "R1")
async def test_a_created_task_is_read_through_any_store_as_it_was_announced(
    store: TaskStore, open_store: OpenStore
) -> None:
    """SEP-2663, Task Creation: no handle before a get would find the task, from any server instance."""
    policy = Policy(ttl_ms=120_000, queue="slow", time_limit_ms=60_000)
    created = await create(store, policy=policy)
    assert created.outcome == "CREATED"
    assert created.record is not None
    assert (created.record.status, created.record.revision, created.record.token) == (Status.QUEUED, 1, 0)
    assert (created.record.queue, created.record.ttl_ms) == ("slow", 120_000)
    assert await open_store().read(created.task_id, ANN) == created.record


@covers("N2")
async def test_the_call_is_stored_with_the_first_snapshot(store: TaskStore) -> None:
    """N2: the run gets the whole submission from the store, nothing from the message."""
    call = replace(submission(topic="tides"), headers={"x-team": "7"}, principal={"client_id": "c"}, request_id=4)
    created = await create(store, call=call)
    assert (await claimed(store, created.task_id)).submission == call


async def test_a_task_counts_as_unsent_until_its_message_is_sent_again(store: TaskStore, peek: Peek) -> None:
    """Invariant 1: the queue is a hint; a task whose message is lost stands in the outbox."""
    before = peek.now_ms()
    task_id = await queued(store)
    due = peek.score("unsent", task_id)
    assert due is not None
    assert before <= due - store.settings.resend_ms <= peek.now_ms()


async def test_the_same_id_again_is_the_same_task(store: TaskStore, peek: Peek) -> None:
    """Our client may send a script once more when it saw no answer; that must not make the task anew."""
    task_id = await queued(store, topic="first")
    await claimed(store, task_id)
    before = peek.stored(task_id)
    again = await create(store, task_id, submission(topic="second"), owner="bob")
    assert again.outcome == "CREATED"
    assert again.record is not None
    assert str(again.record.created_ms) == before.task["created"]
    assert peek.stored(task_id) == before


# ------------------------------------------------------------------------------------------------ idempotency


@covers("P23", "W2")
async def test_the_same_key_and_arguments_name_the_task_that_exists(store: TaskStore, peek: Peek) -> None:
    """W2: replayed with the same request, admission returns the accepted task."""
    first = await create(store, key="k")
    before = peek.all_keys(), peek.stored(first.task_id)
    again = await create(store, key="k")
    assert (again.outcome, again.task_id, again.record) == ("EXISTS", first.task_id, None)
    assert (peek.all_keys(), peek.stored(first.task_id)) == before


@covers("P23", "W2")
async def test_the_same_key_with_other_arguments_is_a_conflict_and_stores_nothing(store: TaskStore, peek: Peek) -> None:
    """W2: with a different request it is refused and the stored one is unchanged."""
    first = await create(store, key="k")
    before = peek.all_keys(), peek.stored(first.task_id)
    other = await create(store, key="k", digest="d2")
    assert (other.outcome, other.task_id) == ("CONFLICT", first.task_id)
    assert (peek.all_keys(), peek.stored(first.task_id)) == before


@covers("P23")
@pytest.mark.parametrize("status", TERMINAL)
async def test_the_key_still_names_its_task_after_the_end(store: TaskStore, status: Terminal) -> None:
    """Issue 2: same key and same arguments, the same task, also when it has ended."""
    first = await create(store, key="k")
    await end(store, await claimed(store, first.task_id), status)
    assert ((await create(store, key="k")).outcome, (await create(store, key="k", digest="d2")).outcome) == (
        "EXISTS",
        "CONFLICT",
    )


@covers("P23")
@pytest.mark.parametrize(
    "other",
    [{"owner": "bob"}, {"call": submission("invoice")}, {"owner": ""}],
    ids=["another caller", "another tool", "nobody"],
)
async def test_the_same_key_of_another_caller_or_tool_is_another_task(store: TaskStore, other: dict[str, Any]) -> None:
    """Issue 2: the key is scoped to caller and tool."""
    first = await create(store, key="k")
    second = await create(store, key="k", **other)
    assert second.outcome == "CREATED"
    assert second.task_id != first.task_id


async def test_owner_tool_and_key_cannot_be_shifted_into_each_other(store: TaskStore) -> None:
    """Callers choose their keys freely: no choice may end up under another caller's name."""
    made = [
        await create(store, None, submission(tool), owner=owner, key=key)
        for owner, tool, key in [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ('a","b', "c", "d")]
    ]
    assert [one.outcome for one in made] == ["CREATED"] * 4


async def test_calls_without_a_key_are_different_tasks(store: TaskStore) -> None:
    """A key-less retry cannot be told from a second order: no key, twice, is two tasks."""
    assert [(await create(store)).outcome for _ in range(2)] == ["CREATED"] * 2


# ------------------------------------------------------------------------------------------------ sizes, payloads


@covers("F07")
async def test_arguments_over_the_limit_are_refused_and_nothing_is_stored(open_store: OpenStore, peek: Peek) -> None:
    """Issue 2: sizes are limited with clear errors; the last byte below the limit is still accepted."""
    store = open_store(arguments_max=len('{"text":"' + "x" * 50 + '"}'))
    with pytest.raises(TooLarge, match=r"has 62 bytes; the limit is 61 bytes \(MCPTASKS_ARGUMENTS_MAX\)"):
        await queued(store, text="x" * 51)
    assert peek.all_keys() == set()
    await queued(store, text="x" * 50)


@covers("F01")
@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), object()], ids=["NaN", "-Infinity", "an object"])
async def test_arguments_that_are_not_json_are_refused_and_nothing_is_stored(
    store: TaskStore, peek: Peek, bad: object
) -> None:
    """F01: strict JSON at every layer."""
    with pytest.raises(BadPayload, match="is not JSON"):
        await queued(store, value=bad)
    assert peek.all_keys() == set()


# ------------------------------------------------------------------------------------------------ what comes along


@covers("P21")
async def test_answers_given_before_the_task_existed_are_in_its_first_journal(store: TaskStore, peek: Peek) -> None:
    """SEP-2663, multi-round-trip: what was settled on the request is reflected in the task."""
    guard = Guard(round=0, request_state="s", keys={"region": "r0-1"})
    created = await create(store, settled=(guard, {"r0-1": {"action": "accept"}}))
    claim = await claimed(store, created.task_id)
    assert claim.journal.guard == guard
    assert claim.journal.answers == {"r0-1": {"action": "accept"}}
    assert len(set(peek.stored(created.task_id).expires.values())) == 1


async def test_a_message_is_pushed_by_the_script_that_creates_the_task_and_by_no_repetition(
    store: TaskStore, peek: Peek
) -> None:
    """dispatch: where the broker is the store, record and message are one round trip; one task, one message."""
    queue = f"{peek.keys.prefix}queue"
    first = await create(store, key="k", message=Envelope(queue, "m1", 1))
    await create(store, first.task_id, message=Envelope(queue, "m2", 1))
    await create(store, key="k", message=Envelope(queue, "m3", 1))
    await create(store, key="k", digest="d2", message=Envelope(queue, "m4", 1))
    assert peek.raw.lrange(queue, 0, -1) == ["m1"]


@covers("P33")
async def test_every_key_of_a_new_task_dies_with_it_two_ttls_and_a_grace_from_now(store: TaskStore, peek: Peek) -> None:
    """Invariant 7: the sweeper fails an overdue task within its second ttl, before Redis removes it as one unit."""
    guard = Guard(round=0, request_state=None, keys={})
    created = await create(store, key="k", settled=(guard, {}))
    found = peek.stored(created.task_id)
    end_ms = int(found.task["created"]) + 2 * store.settings.ttl_ms + EXPIRY_GRACE_MS
    assert found.expires == dict.fromkeys(found.expires, end_ms)
    assert len(found.expires) == 4
    assert found.indexes["expiry"] == int(found.task["created"]) + store.settings.ttl_ms


@covers("P30", "C13")
async def test_a_retry_of_what_has_not_failed_or_is_gone_is_refused(store: TaskStore, peek: Peek) -> None:
    """FINAL: looked at in the same script that creates, so nothing can come in between."""
    claim = await running(store)
    before = peek.all_keys()
    for origin in (claim.task_id, new_task_id()):
        answer = await offer(store, origin=origin)
        assert answer == Refused("final", "")
    assert peek.all_keys() == before
    await end(store, claim, Status.FAILED)
    again = await offer(store, origin=claim.task_id)
    assert isinstance(again, Created) and again.outcome == "CREATED"
    # Its message is due at once: who retries may have nothing to send with.
    assert await store.sweep("me") == [again.task_id]
    for task_id in (claim.task_id, again.task_id):
        stored = peek.stored(task_id)
        assert peek.keys.timeline(task_id) in stored.expires and len(set(stored.expires.values())) == 1
    assert peek.stored(claim.task_id).call is not None
