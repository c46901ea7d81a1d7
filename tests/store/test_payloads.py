"""The store is a carrier: no digit, type or character of a payload changes between the two ends (no cjson anywhere)."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from mcptasks.model import Question, Reason, Status
from mcptasks.store.store import TaskStore
from mcptasks.strict_json import MAX_DEPTH
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, asking, claimed, create, queued, read, running, submission

pytestmark = pytest.mark.anyio

ODD: Final[dict[str, Any]] = {
    "beyond doubles": 9007199254740993,
    "64 bits": [-(2**63), 2**64 - 1],
    "huge": 10**30,
    "floats": [1.0, -0.0, 1e-7, 1e22, 0.1],
    "empty": [[], {}, "", None, [{}], {"a": []}],
    "booleans": [True, False, 0, 1],
    "text": "naïve \u2028 \U0001f600 \x00 \x1f \\ \" ' </script> %s {0}",
    "lone": ["\ud83d", "\udcff tail", {"\ud800": "\udfff"}],
    "keys": {"": 1, "a b": 2, "1": 3, "__proto__": 4},
}


def text(value: object) -> str:
    """JSON as it is written: tells 1 from 1.0, -0.0 from 0.0 and [] from {}."""
    return json.dumps(value, sort_keys=True)


@covers("F05", "F03")
async def test_arguments_reach_the_run_as_they_were_sent(store: TaskStore) -> None:
    """F05: digits identical; 1.0 stays a float; [] and {} stay apart."""
    claim = await running(store, **ODD)
    assert claim.submission is not None
    assert text(claim.submission.arguments) == text(ODD)


@covers("F05", "F03")
async def test_questions_reach_the_client_and_answers_the_run_as_they_are(store: TaskStore) -> None:
    """F05, through park and resume."""
    claim = await running(store)
    asked = Question(key="q", method="elicitation/create", params={"odd": ODD})
    await store.ask(claim, asking(asked), guard=None, hold=False)
    shown = (await read(store, claim.task_id)).questions["q"]
    assert text(shown) == text({"method": "elicitation/create", "params": {"odd": ODD}})
    await store.answer(claim.task_id, ANN, {"q": ODD})
    again = await claimed(store, claim.task_id, run=2)
    assert text(again.journal.answers["q"]) == text(ODD)


@covers("F05", "F03")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
async def test_results_errors_and_steps_are_given_back_as_they_were_stored(
    store: TaskStore, peek: Peek, status: Any
) -> None:
    """F05; the stored text itself is the text that was handed over."""
    claim = await running(store)
    payload = json.dumps(ODD)
    await store.step(claim, "s#1", payload)
    await store.finish(claim, status, Reason(status), payload=payload)
    record = await read(store, claim.task_id)
    assert text(record.result or record.error) == text(ODD)
    assert peek.stored(claim.task_id).result == payload
    assert text((await store.journal(claim.task_id)).steps["s#1"]) == text(ODD)


async def test_the_stored_text_is_ascii(store: TaskStore, peek: Peek) -> None:
    """Every parser and terminal can read it, and a lone surrogate has a spelling."""
    task_id = await queued(store, **ODD)
    call = peek.stored(task_id).call
    assert call is not None
    assert call.isascii()
    assert json.loads(call)["arguments"] == ODD


@covers("F05")
async def test_arguments_of_five_thousand_digits_are_carried(store: TaskStore) -> None:
    """Text is text: only Python's own parser minds (over 4,300 digits), and says so at the reading end."""
    digits = "9" * 4_300
    claim = await running(store, n=int(digits))
    assert claim.submission is not None
    assert str(claim.submission.arguments["n"]) == digits


@covers("F03")
async def test_names_with_odd_characters_are_kept_apart(store: TaskStore) -> None:
    """Owners are a configured function's strings: each is only equal to itself."""
    owners = ["", "a", "A", "ä", "a\u0308", "\ud83d", "?", "\ufffd", "a b", '["c",null,"s"]']
    tasks = {owner: await queued(store, owner=owner) for owner in owners}
    for owner, task_id in tasks.items():
        assert [other for other in owners if await store.read(task_id, other) is not None] == [owner]
        assert (await read(store, task_id, owner)).owner == owner


async def test_arguments_may_nest_as_deep_as_the_limit(store: TaskStore) -> None:
    """The limit is ours, so whatever is below it must pass every hop."""
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]
    created = await create(store, call=submission(x=nested))
    claim = await claimed(store, created.task_id)
    assert claim.submission is not None
    assert claim.submission.arguments == {"x": nested}
