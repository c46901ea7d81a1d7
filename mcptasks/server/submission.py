"""What is taken from a live `tools/call` so that the tool can run without it. No transports; no token unasked."""

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
from pydantic import BaseModel

from mcptasks import seams
from mcptasks.model import CLIENT_CAPABILITIES, Guard, Submission
from mcptasks.observe import tracing
from mcptasks.server.rounds import Settling
from mcptasks.wire import IDEMPOTENCY_HEADER, IDEMPOTENCY_META, MODERN

#: 1 to 255 visible ASCII characters: fit for a header, a log line and a database column.
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


def headers_of(ctx: ServerRequestContext[Any, Any]) -> Mapping[str, str] | None:
    """The HTTP request's headers; None on other transports."""
    return cast("Mapping[str, str] | None", getattr(ctx.request, "headers", None))


def take(
    params: CallToolRequestParams,
    ctx: ServerRequestContext[Any, Any],
    keep_headers: tuple[str, ...],
    *,
    keep_token: bool = False,
) -> Submission:
    """The submission of this call. `keep_token`: with the caller's bearer token, if there is one."""
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
        can_be_asked=ctx.protocol_version in MODERN or ctx.session.can_send_request,
        principal=None if token is None else token.model_dump(mode="json", exclude=None if keep_token else {"token"}),
        trace=tracing.carried(meta),
    )


def _dump(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(by_alias=True, mode="json", exclude_none=True)


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


def _digest(given: Any) -> str:
    """What makes two calls with one key the same call: the same JSON, in whatever order of members."""
    canonical = json.dumps(given, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class Settled(NamedTuple):
    """What was asked and answered on the request itself, before the task (SEP-2663, multi-round-trip)."""

    #: As in `rounds.Settling`.
    call_id: str
    guard: Guard
    #: By the guard's wire keys.
    answers: dict[str, Any]


def answers_of(params: CallToolRequestParams) -> dict[str, Any]:
    """What the client answered to the questions of the round before, by their keys, in wire form."""
    return {key: _dump(response) for key, response in (params.input_responses or {}).items()}


def settle(settling: Settling, params: CallToolRequestParams) -> Settled | None:
    """The questions that were asked and answered on the request itself, for the run's replay; None where none were."""
    answers = answers_of(params)
    if settling.state is None and not answers:
        return None
    keys = {own: f"r0-{n}" for n, own in enumerate(answers, 1)}
    guard = Guard(round=0, request_state=settling.state, keys=keys)
    return Settled(settling.call_id, guard, {keys[own]: answer for own, answer in answers.items()})


class Identity(NamedTuple):
    """What makes calls one call, and so one task, however often they are sent."""

    #: None: each call is a call of its own.
    key: str | None
    #: Of what must be the same under one key.
    digest: str = ""
    #: What the caller is told when it is not.
    clash: str = ""


def identity(call: Submission, ctx: ServerRequestContext[Any, Any], settled: Settled | None) -> Identity:
    """The call's identity: the client's idempotency key, else the rounds that led to the call.

    The last of several rounds may be sent twice, because its answer was lost, or by somebody who kept it; it must not
    start the work twice, and one consent must not stand for two things.
    """
    if (key := idempotency_key(ctx)) is not None:
        clash = (
            "The idempotency key was used before with other arguments. The task it belongs to is unchanged; "
            "use a new key for a new call."
        )
        return Identity(key, _digest(call.arguments), clash)
    if settled is None:
        return Identity(None)
    digest = _digest([call.arguments, settled.guard.request_state, settled.answers])
    clash = "This request was completed before with other answers; its task is unchanged. Call anew to be asked anew."
    return Identity(f"rounds {settled.call_id}", digest, clash)  # no client's key has a space in it
