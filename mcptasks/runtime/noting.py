"""A tool's own entries in its task's timeline."""

from __future__ import annotations

from typing import Any, Final

from mcptasks.runtime.current import current_run
from mcptasks.store.base import cut
from mcptasks.strict_json import clean, dumps

#: Characters of the data of one entry, as JSON.
_DATA_MAX: Final = 2_000


async def note(text: str, *, data: Any = None) -> None:
    """The task's timeline has an entry with this text, which its caller and operators read.

    It is on its way when this returns, and is written within a moment with what else the tool says; a worker that is
    killed then takes it along. A later run that goes over what is recorded does not say it again; one that does work
    again says again what belongs to it. In a sync tool: `anyio.from_thread.run(mcptasks.note, text)`. Outside a task
    nothing happens.

    Args:
        text: up to 500 characters; of a longer one the beginning.
        data: JSON that goes with it; of more than 2,000 characters a preview.

    Raises:
        BadPayload: the data is not JSON.
    """
    said = {"text": cut(text)}
    if data is not None:
        said["data"] = _short(dumps(data, "The data of a note"), data)
    if (run := current_run.get()) is not None:
        run.channel.remark("note", dumps(said, "A note"))


def _short(written: str, data: Any) -> Any:
    return clean(data) if len(written) <= _DATA_MAX else {"truncated": True, "preview": cut(written)}
