"""A server over stdio whose tasks somebody else makes: `python -m tests.protocol.stdio_server`."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.model import Hint


class NoFleet:
    """No call is made here."""

    def send(self, hint: Hint) -> None:
        """Nobody to send it to."""
        raise NotImplementedError

    def envelope(self, hint: Hint) -> None:
        """Nothing goes along."""


if __name__ == "__main__":
    tasks = Tasks()
    server = MCPServer("stdio", extensions=[tasks])
    tasks.serve(server, NoFleet())
    server.run("stdio")
