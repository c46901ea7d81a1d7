"""`order_supplies`: reserve, ask, charge. Each step leaves one line in a ledger, so that one sees it ran once."""

import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

import mcptasks
from workers.tools.approval import ask_approval

_PRICES_IN_CENTS: Final = {"envelopes": 450, "ink": 2_990, "notebooks": 320, "paper": 650, "pens": 180, "staples": 210}


class OrderLine(BaseModel):
    """One article of the order."""

    article: str = Field(max_length=40)
    quantity: int = Field(ge=1, le=1_000)


class Order(BaseModel):
    """How an order ended."""

    reservation: str
    status: Literal["charged", "released"]
    total_cents: int
    message: str
    note: str = Field(description="What the person wrote")


def ledger_path() -> Path:
    """Where the steps leave their lines: MCPTASKS_SAMPLES_LEDGER, else the samples' folder for temporary files."""
    chosen = os.environ.get("MCPTASKS_SAMPLES_LEDGER")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "mcptasks-samples" / "ledger.jsonl"


def _write(step: str, reservation: str, total_cents: int) -> dict[str, Any]:
    """The ledger has one more line; returns it."""
    line = {"step": step, "reservation": reservation, "total_cents": total_cents}
    path = ledger_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write in append mode: workers of the fleet share the file and must not tear each other's lines.
        with path.open("ab", buffering=0) as ledger:
            ledger.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        raise ToolError(f"The ledger cannot be written ({error.strerror}); the step {step!r} was not done.") from error
    return line


def _reserve(total_cents: int) -> dict[str, Any]:
    return _write("reserve", f"R-{uuid.uuid4().hex[:8]}", total_cents)


def _total(items: list[OrderLine]) -> int:
    unknown = sorted({item.article for item in items} - _PRICES_IN_CENTS.keys())
    if unknown:
        raise ToolError(f"Not in the catalogue: {', '.join(unknown)}. There are: {', '.join(_PRICES_IN_CENTS)}.")
    return sum(item.quantity * _PRICES_IN_CENTS[item.article] for item in items)


def _question(items: list[OrderLine], reservation: str, total_cents: int) -> str:
    listed = ", ".join(f"{item.quantity} {item.article}" for item in items)
    return f"Order {listed} for {total_cents / 100:.2f} EUR? Reserved as {reservation}."


async def order_supplies(items: Annotated[list[OrderLine], Field(min_length=1, max_length=50)], ctx: Context) -> Order:
    """Order office supplies: reserve them, ask a person to confirm the price, then charge it or release the goods.

    A step that is done is not repeated, also when the wait for the person outlives the worker.

    Args:
        items: What to order. Articles: envelopes, ink, notebooks, paper, pens, staples.
    """
    total = _total(items)
    # The reservation number is random, yet the question is the same in each run: the step's result is stored.
    reserved = await mcptasks.step("reserve", _reserve, total)
    reservation = reserved["reservation"]
    await ctx.report_progress(1, 3, "reserved, waiting for confirmation")
    verdict = await ask_approval(ctx, _question(items, reservation, total))
    await ctx.report_progress(2, 3, f"the person {verdict.words}")
    action = "charge" if verdict.approved else "release"
    await mcptasks.step(action, _write, action, reservation, total)
    status: Literal["charged", "released"] = "charged" if verdict.approved else "released"
    await ctx.report_progress(3, 3, status)
    message = f"The person {verdict.words}; reservation {reservation} was {status}."
    return Order(reservation=reservation, status=status, total_cents=total, message=message, note=verdict.note)
