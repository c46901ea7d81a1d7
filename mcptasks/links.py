"""Artifacts: what is known of one, and the URI under which a caller reads it; and the URI of a task's timeline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from mcptasks.model import is_task_id, label

#: What every URI of ours begins with; nobody else's resources may.
URIS: Final = "mcptasks://tasks/"

#: In the `_meta` of a result that is too large to be inlined: the URI of the whole one.
WHOLE_RESULT: Final = "mcptasks/result"
#: In the `_meta` of contents that were read: how many bytes the whole artifact has.
SIZE: Final = "mcptasks/size"

#: The name of the artifact that a large result is. A tool's own artifacts have names.
RESULT_NAME: Final = ""

_URI: Final = re.compile(rf"{URIS}(?P<task>[^/]+)/artifacts/(?P<sha256>[0-9a-f]{{64}})(\?(?P<query>.*))?")
_TIMELINE: Final = re.compile(rf"{URIS}(?P<task>[^/]+)/timeline")
_PART: Final = re.compile(r"(offset|length)=([0-9]{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One artifact of a task. Its bytes never change; under its name the task may write another one."""

    name: str
    sha256: str
    #: Bytes.
    size: int
    mime: str
    #: Name of the file below the task's folder.
    file: str
    #: The file's blocks are sealed.
    sealed: bool = False


class Link(NamedTuple):
    """What a URI asks for: the artifact, or those of its bytes from `offset` on, at most `length` of them."""

    task_id: str
    sha256: str
    offset: int | None = None
    length: int | None = None

    @property
    def uri(self) -> str:
        """The URI. It holds the task's id, which is a secret without authentication: never log it."""
        span = {"offset": self.offset, "length": self.length}
        query = "&".join(f"{name}={value}" for name, value in span.items() if value is not None)
        return f"{URIS}{self.task_id}/artifacts/{self.sha256}{f'?{query}' if query else ''}"

    def __str__(self) -> str:
        return f"artifact {self.sha256[:10]} of task {label(self.task_id)}"

    __repr__ = __str__

    @classmethod
    def parse(cls, uri: str) -> Self | None:
        """What the URI asks for; None: it is no URI of an artifact."""
        whole = _URI.fullmatch(uri)
        if whole is None or not is_task_id(whole["task"]):
            return None
        parts = [_PART.fullmatch(part) for part in whole["query"].split("&")] if whole["query"] is not None else []
        span = {part[1]: int(part[2]) for part in parts if part}
        return cls(whole["task"], whole["sha256"], **span) if len(span) == len(parts) else None


def timeline_uri(task_id: str) -> str:
    """Where the task's caller reads its timeline. It holds the task's id: never log it."""
    return f"{URIS}{task_id}/timeline"


def timeline_task(uri: str) -> str | None:
    """The id of the task whose timeline has this URI; None: it is no such URI."""
    whole = _TIMELINE.fullmatch(uri)
    return whole["task"] if whole is not None and is_task_id(whole["task"]) else None
