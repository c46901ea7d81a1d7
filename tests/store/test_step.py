"""step: the step's result is recorded for every later run, once."""

from __future__ import annotations

import pytest

from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, parked, running

pytestmark = pytest.mark.anyio


async def test_a_recorded_step_is_known_to_every_later_run(store: TaskStore) -> None:
    """The tool runs again from the top; the step does not."""
    claim = await running(store)
    assert await store.step(claim, "charge#1", '{"id":7}') == ("RECORDED", '{"id":7}')
    await store.release(claim)
    again = await claimed(store, claim.task_id, run=2)
    assert again.journal.steps == {"charge#1": {"id": 7}}


@covers("N5")
async def test_the_first_result_of_a_step_stands(store: TaskStore, peek: Peek) -> None:
    """Two branches of one run may do the same step; a repeated round trip may, too."""
    claim = await running(store)
    await store.step(claim, "charge#1", "1")
    before = peek.stored(claim.task_id)
    assert await store.step(claim, "charge#1", "2") == ("KNOWN", "1")
    assert peek.stored(claim.task_id) == before


async def test_steps_answers_and_questions_of_one_name_are_three_things(store: TaskStore) -> None:
    """They share one hash."""
    claim = await parked(store, "x", hold=True)
    await store.answer(claim.task_id, ANN, {"x": "answer"})
    await store.step(claim, "x", '"step"')
    journal = await store.journal(claim.task_id)
    assert (journal.answers, journal.steps) == ({"x": "answer"}, {"x": "step"})


async def test_a_step_may_have_any_name(store: TaskStore) -> None:
    """Names come from tools; half an emoji is one, too."""
    claim = await running(store)
    names = ["", "a b", "q:x", "\n", "naïve", "\ud83d"]
    for name in names:
        assert (await store.step(claim, name, "1"))[0] == "RECORDED"
    assert (await store.journal(claim.task_id)).steps == dict.fromkeys(names, 1)


@covers("P35")
async def test_a_step_is_invisible_to_the_client(store: TaskStore, peek: Peek) -> None:
    """lastUpdatedAt stays."""
    claim = await running(store)
    peek.age(claim.task_id)
    await store.step(claim, "charge#1", "1")
    assert not peek.updated(claim.task_id)
