"""A whole installation in one event loop: MCP servers over HTTP, the real store, a fleet that the test drives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio
import httpx2
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Extension, MCPServer
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

from mcptasks import Tasks
from mcptasks.server.owner import OwnerOf, token_owner
from mcptasks.settings import Settings
from tests.support.inline_fleet import InlineFleet
from tests.support.listening import Listener, listening
from tests.support.raw_client import URL, RawClient

#: Registers a test's tools on a server.
Tools = Callable[[MCPServer, Tasks], None]
#: Makes the extensions that a server has besides tasks.
Extensions = Callable[[Tasks], Sequence[Extension]]

_ISSUER: Final = AnyHttpUrl("https://issuer.example")


def no_extensions(_: Tasks) -> Sequence[Extension]:
    """A server with nothing but tasks."""
    return []


class Gate:
    """A place in a tool where the test finds it, and lets it go on."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        #: How often a tool came here.
        self.arrivals = 0

    async def wait(self) -> None:
        """The tool stands here until the gate is opened."""
        self.arrivals += 1
        self.reached.set()
        await self.opened.wait()

    async def arrival(self) -> None:
        """A tool stands at the gate."""
        async with asyncio.timeout(30):
            await self.reached.wait()


class Bearers:
    """Knows the bearers that look like `subject@client!issuer#serial`; all but the subject may be missing.

    A serial such as `until=1700000000` says until when the token is good, in Unix seconds.
    """

    async def verify_token(self, token: str) -> AccessToken | None:
        """The identity that the token's own text names; nobody for "stranger"."""
        if token == "stranger":
            return None
        identity, _, serial = token.partition("#")
        identity, _, issuer = identity.partition("!")
        subject, _, client = identity.partition("@")
        claims = {"iss": issuer or str(_ISSUER)}
        until = int(serial.removeprefix("until=")) if serial.startswith("until=") else None
        return AccessToken(
            token=token, client_id=client or "app", scopes=[], subject=subject, claims=claims, expires_at=until
        )


class NoTasks:
    """Stands for `Tasks` where the same tools are to be ordinary ones."""

    def durable(self, **_: Any) -> Callable[[Any], Any]:
        """The function as it is."""
        return lambda fn: fn


def ordinary(tools: Tools, extensions: Extensions = no_extensions, **options: Any) -> MCPServer:
    """A server that has the same tools and knows no tasks."""
    no_tasks = cast("Tasks", NoTasks())
    mcp = MCPServer("house", extensions=extensions(no_tasks), **options)
    tools(mcp, no_tasks)
    return mcp


@dataclass
class House:
    """What a test talks to."""

    settings: Settings
    fleet: InlineFleet
    _tools: Tools
    _owner: OwnerOf
    _auth: bool
    _lifespan: Any
    _extensions: Extensions
    _stack: AsyncExitStack
    _doors: dict[int, AsyncExitStack] = field(default_factory=dict[int, AsyncExitStack])
    _apps: dict[int, Starlette] = field(default_factory=dict[int, Starlette])
    #: The first server; its client comes with the house.
    mcp: MCPServer = field(init=False)
    #: What makes the first server's tools durable.
    tasks: Tasks = field(init=False)

    def make_server(self, *, auth: bool | None = None) -> tuple[MCPServer, Tasks]:
        """A server as a user writes it, except that the fleet is ours: `serve` stands for `bind`."""
        tasks = Tasks(self.settings, owner=self._owner)
        mcp = MCPServer("house", extensions=[tasks, *self._extensions(tasks)], **self._options(auth))
        self._tools(mcp, tasks)
        tasks.serve(mcp, self.fleet)
        return mcp, tasks

    async def open(self, *, auth: bool | None = None, **caller: Any) -> RawClient:
        """A further server process on the same store (as far as one loop can play two), and a client of it."""
        mcp, tasks = self.make_server(auth=auth)
        return await self.open_server(mcp, tasks, **caller)

    async def open_ordinary(self, **caller: Any) -> RawClient:
        """A server that has the same tools and knows no tasks: what it answers is the live answer."""
        return await self._open(ordinary(self._tools, self._extensions, **self._options(None)), **caller)

    def _options(self, auth: bool | None) -> dict[str, Any]:
        options: dict[str, Any] = {"lifespan": self._lifespan}
        if self._auth if auth is None else auth:
            access = AuthSettings(issuer_url=_ISSUER, resource_server_url=None)
            options |= {"auth": access, "token_verifier": Bearers()}
        return options

    async def open_server(self, mcp: MCPServer, tasks: Tasks, **caller: Any) -> RawClient:
        """A client of the server, which now accepts HTTP requests."""
        client = await self._open(mcp, **caller)
        self._doors[id(client.http)].push_async_callback(tasks._store.aclose)  # pyright: ignore[reportPrivateUsage]
        return client

    async def kill(self, client: RawClient) -> None:
        """The server behind this client is gone."""
        await self._doors.pop(id(client.http)).aclose()

    @asynccontextmanager
    async def listen(self, client: RawClient, *task_ids: str, **more: Any) -> AsyncGenerator[Listener]:
        """A stream on which the client is told of the tasks."""
        async with listening(self._apps[id(client.http)], client, list(task_ids), **more) as listener:
            yield listener

    async def _open(self, mcp: MCPServer, **caller: Any) -> RawClient:
        app = mcp.streamable_http_app(json_response=True)
        door = await self._stack.enter_async_context(AsyncExitStack())
        await door.enter_async_context(_lifespan(app))
        http = await door.enter_async_context(
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=URL, timeout=60)
        )
        self._doors[id(http)], self._apps[id(http)] = door, app
        return RawClient(http=http, **caller)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncGenerator[None]:
    """The app serves. In a task of its own: its task group would wrap whatever a test raises."""
    started, stop = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with app.router.lifespan_context(app):
            started.set()
            await stop.wait()

    task = asyncio.get_running_loop().create_task(run())
    starting = asyncio.get_running_loop().create_task(started.wait())
    await asyncio.wait({task, starting}, return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    try:
        yield
    finally:
        stop.set()
        await task


@asynccontextmanager
async def house(
    settings: Settings,
    tools: Tools,
    *,
    owner: OwnerOf = token_owner,
    auth: bool = False,
    lifespan: Any = None,
    extensions: Extensions = no_extensions,
    **caller: Any,
) -> AsyncGenerator[tuple[House, RawClient]]:
    """One server and one worker run on the settings' store; the client is the server's.

    Nothing in it may wait for longer than a minute.
    """
    with anyio.fail_after(60):
        async with AsyncExitStack() as stack:
            home = House(settings, InlineFleet(), tools, owner, auth, lifespan, extensions, stack)
            mcp, tasks = home.make_server()
            home.mcp, home.tasks = mcp, tasks
            await stack.enter_async_context(home.fleet.working(settings, mcp))
            yield home, await home.open_server(mcp, tasks, **caller)
