"""What `mcptasks doctor` makes of the place of artifacts and large results: is it there, and the same for all?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcptasks.cli.verdict import Check, Status
from mcptasks.errors import MCPTasksError, StoreUnavailable
from mcptasks.model import new_task_id
from mcptasks.settings import Settings
from mcptasks.store.files import Files
from mcptasks.store.registry import FRESH_MS
from mcptasks.store.store import TaskStore

NAME: Final = "artifacts"
_WORD: Final = b"mcptasks doctor was here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place as it is seen from here."""

    where: str
    #: Why it does not take and give files, in a sentence; "": it does.
    trouble: str = ""
    #: "folder": of one machine, or mounted there. "process": each process has its own. "remote": anything else.
    kind: str = "folder"


SILENT: Final = Place(where="", trouble="The place that MCPTASKS_ARTIFACTS_URL names does not answer in time")

#: Live worker -> its machine, and its place.
Workers: TypeAlias = Mapping[str, tuple[str, str]]


def look_at_artifacts(settings: Settings) -> Place:
    """A file was written to the place, read and removed."""
    return asyncio.run(_try(TaskStore(settings).files))


async def _try(files: Files) -> Place:
    task_id = new_task_id()
    try:
        written = await files.write(task_id, _word(), len(_WORD), "The file")
        found = await files.read(task_id, written.file, 0, len(_WORD), sealed=written.sealed)
        await files.remove_all(task_id)
    except MCPTasksError as exc:
        return Place(where=files.where, trouble=str(exc))
    trouble = "" if found == _WORD else f"What was written to {files.where} is not what is read there"
    return Place(where=files.where, trouble=trouble, kind=files.kind)


def look_at_workers(settings: Settings) -> Workers:
    """What the workers' register says; nothing where the store does not answer."""
    return asyncio.run(_registered(settings))


async def _registered(settings: Settings) -> Workers:
    store = TaskStore(settings)
    try:
        now_ms = await store.now_ms()
        pulses = (await store.workers()).items()
    except StoreUnavailable:
        return {}
    finally:
        await store.aclose()
    return {name: (pulse.host, pulse.artifacts) for name, pulse in pulses if now_ms - pulse.at_ms <= FRESH_MS}


async def _word() -> AsyncIterator[bytes]:
    yield _WORD


def artifacts(place: Place, workers: Workers, host: str) -> Check:
    """Whether what workers write can be read by servers. `host`: this machine's name."""
    if place.trouble:
        advice = "Mend the place, or let MCPTASKS_ARTIFACTS_URL name another one, the same for all workers and servers."
        return Check(NAME, Status.FAIL, place.trouble, advice)
    if place.kind == "process":
        advice = "Set MCPTASKS_ARTIFACTS_URL to a folder, or to a URL of an object store such as s3://bucket/mcptasks."
        return Check(NAME, Status.FAIL, f"{place.where}: each process has one of its own", advice)
    if strange := sorted(name for name, (_, where) in workers.items() if where != place.where):
        theirs = workers[strange[0]][1] or "none"
        found = (
            f"{', '.join(strange[:3])} has {theirs}, here it is {place.where}: one cannot read what the other writes"
        )
        advice = "Set MCPTASKS_ARTIFACTS_URL to one absolute path or URL for all workers, servers and this shell."
        return Check(NAME, Status.FAIL, found, advice)
    hosts = sorted({host, *(theirs for theirs, _ in workers.values())})
    if place.kind == "folder" and len(hosts) > 1:
        found = f"{place.where} is a folder, and there are {len(hosts)} machines: {', '.join(hosts[:3])}"
        advice = "If it is mounted on all of them, all is well; else use a shared mount, or an object store (s3://...)."
        return Check(NAME, Status.WARN, found, advice)
    return Check(NAME, Status.OK, f"{place.where} takes files and gives them back")
