"""Settles a tool's questions on the request itself, before there is a task (SEP-2663: multi-round-trip first).

Nothing is stored: the client carries the state of the rounds. The tool's resolvers run here, in the server process; its
body only where it is a guard, which asks by returning and so cannot be asked without running it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import InputRequiredResult
from mcp_types.methods import is_input_required

from mcptasks import seams
from mcptasks.server import rounds
from mcptasks.server.intake import Call
from mcptasks.server.rounds import Settling
from mcptasks.wire import MODERN

log: Final = logging.getLogger("mcptasks.server")


async def next_round(mcp: MCPServer[Any], call: Call, settling: Settling, call_next: CallNext) -> HandlerResult | None:
    """What the request is answered with: the next questions, or a guard's result. None: a task is due.

    Raises:
        MCPError: a resolver or the guard ended with it; that is the answer of the live call, too.
    """
    tool = seams.get_tool(mcp, call.params.name)
    if tool is None or not call.policy.prelude or call.ctx.protocol_version not in MODERN:
        return None
    # The tool sees its own state, not ours around it. In place: the SDK hands this very object to the tool.
    call.params.request_state = settling.state
    if tool.resolved_params:
        try:
            asked = await seams.open_questions(mcp, tool, call.ctx, call.params)
        except MCPError:
            raise
        except Exception as exc:  # a declined answer, or a broken resolver: the task comes to the very same end
            log.debug("A resolver of %s ended with %s", call.params.name, type(exc).__name__)
            return None
        return None if asked is None else _carried(asked, settling)
    if not seams.is_guard(tool) or settling.rounds >= call.policy.prelude:
        return None
    result = await call_next(call.ctx)
    return _carried(result, settling) if is_input_required(result) else result


def _carried(result: InputRequiredResult | Mapping[str, Any], settling: Settling) -> HandlerResult:
    """The round's questions, with our state around the tool's."""
    wire = isinstance(result, Mapping)
    state = result.get("requestState") if wire else result.request_state
    onward = rounds.write(replace(settling, rounds=settling.rounds + 1, state=state))
    if wire:
        return {**result, "requestState": onward}
    return result.model_copy(update={"request_state": onward})
