"""What a server says of its tools, where a call depends on it."""

from __future__ import annotations

from typing import Any, Final, cast

from mcptasks.tracker.peer import Greeting, Peer

#: Of one server's list; more pages than that are a list that never ends.
_PAGES: Final = 100


class ToolList:
    """The tools of one server, listed once per session, and again when a tool is asked for that is not among them."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._greeting: Greeting | None = None
        self._tools: dict[str, dict[str, Any]] = {}

    async def find(self, name: str, *, fresh: bool = False) -> dict[str, Any] | None:
        """What the list says of this tool, or None; raises as `Peer.request`. `fresh`: as it is now."""
        greeting = await self._peer.greet()
        if fresh or greeting is not self._greeting or name not in self._tools:
            self._tools, self._greeting = await self._listed(), greeting
        return self._tools.get(name)

    async def _listed(self) -> dict[str, dict[str, Any]]:
        tools: dict[str, dict[str, Any]] = {}
        params: dict[str, Any] = {}
        for _ in range(_PAGES):
            page = await self._peer.request("tools/list", params)
            listed = page.get("tools")
            for tool in cast("list[Any]", listed) if isinstance(listed, list) else []:
                if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                    tools[tool["name"]] = cast("dict[str, Any]", tool)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                break
            params = {"cursor": cursor}
        return tools
