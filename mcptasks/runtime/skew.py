"""A deploy came between a task's call and its run: what this worker cannot take up, and why."""

from __future__ import annotations

from mcp.server.mcpserver.tools import Tool
from pydantic import ValidationError

from mcptasks.model import Record, Submission
from mcptasks.runtime.outcome import Deferred, Failed, cannot_go_on


def other_version(record: Record, here: str) -> str:
    """A sentence for the error of a task that cannot go on, with a space before it; "" where versions explain nothing.

    `here`: the version of this worker's code.
    """
    if not record.version or not here or record.version == here:
        return ""
    return f" The task began with version {record.version}, this worker has {here}."


def no_such_tool(submission: Submission) -> Deferred:
    """Another worker may have it, in the middle of a deploy; if none has in the end, it was renamed or removed."""
    name = repr(submission.tool)
    lost = cannot_go_on(f"no worker has its tool {name} any more; deploy it again, or start the task anew")
    return Deferred(f"this worker has no tool {name}", f"Waits for a worker that has the tool {name}", lost.error)


def no_key(why: str) -> Deferred:
    """Another worker may have it, while a new key is rolled out; if none has in the end, it was taken away too soon.

    The tool is not run with less than was stored: without its caller, it might do what that caller may not.
    """
    lost = cannot_go_on(f"no worker could open it in time. {why}")
    return Deferred(why, "Waits for a worker that can open what is stored of it", lost.error)


def other_arguments(tool: Tool, submission: Submission, versions: str) -> Failed | None:
    """The end of a task whose stored arguments, valid at the call, are not what the tool takes now; else None."""
    try:
        tool.fn_metadata.validate_arguments(submission.arguments)
    except ValidationError as exc:
        misfits = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
    except Exception as exc:  # a user's validator may raise anything
        misfits = type(exc).__name__
    else:
        return None
    return cannot_go_on(
        f"the tool {submission.tool!r} takes other arguments now than when the task was called ({misfits}); "
        f"start the task anew.{versions}"
    )
