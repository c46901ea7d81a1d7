"""What is taken from a live `tools/call` so that the tool can run without it. No tokens, no transports."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams
from opentelemetry import propagate
from pydantic import BaseModel

from mcptasks import seams
from mcptasks.model import CLIENT_CAPABILITIES, Guard, Submission
from mcptasks.wire import IDEMPOTENCY_HEADER, IDEMPOTENCY_META

#: 1 to 255 visible ASCII characters: fit for a header, a log line and a database column.
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_TRACE_FIELDS: Final = ("traceparent", "tracestate")


def headers_of(ctx: ServerRequestContext[Any, Any]) -> Mapping[str, str] | None:
    """The HTTP request's headers; None on other transports."""
    return cast("Mapping[str, str] | None", getattr(ctx.request, "headers", None))


def take(
    params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], keep_headers: tuple[str, ...]
) -> Submission:
    """The submission of this call."""
    token = get_access_token()
    headers = headers_of(ctx)
    meta = cast("dict[str, Any]", dict(ctx.meta)) if ctx.meta else None
    told = meta is not None and CLIENT_CAPABILITIES in meta
    return Submission(
        tool=params.name,
        arguments=params.arguments or {},
        protocol_version=ctx.protocol_version,
        request_id=ctx.request_id,
        meta=meta,
        client_info=None if told else _dump(seams.client_info_of(ctx.session)),
        client_capabilities=None if told else _dump(ctx.session.client_capabilities),
        headers=None if headers is None else {name: headers[name] for name in keep_headers if name in headers},
        principal=None if token is None else token.model_dump(mode="json", exclude={"token"}),
        trace=_trace(meta),
    )


def _dump(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _trace(meta: Mapping[str, Any] | None) -> dict[str, str]:
    """This process's span where tracing is set up, else what the client sent in `_meta` (SEP-414)."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier and meta:
        carrier = {name: meta[name] for name in _TRACE_FIELDS if isinstance(meta.get(name), str)}
    return carrier


def idempotency_key(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """The call's key: `params.idempotencyKey`, else `_meta["mcptasks/idempotencyKey"]`, else the HTTP header.

    Raises:
        MCPError: -32602, the key is not 1 to 255 visible characters.
    """
    params, meta, headers = ctx.params or {}, ctx.meta or {}, headers_of(ctx) or {}
    found = next(
        (
            key
            for key in (params.get("idempotencyKey"), meta.get(IDEMPOTENCY_META), headers.get(IDEMPOTENCY_HEADER))
            if key is not None
        ),
        None,
    )
    if found is None:
        return None
    if not isinstance(found, str) or not _KEY.fullmatch(found):
        raise MCPError(INVALID_PARAMS, "The idempotency key must be 1 to 255 visible ASCII characters")
    return found


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """What makes two calls with one idempotency key the same call: the same JSON, in whatever order of members."""
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class Settled(NamedTuple):
    """What was asked and answered on the request itself, before the task (SEP-2663, multi-round-trip)."""

    guard: Guard
    #: By the guard's wire keys.
    answers: dict[str, Any]


def settled_rounds(params: CallToolRequestParams) -> Settled | None:
    """The questions that were asked and answered on the request itself, for the run's replay; None where none were."""
    if params.request_state is None and not params.input_responses:
        return None
    answers = {own: _dump(response) for own, response in (params.input_responses or {}).items()}
    keys = {own: f"r0-{n}" for n, own in enumerate(answers, 1)}
    guard = Guard(round=0, request_state=params.request_state, keys=keys)
    return Settled(guard, {keys[own]: answer for own, answer in answers.items()})
