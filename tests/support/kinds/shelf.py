"""One kind of tool, one call of it, and the shelves on which they stand in `docs/compatibility.md`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks

F = TypeVar("F", bound=Callable[..., Any])

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"


class Reply(StrEnum):
    """What the client does with each question."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    #: It did not declare that it can be asked.
    UNABLE = "unable"


@dataclass(frozen=True, kw_only=True)
class Differs:
    """Where the task's answer is not the live one: both, and why."""

    #: To be found in the live answer, and in the task's.
    live: str
    task: str
    #: For the page.
    why: str
    #: A client that knows no tasks gets the live answer all the same.
    waiting_is_live: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A tool of some kind, and a call of it."""

    #: In a few words, for the page.
    says: str
    tool: str
    arguments: dict[str, Any]
    #: Other tools that it calls.
    needs: tuple[str, ...] = ()
    #: The protocol versions on which a live call can be answered; both for a tool that asks nobody.
    live_on: tuple[str, ...] = (MODERN, LEGACY)
    reply: Reply = Reply.ACCEPT
    differs: Differs | None = None

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.tool}: {self.says}" + ("" if self.reply is Reply.ACCEPT else f" ({self.reply})")

    @property
    def tools(self) -> tuple[str, ...]:
        """Everything that its server must have."""
        return (self.tool, *self.needs)


class Shelf:
    """Kinds that belong together."""

    def __init__(self, title: str) -> None:
        self.title = title
        #: Of tools that ask nobody.
        self.quiet: list[Kind] = []
        #: Of tools that ask the client.
        self.asking: list[Kind] = []
        #: Of calls that never become a task: the live answer is theirs.
        self.refused: list[Kind] = []
        #: By its name, how a tool comes on a server; it is durable where the server knows tasks.
        self.offers: dict[str, Callable[[MCPServer[Any], Tasks], None]] = {}

    def tool(
        self,
        says: str,
        arguments: dict[str, Any] | None = None,
        /,
        *,
        needs: tuple[str, ...] = (),
        differs: Differs | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """The decorated function is a tool that asks nobody; `options` are those of `MCPServer.tool`."""

        def put(fn: F) -> F:
            name = self.offer(fn, **options)
            self.quiet.append(Kind(says=says, tool=name, arguments=arguments or {}, needs=needs, differs=differs))
            return fn

        return put

    def asks(
        self,
        says: str,
        arguments: dict[str, Any] | None = None,
        /,
        *,
        needs: tuple[str, ...] = (),
        live_on: tuple[str, ...] = (MODERN, LEGACY),
        replies: tuple[Reply, ...] = (Reply.ACCEPT,),
        differs: Differs | None = None,
    ) -> Callable[[F], F]:
        """The decorated function is a tool that asks the client, answered in each of these ways."""

        def put(fn: F) -> F:
            name = self.offer(fn)
            for reply in replies:
                self.asking.append(
                    Kind(
                        says=says,
                        tool=name,
                        arguments=arguments or {},
                        needs=needs,
                        live_on=live_on,
                        reply=reply,
                        differs=differs,
                    )
                )
            return fn

        return put

    def call(self, tool: str, says: str, arguments: dict[str, Any]) -> None:
        """One more call of a tool that asks nobody."""
        self.quiet.append(Kind(says=says, tool=tool, arguments=arguments))

    def refuse(self, tool: str, says: str, arguments: dict[str, Any], *, needs: tuple[str, ...] = ()) -> None:
        """A call that the SDK refuses before the tool runs."""
        self.refused.append(Kind(says=says, tool=tool, arguments=arguments, needs=needs))

    def offer(self, fn: Callable[..., Any], **options: Any) -> str:
        """The function is a tool under the returned name; `options` are those of `MCPServer.tool`."""
        name = str(options.get("name") or fn.__name__)

        def put_on(mcp: MCPServer[Any], tasks: Tasks) -> None:
            # A bound method cannot carry a policy: its class decorates the function.
            tasks.durable()(getattr(fn, "__func__", fn))
            mcp.tool(**options)(fn)

        self.offers[name] = put_on
        return name
