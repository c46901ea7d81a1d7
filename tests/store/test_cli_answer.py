"""answer: an operator gives a task what it waits for, by options or in the terminal's form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from mcptasks.model import Claim, Question, Status
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.command import Commands, environment
from tests.support.tasks import asking, parked, question, queued, read, running
from tests.support.terminal import terminal

pytestmark = pytest.mark.anyio

FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["approve", "count"],
    "properties": {
        "approve": {"type": "boolean", "title": "Approve?"},
        "count": {"type": "integer", "minimum": 1},
        "size": {"type": "string", "enum": ["small", "large"]},
    },
}


def form(key: str = "q", text: str = "Buy the shop?") -> Question:
    """A question with three fields."""
    return replace(question(key, text), params={"mode": "form", "message": text, "requestedSchema": FORM})


async def asked(store: TaskStore, *questions: Question) -> Claim:
    """A task that waits for these answers."""
    claim = await running(store)
    assert (await store.ask(claim, asking(*questions), guard=None, hold=False)).outcome == "PARKED"
    return claim


async def answers(store: TaskStore, claim: Claim) -> dict[str, Any]:
    """What is stored."""
    return (await store.journal(claim.task_id)).answers


@covers("P41", "P42")
async def test_fields_are_given_as_words_and_stored_as_the_schema_wants_them(
    store: TaskStore, commands: Commands
) -> None:
    """P42: what does not fit is refused, and nothing is stored."""
    claim = await asked(store, form())
    for pairs, said in (
        (["approve=perhaps"], "yes or no"),
        (["count=0"], "minimum"),
        (["size=huge"], "one of small, large"),
        (["colour=red"], "its fields are approve, count, size"),
        (["approve"], "its fields are"),
    ):
        words = [word for pair in pairs for word in ("--accept", pair)]
        wrong = await commands.run("answer", claim.task_id[:8], *words)
        assert (wrong.code, said in wrong.said) == (2, True), wrong.err
    part = await commands.run("answer", claim.task_id[:8], "--accept", "approve=yes")
    assert (part.code, "Nothing" in part.err or "refused" in part.err) == (1, True)
    assert await answers(store, claim) == {}
    done = await commands.run("answer", claim.task_id[:8], "--accept", "approve=yes", "--accept", "count=3")
    assert (done.code, done.out) == (0, f"answered; task {claim.task_id[:10]} moves on\n")
    assert await answers(store, claim) == {"q": {"action": "accept", "content": {"approve": True, "count": 3}}}
    assert (await read(store, claim.task_id)).status is Status.QUEUED


@pytest.mark.parametrize(
    ("words", "stdin", "stored"),
    [
        (["--decline"], "", {"action": "decline"}),
        (["--cancel"], "", {"action": "cancel"}),
        (["--json", '{"action": "decline"}'], "", {"action": "decline"}),
        (
            ["--json", "-"],
            '{"action": "accept", "content": {"approve": false, "count": 1}}',
            {"action": "accept", "content": {"approve": False, "count": 1}},
        ),
    ],
    ids=["decline", "cancel", "json", "json read"],
)
async def test_whole_answers_and_refusals(
    store: TaskStore, commands: Commands, words: list[str], stdin: str, stored: dict[str, Any]
) -> None:
    """As a client would send them."""
    claim = await asked(store, form())
    assert (await commands.run("answer", claim.task_id, *words, stdin=stdin)).code == 0
    assert await answers(store, claim) == {"q": stored}


@covers("P41")
async def test_of_several_questions_one_is_named(store: TaskStore, commands: Commands) -> None:
    """P41: the others stay open."""
    claim = await parked(store, "first", "second")
    several = await commands.run("answer", claim.task_id, "--decline")
    assert (several.code, "first, second" in several.said) == (2, True)
    strange = await commands.run("answer", claim.task_id, "third", "--decline")
    assert (strange.code, "no open question of the task; open are first, second" in strange.said) == (1, True)
    one = await commands.run("answer", claim.task_id, "first", "--decline")
    assert (one.code, "has other open questions" in one.out) == (0, True)
    last = await commands.run("answer", claim.task_id, "--cancel")
    assert (last.code, "moves on" in last.out) == (0, True)
    assert await answers(store, claim) == {"first": {"action": "decline"}, "second": {"action": "cancel"}}


async def test_what_asks_nothing_cannot_be_answered_and_nobody_is_no_person(
    store: TaskStore, commands: Commands
) -> None:
    """A clear error, nothing stored."""
    silent = await commands.run("answer", await queued(store), "--decline")
    assert (silent.code, "asks nothing: it is queued" in silent.said) == (1, True)
    claim = await asked(store, form())
    mute = await commands.run("answer", claim.task_id)
    assert (mute.code, "no terminal to ask in" in mute.said) == (2, True)
    for text in ("{", "[" * 100_000):
        nonsense = await commands.run("answer", claim.task_id, "--json", text)
        assert (nonsense.code, "--json is no JSON" in nonsense.said) == (2, True)
    assert await answers(store, claim) == {}


# ------------------------------------------------------------------------------------------------ in a terminal


@covers("P42")
async def test_a_person_fills_in_the_form_in_a_terminal(store: TaskStore, settings: Settings) -> None:
    """With a mistake on the way, a choice by its number, and a second thought before it is sent."""
    claim = await asked(store, form(text="Buy the \x1b[31mshop?"))
    with terminal("answer", claim.task_id[:8], env=environment(settings)) as screen:
        shown = screen.await_text("cancel?")
        assert "Buy the  [31mshop?" in shown
        screen.type("accept")
        screen.await_text("Approve?")
        screen.type("perhaps")
        screen.await_text("yes or no\n")
        screen.type("y")
        screen.await_text("count  (whole number)")
        screen.type("0")
        screen.await_text("minimum")
        screen.type("3")
        screen.await_text("2  large")
        screen.type("2")
        screen.await_text("again?")
        screen.type("s")
        assert screen.end() == 0
        assert "moves on" in screen.screen()
    expected = {"action": "accept", "content": {"approve": True, "count": 3, "size": "large"}}
    assert await answers(store, claim) == {"q": expected}


async def test_ctrl_c_in_the_form_answers_nothing(store: TaskStore, settings: Settings) -> None:
    """Exit code 1, one line, no stack trace."""
    claim = await asked(store, form())
    with terminal("answer", claim.task_id, env=environment(settings)) as screen:
        screen.await_text("cancel?")
        screen.type("a")
        screen.await_text("Approve?")
        screen.interrupt()
        assert screen.end() == 1
        shown = screen.screen()
    assert "nothing was answered" in shown and "Traceback" not in shown
    assert await answers(store, claim) == {}
