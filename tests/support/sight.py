"""Looks at everything the store holds of one task, and says where that is not what its `Life` expects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcptasks.store.records import with_payload
from mcptasks.store.seal import Seal, is_sealed
from mcptasks.store.store import TaskStore
from tests.support.life import EXPIRED, GIVEN_UP, LISTS, TIMED_OUT, TOO_LATE, WENT_DOWN, Life, Window
from tests.support.moves import PLACE
from tests.support.tasks import asking, question

#: Every index of what is to be done, and those of what there is but its owner's and its tool's.
WORK: Final = ("unsent", "leases", "expiry", "countdowns")
PLACES: Final = (*WORK, "artifacts", *LISTS)

#: Fields that say nothing of what happened: fixed at creation, or moments that are compared by themselves.
_FIXED: Final = frozenset(
    {"v", "id", "tool", "owner", "created", "ttl", "expires", "gone", "poll", "poll_parked", "queue", "max_attempts"}
    | {"hard_limit", "retry", "updated", "rev", "started", "deadline", "due", "wake", "version", "progressed"}
)

_MOMENTS: Final = ("deadline", "due", "wake")

#: What people and tools said, besides questions, answers and steps.
_SAID: Final = frozenset({"msg", "why", "result", "error", "mrtr"})

_FIXED_TEXTS: Final = (EXPIRED, TIMED_OUT, *(GIVEN_UP.format(n) for n in (1, 2)), "Nobody", WENT_DOWN)
#: What mcptasks itself says, and so nobody else: never sealed.
_OURS: Final = frozenset(
    {*_FIXED_TEXTS, *(f'{{"code":-32603,"message":"{text}"}}' for text in _FIXED_TEXTS), "Waits", "Cancelled"}
    | {"Cancelled; its worker was lost", '{"action":"cancel"}'}
)


@dataclass(frozen=True)
class Sight:
    """What one look found."""

    #: By the store's clock, after everything else was read.
    at: int
    task: dict[str, str]
    journal: dict[str, str]
    #: Artifact's name -> digest, size, file.
    files: dict[str, tuple[str, int, str]]
    #: Without the moments.
    timeline: list[str]
    #: Index -> score.
    places: dict[str, float]
    #: PEXPIRETIME of every key there is.
    expires: frozenset[int]


async def look(store: TaskStore, task_id: str) -> Sight:
    """One round trip, one moment."""
    client: Any = store.connection.client
    keys = store.keys
    names = (keys.task, keys.journal, keys.result, keys.artifacts_of, keys.timeline, keys.call)
    own = [key(task_id) for key in names]
    async with client.pipeline(transaction=True) as pipe:
        pipe.hgetall(own[0]).hgetall(own[1]).get(own[2]).hgetall(own[3]).lrange(own[4], 0, -1)
        for index in PLACES:
            pipe.zscore(f"{keys.tasks}{index}" if index in LISTS[:-1] else getattr(keys, index), task_id)
        for key in own:
            pipe.pexpiretime(key)
        pipe.time()
        fields, journal, payload, files, timeline, *rest, (seconds, micros) = await pipe.execute()
    scores, expires = rest[: len(PLACES)], rest[len(PLACES) :]
    places = {index: score for index, score in zip(PLACES, scores, strict=True) if score is not None}
    at = int(seconds) * 1000 + int(micros) // 1000
    task, journal = opened(store.seal, task_id, with_payload(fields, payload)), opened(store.seal, task_id, journal)
    if "artifacts" in task:
        assert task["artifacts"] == keys.artifacts
        task["artifacts"] = "1"
    found = dict(_file(store.seal, task_id, name, entry) for name, entry in files.items())
    told = [_entry(store.seal, task_id, entry) for entry in timeline]
    return Sight(at, task, journal, found, told, places, frozenset(int(moment) for moment in expires if moment != -2))


def _file(seal: Seal, task_id: str, name: str, entry: str) -> tuple[str, tuple[str, int, str]]:
    digest, size, file, said = entry.split(" ", 3)
    assert is_sealed(said) == seal.on
    told = json.loads(seal.open(task_id, f"artifact:{name}", said))
    assert (name, digest) == (seal.digests(told["name"])[0], seal.digests(told["sha256"])[0])
    return told["name"], (told["sha256"], int(size), file)


#: How many words go before the text of an entry, which nobody but its task's own may read.
_BEFORE: Final = {"progress": 5, "step": 0, "note": 0, "artifact": 1, "retry": 2, "defer": 2, "cancel": 1}


def _entry(seal: Seal, task_id: str, entry: str) -> str:
    _, what, *rest = entry.split(" ")
    if what == "answer":
        return " ".join([what, rest[0], *sorted(rest[1:])])
    if what == "sleep":
        return what
    if what in _BEFORE:
        *words, text = entry.split(" ", _BEFORE[what] + 2)[2:]
        assert is_sealed(text) == (seal.on and text not in _OURS), entry
        # Until when the progress went.
        rest = [*(words[:1] + words[2:] if what == "progress" else words), seal.open(task_id, "timeline", text)]
    return " ".join([what, *rest])


def opened(seal: Seal, task_id: str, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields as they would stand there in plain text; all that may be sealed must be."""

    def one(name: str, text: str) -> str:
        match name[:2]:
            case "d:":
                head, _, message = text.partition("\n")
                *what, error = head.split(" ", 2)
                return text if not message else f"{' '.join(what)} {read('error', error)}\n{read('msg', message)}"
            case "q:" | "a:" | "s:":
                return read(name, text)
            case _:
                return read("msg" if name == "why" else name, text) if name in _SAID else text

    def read(name: str, text: str) -> str:
        assert is_sealed(text) == (seal.on and text not in _OURS), f"{name} is {text!r}"
        return seal.open(task_id, name, text)

    return {name: one(name, text) for name, text in fields.items()}


