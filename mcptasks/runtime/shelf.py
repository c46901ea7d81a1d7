"""The files of one run's task: written so that nothing is left of them when the task is gone, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, cast

from mcptasks.errors import ArtifactsUnavailable, BadPayload, ClaimLost, TooLarge
from mcptasks.links import RESULT_NAME, Artifact, Link
from mcptasks.model import Claim
from mcptasks.runtime.patience import patiently
from mcptasks.store.store import TaskStore


class Shelf:
    """The files of one run's task."""

    def __init__(self, store: TaskStore, claim: Claim) -> None:
        self._store, self._claim = store, claim
        self._reserved = False

    async def put(
        self, name: str, mime: str, chunks: Callable[[], AsyncIterator[bytes]], limit: int, what: str
    ) -> Artifact:
        """The bytes are the task's artifact of this name.

        Raises:
            TooLarge, ArtifactsUnavailable, ClaimLost, ConfigurationError: nothing is kept.
        """
        store, claim = self._store, self._claim
        if not self._reserved:
            # Before the first byte: whatever a crash leaves in the folder goes with the task.
            _live(await patiently(lambda: store.reserve(claim), what), what)
            self._reserved = True
        async with aclosing(cast("Any", chunks())) as source:
            written = await store.files.write(claim.task_id, source, limit, what)
        new = Artifact(name=name, mime=mime, **written._asdict())
        word, detail = await patiently(lambda: store.artifact(claim, new), what)
        if word == "RECORDED":
            await self._remove(detail)
            return new
        await self._remove(new.file)
        if word == "TOO_LARGE":
            limit, setting = store.settings.artifacts_total_max, "MCPTASKS_ARTIFACTS_TOTAL_MAX"
            raise TooLarge(f"All that the task keeps, with {name!r},", int(detail), limit, setting)
        if word == "TOO_MANY":
            limit = store.settings.artifacts_max
            raise BadPayload(f"A task has at most {limit:,} artifacts (MCPTASKS_ARTIFACTS_MAX); {what} is one more")
        return replace(new, file=detail) if word == "KNOWN" else _live(word, what)

    async def links(self) -> list[dict[str, Any]]:
        """Links to the task's artifacts, of all its runs, by name."""
        if not (self._reserved or self._claim.record.artifacts):
            return []
        claim = self._claim
        found = await patiently(lambda: self._store.artifacts(claim.task_id, None), "The list of artifacts")
        return [link_of(claim.task_id, one) for one in found or () if one.name != RESULT_NAME]

    async def _remove(self, file: str) -> None:
        # What cannot be removed now goes with the folder.
        with suppress(ArtifactsUnavailable):
            if file:
                await self._store.files.remove(self._claim.task_id, file)


def link_of(task_id: str, artifact: Artifact, **more: Any) -> dict[str, Any]:
    """The artifact's `resource_link`, in wire form."""
    link = Link(task_id, artifact.sha256)
    return {
        "type": "resource_link",
        "uri": link.uri,
        "name": artifact.name,
        "mimeType": artifact.mime,
        "size": artifact.size,
        **more,
    }


def _live(word: str, what: str) -> Any:
    if word != "RESERVED":
        raise ClaimLost(f"{what} is not kept: this run lost its task ({word})")
