"""An MCP server and Celery app whose tools hand out much."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from mcp.server.mcpserver import MCPServer

import mcptasks
from mcptasks import Tasks
from mcptasks.settings import MIB

tasks = Tasks()
mcp = MCPServer("artifact-tests", extensions=[tasks])


def blocks(size: int) -> Iterator[bytes]:
    """So many bytes, each time the same, no two MiB alike."""
    for number in range(-(-size // MIB)):
        yield hashlib.shake_128(b"%d" % number).digest(min(MIB, size - number * MIB))


@mcp.tool()
@tasks.durable()
async def hand_out(size: int) -> str:
    """An artifact of that size."""
    link = await mcptasks.artifact("data.bin", blocks(size))
    return link.uri


@mcp.tool()
@tasks.durable(ttl="3s")
async def hand_out_briefly() -> None:
    """An artifact that is soon gone."""
    await mcptasks.artifact("data.bin", b"soon gone")


@mcp.tool(structured_output=False)
@tasks.durable()
async def return_text(size: int) -> str:
    """A text of that size."""
    return "0123456789abcdef" * (size // 16)


@mcp.tool(structured_output=False)
@tasks.durable(ttl="60s")
async def return_briefly(size: int) -> str:
    """A text of that size, soon gone."""
    return "0123456789abcdef" * (size // 16)


@mcp.tool()
@tasks.durable()
async def measure(text: str) -> int:
    """How long the text is."""
    return len(text)


@mcp.tool()
@tasks.durable()
async def quick() -> str:
    """At once."""
    return "quick"


celery = tasks.bind(mcp)
