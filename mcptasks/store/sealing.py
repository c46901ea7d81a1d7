"""Tries a few stored calls with this process's keys: what an operator wants to know before and while keys change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from redis.asyncio import Redis

from mcptasks.errors import Sealed
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from mcptasks.store.seal import Seal, is_sealed

#: Unfinished tasks looked at from each end of their index, those that end soonest and those that stay longest.
SAMPLE: Final = 10
#: Longer calls are passed over: the look must cost the store nothing.
_LONGEST: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """What these calls say of the keys here."""

    #: How many keys there are here.
    keys: int
    #: Calls that were tried, and of these:
    tried: int
    plain: int
    #: Opened by another key than the first, which seals.
    older: int
    #: Opened by none.
    locked: int


async def look_at_seals(client: Redis, keys: Keys, settings: Settings) -> Sealing:
    """The stored calls of some unfinished tasks, sorted by what opens them. Three round trips, writes nothing."""
    calls = await _calls(client, keys)
    every, first = Seal(settings.encryption_keys), Seal(settings.encryption_keys[:1])
    sealed = {task_id: call for task_id, call in calls.items() if is_sealed(call)}
    locked = sum(not _opens(every, task_id, call) for task_id, call in sealed.items())
    newest = sum(_opens(first, task_id, call) for task_id, call in sealed.items())
    return Sealing(
        keys=len(settings.encryption_keys),
        tried=len(calls),
        plain=len(calls) - len(sealed),
        older=len(sealed) - locked - newest,
        locked=locked,
    )


async def _calls(client: Redis, keys: Keys) -> dict[str, str]:
    pipe = cast("Any", client.pipeline(transaction=False))
    pipe.zrange(keys.active, 0, SAMPLE - 1).zrange(keys.active, -SAMPLE, -1)
    head, tail = await pipe.execute()
    task_ids = sorted({*head, *tail})
    for task_id in task_ids:
        pipe.strlen(keys.call(task_id))
    short = [task_id for task_id, size in zip(task_ids, await pipe.execute(), strict=True) if 0 < size <= _LONGEST]
    for task_id in short:
        pipe.get(keys.call(task_id))
    return {task_id: call for task_id, call in zip(short, await pipe.execute(), strict=True) if call}


def _opens(seal: Seal, task_id: str, call: str) -> bool:
    try:
        seal.open(task_id, "call", call)
    except Sealed:
        return False
    return True
