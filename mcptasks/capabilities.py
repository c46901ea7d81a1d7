"""What a client can be asked: what it declared, request by request, and nothing else.

SEP-2322: servers must not send a client an input request that it has not declared support for in its capabilities.
SEP-2663 takes its `inputRequests` from there: "a task is not a higher-trust channel".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY


def missing(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """The capability, in wire form, that the client would have to declare to be asked this; None: it can be asked."""
    if method != "elicitation/create":
        name = method.split("/")[0]
        declared = cast("dict[str, Any] | None", capabilities.get(name))
        more: dict[str, Any] = {"tools": {}} if with_tools(method, params) else {}
        return {name: more} if declared is None or more.keys() - declared.keys() else None
    mode = str(params.get("mode", "form"))
    declared = cast("dict[str, Any] | None", capabilities.get("elicitation"))
    # An empty object means form, the only mode there was before modes had names.
    able = declared is not None and (mode in declared or (mode == "form" and "url" not in declared))
    return None if able else {"elicitation": {mode: {}}}


def with_tools(method: str, params: Mapping[str, Any]) -> bool:
    """The client's model is given tools: a capability of its own, and an answer of its own kind."""
    return method == "sampling/createMessage" and not params.keys().isdisjoint(("tools", "toolChoice"))


def require_capability(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> None:
    """The client declared that it can answer this.

    Raises:
        MCPError: -32021 with the capability that is missing.
    """
    if (needed := missing(capabilities, method, params)) is not None:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Client did not declare the {next(iter(needed))} capability this tool needs",
            {"requiredCapabilities": needed},
        )
