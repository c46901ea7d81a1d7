"""A task's timeline: what happened to it, in order, from its creation to its end.

Most of it is stored beside the task by the very scripts that do what it tells of. What the record says by itself
(creation, the one run of a task to which nothing else happened, the end) is not stored twice: `timeline_of` puts both
together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self, cast

from mcptasks.actors import read_actor
from mcptasks.model import Record
from mcptasks.times import iso, moment

#: What a tool says, and how much of it found no room: written in the order in which it was said.
_SAID: Final = ("log", "note", "omitted")


class Noted(Protocol):
    """One stored entry."""

    @property
    def at_ms(self) -> int: ...
    @property
    def what(self) -> str: ...
    @property
    def words(self) -> tuple[str, ...]: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that happened. `str(entry)` is a line for people."""

    #: Unix milliseconds by the store's clock.
    at_ms: int
    #: The word for it, most often that of a transition: create, claim, ask, answer, park, sleep, progress, log, note,
    #: step, retry, defer, release, lost, cancel, extend, artifact, end, retried; `omitted` is what found no room.
    what: str
    #: What goes with the word (docs/timeline.md); plain JSON, moments in ISO 8601.
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        told = ", ".join(f"{name} {_short(value)}" for name, value in self.about.items())
        return f"{iso(self.at_ms)} {self.what}{': ' if told else ''}{told}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to a task: at most 256 entries, oldest first. The first eight and the newest are always among them.

    Where there were more, one entry (`omitted`) stands for those in between.
    """

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def omitted(self) -> int:
        """How many entries there was no room for."""
        return sum(entry.about["count"] for entry in self.entries if entry.what == "omitted")

    def told(self) -> dict[str, Any]:
        """As it stands on the wire."""
        entries = [{"at": iso(entry.at_ms), "what": entry.what, **entry.about} for entry in self.entries]
        return {"entries": entries, "omitted": self.omitted}

    def for_owner(self) -> Timeline:
        """The same without the names of workers (hosts and processes) and of operators: those are their business."""
        shown = (replace(entry, about=_without(entry.about, "worker", "operator")) for entry in self.entries)
        return Timeline(tuple(shown))

    @classmethod
    def read(cls, told: Any) -> Self:
        """What a server told.

        Raises:
            ValueError: it is no timeline.
        """
        try:
            return cls(tuple(_entry(dict(entry)) for entry in cast("Mapping[str, Any]", told)["entries"]))
        except (KeyError, TypeError):
            raise ValueError("this is no timeline") from None


def timeline_of(record: Record, noted: Sequence[Noted], labels: Mapping[str, str]) -> Timeline:
    """The timeline of these. `labels`: wire key of a question -> its first words."""
    version = {"version": record.version} if record.version else {}
    entries = [Entry(at_ms=record.created_ms, what="create", about={"tool": record.tool, **version})]
    if not noted and record.started_ms is not None:
        ran = _claim((str(record.token), str(record.attempt)), record.ran_on or "", {})
        entries.append(Entry(at_ms=record.started_ms, what="claim", about=ran))
    for at_ms, one in zip(_moments(noted), noted, strict=True):
        entries.append(Entry(at_ms=at_ms, what=one.what, about=_about(one, labels)))
    if record.status.terminal:
        message = {"message": record.status_message} if record.status_message else {}
        end = {"status": str(record.status), "reason": str(record.reason), **message}
        entries.append(Entry(at_ms=record.updated_ms, what="end", about=end))
    # What a tool says is written a little later than it was said.
    return Timeline(tuple(sorted(entries, key=lambda entry: entry.at_ms)))


def _moments(noted: Sequence[Noted]) -> list[int]:
    """When each of them happened. What a tool says keeps its order.

    Its moment is too late by as long as its write was under way, so it was said no later than what was said after it.
    """
    moments, next_said = list[int](), sys.maxsize
    for one in reversed(noted):
        said = one.what in _SAID
        moments.append(min(one.at_ms, next_said) if said else one.at_ms)
        next_said = moments[-1] if said else next_said
    return moments[::-1]


# ------------------------------------------------------------------------------------------------ what goes with a word


def _about(one: Noted, labels: Mapping[str, str]) -> dict[str, Any]:
    read = _ABOUT.get(one.what)
    # A newer mcptasks has a word that this one does not know.
    return {} if read is None else read(one.words, one.text, labels)


Words = tuple[str, ...]
Labels = Mapping[str, str]


def _claim(words: Words, text: str, _: Labels) -> dict[str, Any]:
    return {"run": int(words[0]), "attempt": int(words[1]), **({"worker": text} if text else {})}


def _ask(words: Words, _: str, labels: Labels) -> dict[str, Any]:
    asked = (word.partition("=")[::2] for word in words)
    found = ({"key": key, "method": method, "label": labels.get(key)} for method, key in asked)
    return {"questions": [{name: text for name, text in one.items() if text} for one in found]}


def _progress(words: Words, text: str, _: Labels) -> dict[str, Any]:
    reports, until, first, last, total = words
    whole = {} if total == "-" else {"total": float(total)}
    numbers = {"first": float(first), "last": float(last), **whole}
    return {"reports": int(reports), "until": iso(int(until)), **numbers, **({"message": text} if text else {})}


def _put_off(words: Words, text: str, _: Labels) -> dict[str, Any]:
    return {"number": int(words[0]), "delayMs": int(words[1]), "message": text}


def _by(word: str = "", *_: str) -> dict[str, str]:
    """Who did it: "by", and the "operator" where one is named."""
    who, name = read_actor(word)
    return {**({"by": who} if who else {}), **({"operator": name} if name else {})}


_ABOUT: Final[Mapping[str, Callable[[Words, str, Labels], dict[str, Any]]]] = {
    "claim": _claim,
    "ask": _ask,
    "answer": lambda words, text, _: {**_by(words[0]), "keys": list(words[1:])},
    "sleep": lambda words, text, _: {"until": iso(int(words[0]))},
    "progress": _progress,
    "log": lambda words, text, _: json.loads(text),
    "note": lambda words, text, _: json.loads(text),
    "step": lambda words, text, _: {"name": text},
    "retry": _put_off,
    "defer": _put_off,
    "lost": lambda words, text, _: {"run": int(words[0]), **({"worker": words[1]} if words[1:] else {})},
    "cancel": lambda words, text, _: {**_by(words[0]), **({"why": text} if text else {})},
    "extend": lambda words, text, _: {**_by(words[0]), "until": iso(int(words[1]))},
    "artifact": lambda words, text, _: {"name": text, "size": int(words[0])},
    "retried": lambda words, text, _: {words[0]: words[1], **_by(*words[2:])},
    "omitted": lambda words, text, _: {"count": int(words[0])},
}


def _without(about: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key not in names}


def _short(value: Any) -> str:
    # What a tool said may hold anything, also what would move a terminal's cursor.
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def _entry(told: dict[str, Any]) -> Entry:
    at, what = told.pop("at"), told.pop("what")
    when = moment(at)
    if when is None or not isinstance(what, str) or (what == "omitted" and type(told.get("count")) is not int):
        raise ValueError("this is no entry of a timeline")
    return Entry(at_ms=round(when.timestamp() * 1000), what=what, about=told)
