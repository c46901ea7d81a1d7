"""Tools of every kind that an MCP server can have, and how each is called. They know nothing of tasks.

Modelled on the tools in the SDK's documentation and examples. `docs/compatibility.md` is their list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from tests.support.kinds import arguments, around, asking, content, context, errors, functions, results, returning
from tests.support.kinds.shelf import Kind, Shelf

SHELVES: Final[tuple[Shelf, ...]] = (
    arguments.SHELF,
    results.SHELF,
    content.SHELF,
    errors.SHELF,
    context.SHELF,
    functions.SHELF,
    around.SHELF,
    asking.SHELF,
    returning.SHELF,
)

#: Calls that ask nobody, calls that never become a task, and calls that ask.
QUIET: Final[list[Kind]] = [kind for shelf in SHELVES for kind in shelf.quiet]
REFUSED: Final[list[Kind]] = [kind for shelf in SHELVES for kind in shelf.refused]
ASKING: Final[list[Kind]] = [kind for shelf in SHELVES for kind in shelf.asking]

lifespan: Final = context.lifespan
extensions: Final = around.extensions


def register(*names: str) -> Callable[[MCPServer[Any], Tasks], None]:
    """Puts these tools on a server (all, when none is named), durable where the server knows tasks."""
    offers = {name: offer for shelf in SHELVES for name, offer in shelf.offers.items()}

    def tools(mcp: MCPServer[Any], tasks: Tasks) -> None:
        for name in names or offers:
            if name in offers:  # else an extension brings it, or nobody has it
                offers[name](mcp, tasks)
        context.furnish(mcp)
        mcp.middleware.append(around.middleware)

    return tools
