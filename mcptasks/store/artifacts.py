"""The transitions of artifacts: reserve, artifact, discard. Their bytes are the business of `files`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Literal, cast

from mcptasks.links import RESULT_NAME, Artifact
from mcptasks.model import Claim
from mcptasks.store.base import Transitions
from mcptasks.strict_json import dumps

#: Folders that are removed at a time.
DISCARD_BATCH: Final = 20
#: A folder that nobody said was removed is given out again after this long.
_AGAIN_MS: Final = 10 * 60_000


class ArtifactTransitions(Transitions):
    """What a run, a reader and the sweeper do to a task's artifacts."""

    async def reserve(self, claim: Claim) -> Literal["RESERVED", "STALE", "TERMINAL", "GONE"]:
        """Whatever is put into the task's folder from now on will be removed when the task is gone."""
        keys = {**self.own(claim.task_id, "task"), **self.fleet("artifacts")}
        reply = await self.run_script("reserve", keys, {"task_id": claim.task_id, "token": claim.token})
        return reply[0]

    async def artifact(self, claim: Claim, artifact: Artifact) -> tuple[str, str]:
        """The complete file is the task's artifact of this name. The word, and what goes with it:

        RECORDED: the file that it replaced, to be removed ("" for none). KNOWN: the same bytes stand under this name
        already, in the file named; the new one is to be removed, and so for all that follow. TOO_MANY (how many),
        TOO_LARGE (the bytes of all): over the task's limits, which its result does not count against. STALE | TERMINAL
        | GONE: this run may not write any more.
        """
        settings, unbound = self.settings, artifact.name == RESULT_NAME
        names = self.seal.digests(artifact.name)
        reply = await self.run_script(
            "artifact",
            {**self.own(claim.task_id, "task"), "files": self.keys.artifacts_of(claim.task_id)},
            {
                "token": claim.token,
                # What a person could guess (a name, the bytes of a short file) nobody can check without the key.
                "digest": self.seal.digests(artifact.sha256)[0],
                "size": artifact.size,
                "file": artifact.file,
                "said": self._said(claim.task_id, names[0], artifact),
                "noted": None if unbound else self.noted(claim.task_id, artifact.name),
                "names": names,
                "total_max": None if unbound else settings.artifacts_total_max,
                "count_max": None if unbound else settings.artifacts_max,
            },
        )
        return reply[0], str(reply[1]) if len(reply) > 1 else ""

    async def artifacts(self, task_id: str, owner: str | None) -> list[Artifact] | None:
        """The task's artifacts by name; None where `read` would find no task. Writes nothing.

        Raises:
            Sealed: they were sealed with a key that is not here.
        """
        async with self.connection.turn() as client, client.pipeline(transaction=False) as pipe:
            pipe.hget(self.keys.task(task_id), "owner")
            pipe.hgetall(self.keys.artifacts_of(task_id))
            caller, entries = cast("tuple[str | None, dict[str, str]]", await pipe.execute())
        if caller is None or (owner is not None and caller != owner):
            return None
        found = [self._read(task_id, name, entry) for name, entry in entries.items()]
        return sorted(found, key=lambda artifact: artifact.name)

    async def discard(self, done: Sequence[str] = ()) -> list[str]:
        """The files of the done tasks are removed; some more tasks that are gone, whose files are now to be removed."""
        reply = await self.run_script(
            "discard",
            self.fleet("artifacts"),
            {
                "task_prefix": f"{self.keys.prefix}task:",
                "again_ms": _AGAIN_MS,
                "batch": DISCARD_BATCH,
                "done": list(done),
            },
        )
        return reply[1:]

    def _said(self, task_id: str, name: str, artifact: Artifact) -> str:
        said = {"name": artifact.name, "mime": artifact.mime, "sha256": artifact.sha256, "sealed": artifact.sealed}
        return self.seal.seal(task_id, _place(name), dumps(said, "The artifact"))

    def _read(self, task_id: str, name: str, entry: str) -> Artifact:
        _, size, file, said = entry.split(" ", 3)
        return Artifact(size=int(size), file=file, **json.loads(self.seal.open(task_id, _place(name), said)))


def _place(name: str) -> str:
    return f"artifact:{name}"
