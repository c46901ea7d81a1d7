"""One pass of a tool over its journal: which durable call is this, what did an earlier run record, is it the same tool.

A call-style question's key is `{kind}-{digest}-{n}`: the digest of what is asked, and how often its lane asked just
that (`{kind}-{digest}-{lane}-{n}` outside the tool's body). It does not depend on the order in which concurrent
branches ask, so a shuffled replay binds the same answers. A question that a tool returns (resolver, guard) is
`r{round}-{digest}-{n}`: tools reuse their keys, the wire may not (SEP-2663: a key is unique over the task's lifetime).

A lane does the same things in the same order in every run. So a call that is new, while something that the lane had
recorded by then has not come again, stands in another one's place: the tool is not the one that made the record. (What
was recorded later may still come: a step whose error was not recorded leaves a gap, and is done again there.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcptasks.errors import ReplayMismatch
from mcptasks.model import Guard, Journal, Place, Question
from mcptasks.runtime.lanes import Lane
from mcptasks.strict_json import clean

#: What is to be done about a tool that is not the one that made the record.
SAME_AGAIN: Final = (
    "A durable tool must do the same things in the same order whenever it runs from the top. Was it changed while its "
    "task waited, or does it act on something that no step recorded?"
)
_LABEL_CHARS: Final = 60
#: How many of the calls that did not come again an error names.
_NAMED: Final = 3


def digest(method: str, params: Mapping[str, Any]) -> str:
    """What is asked, in twelve hex digits.

    Request metadata (progress tokens and the like) does not count, nor the id of a URL-mode elicitation: tools make a
    new one in each run, and where to go is in the URL.
    """
    asked = {k: v for k, v in params.items() if k not in ("_meta", "elicitationId")}
    canonical = json.dumps([method, asked], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Call:
    """A durable call that this pass has come to."""

    name: str
    #: To be recorded with it.
    place: Place


@dataclass(frozen=True, slots=True)
class _Record:
    label: str
    lane: str
    place: Place


class Replay:
    """The state of one pass."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._round = journal.guard.round if journal.guard else 0
        self._records = dict(_records(journal))
        # A guard tool takes another way in each round: what an earlier round did need not come again.
        self._ahead = {one for one, record in self._records.items() if record.place.round == self._round}
        self._notes: dict[str, str] = {}

    @property
    def replaying(self) -> bool:
        """Something recorded has not come again yet: what the tool says meanwhile was said before."""
        return bool(self._ahead)

    @property
    def missing(self) -> str:
        """What an earlier run recorded and this pass has not come to, for people; "" when there is nothing."""
        return self._named(self._ahead)

    def question(self, lane: Lane, method: str, params: Mapping[str, Any]) -> Question:
        """The question with its key. Synchronous, so that keys follow the order of calls.

        Raises:
            ReplayMismatch: an earlier run did something else at this point.
        """
        what = digest(method, params)
        number = lane.use(f"ask {what}")
        parts = [method.split("/")[0], what, *([lane.path] if lane.path else []), str(number)]
        key, label = "-".join(parts), question_label(method, params)
        place = self._come("k", key, lane, label)
        self._notes[key] = f"{what} {place} {label}"
        return Question(key=key, method=method, params=params)

    def step(self, lane: Lane, key: str) -> Call:
        """This pass's next step with that key.

        Raises:
            ReplayMismatch: an earlier run did something else at this point.
        """
        name = _name(lane, key, lane.use(f"step {key}"))
        place = self._come("s", name, lane, _step_label(name))
        if name in self.journal.steps:
            # What happened inside a step that is done does not happen again.
            below = lane.inside(name)
            self._ahead = {one for one in self._ahead if not _within(self._records[one].lane, below)}
        return Call(name, place)

    def timer(self, lane: Lane) -> Call:
        """This pass's next sleep.

        Raises:
            ReplayMismatch: an earlier run did something else at this point.
        """
        name = _name(lane, "sleep", lane.use("sleep"))
        return Call(name, self._come("t", name, lane, _timer_label(name)))

    def due_ms(self, timer: Call) -> int | None:
        """When the timer is due by the record; None: it has none."""
        recorded = self.journal.timers.get(timer.name)
        return None if recorded is None else int(recorded.split(" ")[0])

    def note(self, question: Question) -> str:
        """What is stored with the question: digest, place, and a few words of it."""
        if question.key in self._notes:
            return self._notes[question.key]
        # A question that the tool returned has no place.
        return f"{digest(question.method, question.params)}  {question_label(question.method, question.params)}"

    def take(self, key: str) -> Any | None:
        """The recorded answer, or None."""
        return self.journal.answers.get(key)

    def extend(self, journal: Journal) -> None:
        """Answers that arrived while the tool was held are known from now on."""
        self.journal = journal

    def next_round(self, request_state: str | None, asked: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Guard:
        """The guard state after the tool returned these questions (its own key -> method, params)."""
        number = self.journal.guard.round + 1 if self.journal.guard else 1
        keys = {
            own: f"r{number}-{digest(method, params)}-{n}" for n, (own, (method, params)) in enumerate(asked.items(), 1)
        }
        return Guard(round=number, request_state=request_state, keys=keys)

    # -------------------------------------------------------------------------------------------- inside

    def _come(self, kind: str, name: str, lane: Lane, label: str) -> Place:
        one, nth = f"{kind}:{name}", lane.place()
        if one in self._records:
            self._ahead.discard(one)
        elif nth is not None and (instead := self._of(lane, nth)):
            had = self._named(instead)
            alike = " (they differ in the rest of the text, the form or the URL)" if had == label else ""
            raise ReplayMismatch(f"the tool came to {label} where an earlier run of it had {had}{alike}. {SAME_AGAIN}")
        return Place(self._round, nth)

    def _of(self, lane: Lane, nth: int) -> set[str]:
        """What the lane had recorded by its `nth` call, and has not come to again."""
        ahead = ((one, self._records[one]) for one in self._ahead)
        return {one for one, it in ahead if it.lane == lane.path and it.place.nth is not None and it.place.nth <= nth}

    def _named(self, which: set[str]) -> str:
        records = sorted((self._records[one] for one in which), key=lambda record: (record.lane, record.place.nth or 0))
        more = f" and {len(records) - _NAMED} more" if len(records) > _NAMED else ""
        return ", ".join(record.label for record in records[:_NAMED]) + more


def _records(journal: Journal) -> Iterator[tuple[str, _Record]]:
    for key, note in journal.asked.items():
        _, place, label = (*note.split(" ", 2), "", "")[:3]
        if place:  # a question that the tool returned has none
            parts = key.split("-")
            yield f"k:{key}", _Record(label, parts[2] if len(parts) == 4 else "", Place.parse(place))
    for name, step in journal.steps.items():
        yield f"s:{name}", _Record(_step_label(name), _lane_of(name), Place.parse(step["at"]))
    for name, timer in journal.timers.items():
        yield f"t:{name}", _Record(_timer_label(name), _lane_of(name), Place.parse(timer.split(" ")[1]))


def question_label(method: str, params: Mapping[str, Any]) -> str:
    """The question in a few words, for people."""
    text = params.get("message")
    if not isinstance(text, str):
        return f"a {method} request"
    short = clean(text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…")
    return f"the question {short!r}"


def _name(lane: Lane, key: str, number: int) -> str:
    """`key#n`, behind its lane between two `@`; so a key that begins with `@` needs the lane's name, even if empty."""
    where = f"@{lane.path}@" if lane.path or key.startswith("@") else ""
    return f"{where}{key}#{number}"


def _lane_of(name: str) -> str:
    return name[1 : name.index("@", 1)] if name.startswith("@") else ""


def _step_label(name: str) -> str:
    key, _, number = name.rpartition("#")
    key = key[key.index("@", 1) + 1 :] if key.startswith("@") else key
    return f"step {clean(key)!r}" + (f" (use {number})" if number != "1" else "")


def _timer_label(name: str) -> str:
    return f"sleep {name.rpartition('#')[2]}"


def _within(path: str, below: str) -> bool:
    return path == below or path.startswith(f"{below}.")
