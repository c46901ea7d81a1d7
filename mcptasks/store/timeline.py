"""What happened to a task: progress and note add to it what the tool says, every other transition what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast

from mcptasks.model import Claim, Record
from mcptasks.store.base import Transitions
from mcptasks.store.records import read_note, read_record
from mcptasks.strict_json import clean

#: How many plain words go with each word of an entry whose rest is a text, which may be sealed.
_WORDS: Final = {
    "claim": 2,
    "step": 0,
    "progress": 5,
    "log": 0,
    "note": 0,
    "retry": 2,
    "defer": 2,
    "cancel": 1,
    "artifact": 1,
}


class Remark(NamedTuple):
    """Something that the tool said, so long ago. `text` is JSON; of `omitted` it is how many there was no room for."""

    age_ms: int
    word: Literal["log", "note", "omitted"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """One stored entry: a word (most often a transition's), and what goes with it."""

    at_ms: int
    what: str
    words: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """All that a task's timeline is made of."""

    record: Record
    #: In the order in which they were written.
    noted: list[Noted]
    #: Wire key of each question in them -> its first words; empty where nobody kept them.
    labels: dict[str, str]


class TimelineTransitions(Transitions):
    """What a run says beside its work, and what is read of it."""

    async def progress(
        self,
        claim: Claim,
        message: str,
        progress: float,
        total: float | None,
        rate: float | None = None,
        *,
        reports: int = 1,
        remarks: Sequence[Remark] = (),
    ) -> str:
        """The client sees this: SAVED | SAME | STALE | TERMINAL | GONE.

        `rate`: of `progress` per second, for as long as this run works on the task; None: not known. `reports`: of how
        many of the tool this is the last; `remarks`: what it said meanwhile, as of `note`.
        """
        args = {
            "token": claim.token,
            "message": self.seal.seal_again(claim.task_id, "msg", clean(message)),
            "progress": progress,
            "total": total,
            "rate": None if rate is None else f"{rate:.4g}",
            "noted": self.noted(claim.task_id, message),
            "reports": reports,
            "said": self._remarks(claim.task_id, remarks),
        }
        return (await self.run_script("progress", self.own(claim.task_id, "task"), args))[0]

    async def note(self, claim: Claim, remarks: Sequence[Remark]) -> str:
        """What the tool said beside its work stands in the timeline: NOTED | STALE | TERMINAL | GONE."""
        args = {"token": claim.token, "said": self._remarks(claim.task_id, remarks)}
        return (await self.run_script("note", self.own(claim.task_id, "task"), args))[0]

    async def told(self, task_id: str, owner: str | None) -> Told | None:
        """What happened to the task; None where `read` would find none. Writes nothing.

        Raises:
            SchemaTooNew: a newer mcptasks wrote it.
            Sealed: something of it is sealed with a key that is not here.
        """
        async with self.connection.turn() as client, client.pipeline(transaction=True) as pipe:
            pipe.hgetall(self.keys.task(task_id))
            pipe.lrange(self.keys.timeline(task_id), 0, -1)
            fields, stored = cast("tuple[dict[str, str], list[str]]", await pipe.execute())
        if not fields or (owner is not None and fields["owner"] != owner):
            return None
        record, noted = read_record(fields, self.seal), [self._noted(task_id, entry) for entry in stored]
        keys = [word.partition("=")[2] for entry in noted if entry.what == "ask" for word in entry.words]
        return Told(record=record, noted=noted, labels=await self._labels(task_id, keys) if keys else {})

    async def _labels(self, task_id: str, keys: Sequence[str]) -> dict[str, str]:
        names = [f"k:{key}" for key in keys]
        async with self.connection.turn() as client:
            notes = cast("list[str | None]", await client.hmget(self.keys.journal(task_id), names))
        opened = (read_note(task_id, name, note or "", self.seal) for name, note in zip(names, notes, strict=True))
        # Digest, place, and what is to be shown.
        return {key: (*note.split(" ", 2), "", "")[2] for key, note in zip(keys, opened, strict=True)}

    def _noted(self, task_id: str, entry: str) -> Noted:
        at_ms, what, rest = (*entry.split(" ", 2), "")[:3]
        if (count := _WORDS.get(what)) is None:
            return Noted(at_ms=int(at_ms), what=what, words=tuple(rest.split()))
        *words, text = rest.split(" ", count)
        return Noted(at_ms=int(at_ms), what=what, words=tuple(words), text=self.seal.open(task_id, "timeline", text))

    def _remarks(self, task_id: str, remarks: Sequence[Remark]) -> list[str]:
        return [part for one in remarks for part in (str(one.age_ms), one.word, self._text(task_id, one))]

    def _text(self, task_id: str, one: Remark) -> str:
        return one.text if one.word == "omitted" else self.seal.seal(task_id, "timeline", one.text)
