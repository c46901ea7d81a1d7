"""Who is calling. Ownership is one string, compared for equality inside the store and nowhere else."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext

OwnerOf: TypeAlias = Callable[[ServerRequestContext[Any, Any]], str | Awaitable[str]]
"""From a request to the stable identity of its caller. "" is the anonymous caller."""


def token_owner(ctx: ServerRequestContext[Any, Any]) -> str:
    """Client id, issuer and subject of the access token, the triple the SDK itself binds sessions to; "" without one.

    Without authentication every caller is the same owner, and the task id alone is the secret (protocol.md P81).
    """
    token = get_access_token()
    return "" if token is None else json.dumps(principal_components(token), separators=(",", ":"))


async def owner_of(pick: OwnerOf, ctx: ServerRequestContext[Any, Any]) -> str:
    """The caller's owner string by the configured function, sync or async."""
    found = pick(ctx)
    return await found if inspect.isawaitable(found) else found
