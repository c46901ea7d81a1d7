"""A tool's own wish to be run again later."""

from __future__ import annotations

from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from mcptasks.runtime.current import current_run


class Retry(ToolError):
    """Raise it in a durable tool: the task waits for the next delay of its `retry=` list and runs again from the top.

    Recorded answers and steps are kept. With no delay left the task fails with `error`, or with the message as -32603.
    In a call that is no task it is an ordinary tool error with that message.

    Args:
        message: what the client reads as status message while the task waits.
        error: the JSON-RPC error to fail with in the end.
    """

    def __init__(self, message: str, *, error: MCPError | None = None) -> None:
        super().__init__(message)
        self.error = error
        # The SDK turns what a tool raises into a result; the run recognises its wish by this.
        if (run := current_run.get()) is not None:
            run.wishes.append(self)
