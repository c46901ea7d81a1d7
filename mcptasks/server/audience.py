"""Whom a task's questions are shown to: requests of its owner whose client declared that it can be asked them.

A task belongs to a caller, not to a client: one program may make it, a second look at it, a third answer it. Each of
them sees that the task waits, and what it can be asked itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext

from mcptasks.capabilities import missing
from mcptasks.model import Record

Ctx = ServerRequestContext[Any, Any]


def shown(ctx: Ctx, record: Record) -> dict[str, Any]:
    """Those of the task's open questions that this request's client can be asked."""
    lacks = _lacks(ctx, record)
    return {key: question for key, question in record.questions.items() if lacks[key] is None}


def lacking(ctx: Ctx, record: Record) -> dict[str, Any]:
    """The capabilities, in wire form, that the client would have to declare to be shown them all."""
    out: dict[str, Any] = {}
    for needed in _lacks(ctx, record).values():
        for name, more in (needed or {}).items():
            out[name] = out.get(name, {}) | more
    return out


def _lacks(ctx: Ctx, record: Record) -> Mapping[str, dict[str, Any] | None]:
    if not record.questions:
        return {}
    declared = ctx.session.client_capabilities
    has = {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {key: missing(has, question["method"], question["params"]) for key, question in record.questions.items()}
