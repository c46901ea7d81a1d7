"""Creations that race for one key, one free place or a closing door: what is exact about them is a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mcptasks.model import Submission, new_task_id
from mcptasks.policy import Policy
from mcptasks.store.callers import Created
from mcptasks.store.store import TaskStore
from tests.chaos.stress_writers import Order
from tests.support.life import Answer
from tests.support.moves import TOOL

#: Places that a caller has where places are raced for.
PLACES: Final = 2


@dataclass(frozen=True)
class Create:
    """A call. Answers (word, the task it names) or ("REFUSED", what)."""

    owner: str
    key: str | None = None
    digest: str = "d"

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        call = Submission(tool=TOOL, arguments={}, protocol_version="2026-07-28")
        answer = await store.create(
            task_id, call, owner=self.owner, policy=Policy(), idempotency_key=self.key, arguments_digest=self.digest
        )
        return (answer.outcome, answer.task_id) if isinstance(answer, Created) else ("REFUSED", answer.what)


@dataclass(frozen=True)
class End:
    """The operator ends a waiting task."""

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return (await store.cancel(task_id, None, "Room, please"),)


@dataclass(frozen=True)
class Close:
    """The operator closes the door, and then looks at who is inside."""

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        await store.close_admission("Closing")
        return "CLOSED", tuple(await store.active())


@dataclass(frozen=True)
class Scramble:
    """One race of its kind: who does what, on which settings."""

    name: str
    #: Of each writer.
    orders: tuple[Order, ...]
    #: Done before, by one.
    before: tuple[Order, ...] = ()

    @property
    def changed(self) -> dict[str, Any]:
        """The settings of the store to look at afterwards."""
        return dict(self.orders[0].changed or {})


def one_key(writers: int) -> Scramble:
    """All use one idempotency key; every other one with other arguments."""
    owner, key = new_task_id(), new_task_id()
    deeds = [Create(owner, key, "d" if n % 2 == 0 else "other") for n in range(writers)]
    return Scramble("one key", tuple(Order(new_task_id(), deed) for deed in deeds))


def two_places(writers: int) -> Scramble:
    """One caller has room for two more tasks."""
    owner, changed = new_task_id(), {"owner_max": PLACES}
    return Scramble("two places", tuple(Order(new_task_id(), Create(owner), changed) for _ in range(writers)))


def one_place_made(writers: int) -> Scramble:
    """One caller has no room, while one of the two tasks that take it ends."""
    owner, changed = new_task_id(), {"owner_max": PLACES}
    before = tuple(Order(new_task_id(), Create(owner), changed) for _ in range(PLACES))
    ends = Order(before[0].task_id, End(), changed)
    creates = tuple(Order(new_task_id(), Create(owner), changed) for _ in range(writers - 1))
    return Scramble("a place made", (*creates, ends), before)


def closing_door(writers: int) -> Scramble:
    """The door closes while calls come in. On a prefix of its own: there is one door a fleet."""
    changed = {"prefix": f"door:{new_task_id()}:"}
    creates = tuple(Order(new_task_id(), Create("anybody"), changed) for _ in range(writers - 1))
    return Scramble("closing door", (*creates, Order("", Close(), changed)))


SCRAMBLES: Final = (one_key, two_places, one_place_made, closing_door)


async def judge(scramble: Scramble, answers: Sequence[Answer], store: TaskStore) -> list[str]:
    """What is wrong with these answers, or with what is stored after them."""
    words = Counter(str(answer[0]) for answer in answers)
    made = {str(answer[1]) for answer in answers if answer[0] == "CREATED"}
    found = _RULES[scramble.name](answers, words, made)
    for order in scramble.orders:
        made_it = order.task_id in made
        if isinstance(order.deed, Create) and (await store.read(order.task_id, None) is not None) != made_it:
            found.append(
                "a call was answered with a task that is not there" if made_it else "a refused call left a task"
            )
    return found


def _one_key(answers: Sequence[Answer], words: Counter[str], made: set[str]) -> list[str]:
    halves = (len(answers) + 1) // 2, len(answers) // 2
    wanted = [Counter(CREATED=1, EXISTS=winners - 1, CONFLICT=losers) for winners, losers in (halves, reversed(halves))]
    named = {str(answer[1]) for answer in answers}
    return [] if words in wanted and named == made else [f"one key came to {dict(words)}, naming {len(named)} tasks"]


def _two_places(answers: Sequence[Answer], words: Counter[str], made: set[str]) -> list[str]:
    wanted = Counter(CREATED=PLACES, REFUSED=len(answers) - PLACES)
    return [] if words == wanted else [f"{PLACES} places came to {dict(words)}"]


def _one_place_made(answers: Sequence[Answer], words: Counter[str], made: set[str]) -> list[str]:
    return [] if words["CREATED"] <= 1 and words["CANCELLED"] == 1 else [f"one place came to {dict(words)}"]


def _closing_door(answers: Sequence[Answer], words: Counter[str], made: set[str]) -> list[str]:
    inside = set[str](next(answer[1] for answer in answers if answer[0] == "CLOSED"))
    refused_wrongly = {answer for answer in answers if answer[0] == "REFUSED" and answer[1] != "closed"}
    if inside == made and not refused_wrongly:
        return []
    return [f"{len(inside)} were inside when the door was closed, {len(made)} were let in: {dict(words)}"]


_RULES: Final = MappingProxyType[str, Callable[[Sequence[Answer], Counter[str], set[str]], list[str]]](
    {"one key": _one_key, "two places": _two_places, "a place made": _one_place_made, "closing door": _closing_door}
)
