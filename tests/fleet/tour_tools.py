"""The MCP server of the operators' tour: tools of every kind that an operator meets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from mcp.server.mcpserver import AcceptedElicitation, Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

import mcptasks
from mcptasks import Tasks

#: While it is there the billing system answers.
BILLING: Final = Path(os.environ.get("TOUR_BILLING", "/nonexistent"))

tasks = Tasks()
mcp = MCPServer("tour", extensions=[tasks])


class Approval(BaseModel):
    """What a person decides."""

    approve: bool = Field(description="Send the money")
    note: str = Field(default="", description="For the books")


@mcp.tool()
@tasks.durable()
async def count_words(text: str) -> int:
    """Ends at once."""
    return len(text.split())


@mcp.tool()
@tasks.durable()
async def crunch(pages: int, ctx: Context) -> str:
    """Takes a while, and says how far it is."""
    for page in range(pages):
        await ctx.report_progress(page + 1, pages, f"page {page + 1}")
        await asyncio.sleep(0.2)
    return f"{pages} pages"


@mcp.tool()
@tasks.durable()
async def refund(order: str, amount: int, ctx: Context) -> str:
    """Waits for a person."""
    await mcptasks.note(f"order {order} checked")
    answer = await ctx.elicit(f"Refund {amount} EUR for order {order}?", Approval)
    if not isinstance(answer, AcceptedElicitation) or not answer.data.approve:
        return "not refunded"
    return f"refunded {amount} EUR: {answer.data.note}"


@mcp.tool()
@tasks.durable()
async def bill(customer: str) -> str:
    """Fails for as long as the billing system is down."""
    if not BILLING.exists():
        raise MCPError(-32001, "The billing system does not answer")
    return f"billed {customer}"


@mcp.tool()
@tasks.durable(retry=["1h"])
async def sync(source: str) -> str:
    """Is to be tried again much later."""
    raise mcptasks.Retry(f"{source} refused the connection")


@mcp.tool()
@tasks.durable()
async def remind(name: str) -> str:
    """Sleeps, and costs nothing meanwhile."""
    await mcptasks.sleep("2d")
    return f"reminded {name}"


@mcp.tool()
@tasks.durable(queue="gpu")
async def render(scene: str) -> str:
    """Belongs to a queue that nobody may be serving."""
    return f"rendered {scene}"


@mcp.tool()
@tasks.durable()
async def export(rows: int) -> str:
    """Hands out a file."""
    await mcptasks.artifact("rows.csv", "n\n" + "\n".join(map(str, range(rows))), "text/csv")
    return f"{rows} rows"


celery = tasks.bind(mcp)