def sight_of(life: Life, at: int = 0) -> Sight:
    """What an honest store shows of the task."""
    fields = {
        name: json.dumps({"params": {"message": text}}) if name.startswith("q:") else text
        for name, text in _record(life).items()
    }
    moments = {name: str(int(moment[0])) for name in _MOMENTS if (moment := getattr(life, name))}
    places = {index: window[0] for index, window in life.places.items()}
    timers = {f"t:{name}": f"{int(window[0])} {PLACE}" for name, window in life.timers.items()}
    whats = _outcomes(life)
    limits = {f"d:{key}": f"{int(window[0])} {whats[key]}" for key, (window, _) in life.limits.items()}
    return Sight(
        at,
        fields | moments | limits,
        _journal(life) | timers,
        life.files,
        list(life.timeline),
        places,
        frozenset({int((life.dies or (-1, -1))[0])}),
    )


def differences(life: Life, sight: Sight) -> list[str]:
    """Everything that is not as it must be, for people to read; empty: all is well."""
    found = list(_moments("index ", life.places, sight.places))
    if life.gone:
        return [*found, *([f"keys are left: {sight.task}"] if sight.task or sight.expires else [])]
    if life.files != sight.files:
        found.append(f"its files are {sight.files}, not {life.files}")
    limits = {name[2:]: text.partition(" ")[::2] for name, text in sight.task.items() if name.startswith("d:")}
    told = {name: text for name, text in sight.task.items() if name not in _FIXED and not name.startswith("d:")}
    found += _fields("", _record(life), told)
    due = {key: moment for key, (moment, _) in life.limits.items()}
    found += _moments("limit ", due, {key: float(moment) for key, (moment, _) in limits.items()})
    found += _fields("limit ", _outcomes(life), {key: what for key, (_, what) in limits.items()})
    if sight.timeline != life.timeline:
        found.append(f"its timeline is {sight.timeline}, not {life.timeline}")
    timers = {name: text for name, text in sight.journal.items() if name.startswith("t:")}
    found += _fields("journal ", _journal(life), {n: text for n, text in sight.journal.items() if n not in timers})
    dues = {name[2:]: float(text.removesuffix(f" {PLACE}")) for name, text in timers.items()}
    found += _moments("timer ", life.timers, dues)
    moments = {name: moment for name in _MOMENTS if (moment := getattr(life, name)) is not None}
    found += _moments("", moments, {name: float(sight.task[name]) for name in _MOMENTS if sight.task.get(name)})
    dies = life.dies or (-1, -1)
    if len(sight.expires) != 1 or not all(dies[0] <= moment <= dies[1] for moment in sight.expires):
        found.append(f"its keys die at {sorted(sight.expires)}, not together at {dies}")
    return found


def _record(life: Life) -> dict[str, str]:
    ended = life.status.terminal
    numbers = ("token", "attempt", "retries") if ended else ("token", "attempt", "retries", "resends", "look")
    fields: dict[str, str | None] = {
        "status": life.status,
        "reason": life.reason,
        "msg": life.message,
        "worker": life.worker,
        "ran": life.ran,
        # `moves.Take` has its worker's name for one, and it lives as long as the claim.
        "nonce": life.worker,
        "why": life.why,
        "cancel": None if life.why is None else "1",
        "held": "1" if life.held else None,
        "artifacts": "1" if life.reserved else None,
        "resume": "1" if life.resume else None,
        "deferrals": str(life.deferrals) if life.deferrals else None,
        "open": None if ended else str(len(life.open)),
        **{name: str(getattr(life, name)) for name in numbers},
        **{f"q:{key}": text for key, text in life.open.items()},
    }
    if life.progressed is not None:
        fields |= {"progress": str(life.progressed[0]), "total": str(life.progressed[1])}
    if life.rate is not None:
        fields["rate"] = str(life.rate)
    if life.payload is not None:
        fields[life.payload[0]] = life.payload[1]
    return {name: str(text) for name, text in fields.items() if text is not None}


_FAILS: Final = f'fail {{"code":-32603,"message":"{TOO_LATE}"}}\n{TOO_LATE}'


def _outcomes(life: Life) -> dict[str, str]:
    return {key: "cancel" if what == "cancel" else _FAILS for key, (_, what) in life.limits.items()}


def _journal(life: Life) -> dict[str, str]:
    digests = {key: asking(question(key, text))[0][1] for key, text in life.asked.items()}
    return {
        **{f"k:{key}": digest for key, digest in digests.items()},
        **{f"a:{key}": json.dumps(value, separators=(",", ":")) for key, value in life.answers.items()},
        **{f"s:{name}": value for name, value in life.steps.items()},
        **({"mrtr": '{"round":1,"request_state":"s","keys":{}}'} if life.guarded else {}),
    }


def _fields(kind: str, wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(wanted.keys() | found.keys()):
        text = found.get(name)
        if text is not None and name.startswith("q:"):
            text = json.loads(text)["params"]["message"]
        if text != wanted.get(name):
            yield f"{kind}{name} is {text!r}, not {wanted.get(name)!r}"


def _moments(kind: str, wanted: Mapping[str, Window], found: Mapping[str, float]) -> Iterator[str]:
    for name in sorted(wanted.keys() | found.keys()):
        moment, window = found.get(name), wanted.get(name)
        if moment is None or window is None or not window[0] <= moment <= window[1]:
            yield f"{kind}{name} is {moment}, not within {window}"
