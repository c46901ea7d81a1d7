"""The SDK's own client as somebody sits at it: no extension of ours, and an answer to whatever is asked."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)


async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Accepts; the word is what the question begins with."""
    schema = getattr(params, "requested_schema", None)
    return ElicitResult(action="accept", content={"word": params.message.lower()[:5]} if schema else None)


async def sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    """A model that laughs."""
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="ha"), model="m")


async def roots(context: ClientRequestContext) -> ListRootsResult:
    """One folder."""
    return ListRootsResult(roots=[Root(uri="file:///home")])  # type: ignore[arg-type]


def person(server: Any, **options: Any) -> Client:
    """A client of the server (or of its URL, or of a transport) that answers; `mode="legacy"` for one of 2025-11-25."""
    answers: dict[str, Any] = {
        "elicitation_callback": elicit,
        "sampling_callback": sample,
        "list_roots_callback": roots,
    }
    return Client(server, **{**answers, **options})
