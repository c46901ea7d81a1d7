"""The request context of a run that has no request, rebuilt from what was kept of the call."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp_types import CallToolRequestParams
from starlette.requests import Request

from mcptasks import seams
from mcptasks.model import Journal, Submission
from mcptasks.runtime.channel import TaskChannel


def request_of(headers: Mapping[str, str] | None) -> Request | None:
    """A request that carries the kept headers and nothing else; None where the call did not come by HTTP."""
    if headers is None:
        return None
    return Request(
        {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "scheme": "http",
            "server": ("mcptasks", 0),
            "client": None,
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        }
    )


def call_params(submission: Submission, journal: Journal) -> dict[str, Any]:
    """The call as the tool sees it: a resolver or guard gets its latest state and the answers to its own keys."""
    params: dict[str, Any] = {"name": submission.tool, "arguments": submission.arguments}
    if submission.meta is not None:
        # It was kept as the SDK parses it, which renames the one member that the SDK itself knows.
        params["_meta"] = {("progressToken" if k == "progress_token" else k): v for k, v in submission.meta.items()}
    if journal.guard is not None:
        params["requestState"] = journal.guard.request_state
        params["inputResponses"] = {
            own: journal.answers[key] for own, key in journal.guard.keys.items() if key in journal.answers
        }
    return params


def context(
    submission: Submission, channel: TaskChannel, lifespan: Any, request: Request | None, params: dict[str, Any]
) -> tuple[ServerRequestContext[Any, Any], CallToolRequestParams]:
    """What the SDK's `tools/call` handler wants, for a run away from its request."""
    session = seams.make_session(
        channel,
        version=submission.protocol_version,
        client_info=submission.client,
        capabilities=submission.capabilities,
        meta=submission.meta,
    )
    rctx: ServerRequestContext[Any, Any] = ServerRequestContext(
        session=session,
        lifespan_context=lifespan,
        protocol_version=submission.protocol_version,
        method="tools/call",
        params=params,
        request_id=submission.request_id,
        meta=submission.meta,  # pyright: ignore[reportArgumentType]
        request=request,
    )
    return rctx, CallToolRequestParams.model_validate(params, by_name=False)


@contextmanager
def caller(principal: Mapping[str, Any] | None) -> Generator[None]:
    """`get_access_token()` gives the caller's identity inside the block, and an empty token where it was not kept."""
    if principal is None:
        yield
        return
    user = AuthenticatedUser(AccessToken.model_validate({"token": "", **principal}))
    reset = auth_context_var.set(user)
    try:
        yield
    finally:
        auth_context_var.reset(reset)
