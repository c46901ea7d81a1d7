"""The tracker's drivers on this project's own server, over real HTTP: what mcptasks says, mcptasks understands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from mcptasks import Tasks
from mcptasks.cli.serve import bound
from mcptasks.settings import Settings
from mcptasks.tracker.remote import Driver, RemoteGone, RemoteRefused, RemoteStatus, Snapshot
from mcptasks.tracker.servers import Servers
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.tools import ask_both
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

TRANSPORTS: Final[dict[str, dict[str, Any]]] = {
    "streams": {},
    "json": {"json_response": True},
    "stateless": {"stateless_http": True},
}


class Tools:
    """One tool per way to end; one stands at a gate."""

    def __init__(self) -> None:
        self.gate, self.runs = Gate(), 0

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def wait(n: int, ctx: Context) -> dict[str, int]:
            self.runs += 1
            await ctx.report_progress(1, 2, "half")
            await self.gate.wait()
            return {"n": n}

        @mcp.tool()
        @tasks.durable()
        async def refuse() -> str:
            raise ToolError("not today")

        @mcp.tool()
        @tasks.durable()
        async def break_protocol() -> str:
            raise MCPError(-32050, "out of paper", {"tray": 2})

        @mcp.tool()
        async def live() -> str:
            return "at once"

        mcp.tool()(tasks.durable()(ask_both))


@asynccontextmanager
async def served(home: House, **how: Any) -> AsyncGenerator[str]:
    """The URL of a server on a real port."""
    mcp, tasks = home.make_server()
    listener = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(mcp.streamable_http_app(**how), log_config=None, ws="none"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await serving
        await tasks._store.aclose()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture(params=TRANSPORTS)
async def driver(settings: Settings, tools: Tools, request: pytest.FixtureRequest) -> AsyncGenerator[Driver]:
    async with (
        house(settings, tools) as (home, _),
        home.fleet.delivering(),
        served(home, **TRANSPORTS[request.param]) as url,
        Servers({"mcpServers": {"own": {"url": url, "mcptasks": {"timeout": 20}}}}) as servers,
    ):
        yield servers.driver("own")


async def start(driver: Driver, tool: str, key: str = "k", **arguments: Any) -> str:
    """The handle of a task that was just made."""
    handle = (await driver.submit(tool, arguments, key=key)).handle
    assert handle is not None
    return handle


async def until(driver: Driver, handle: str, status: RemoteStatus) -> Snapshot:
    """What a look shows once the task has this status."""

    async def look() -> Snapshot | None:
        shot = await driver.look(handle)
        return shot if shot.status is status else None

    return await eventually(look, description=f"the task is {status}")


@covers("D3", "F05")
async def test_a_task_is_followed_to_its_result(driver: Driver, tools: Tools) -> None:
    """Its message, its hint, its digits."""
    handle = await start(driver, "wait", n=9007199254740993)
    await tools.gate.arrival()
    shot = await until(driver, handle, RemoteStatus.WORKING)
    assert type(shot.hint) is int
    tools.gate.opened.set()
    ended = await until(driver, handle, RemoteStatus.COMPLETED)
    assert ended.result is not None and ended.result["structuredContent"] == {"n": 9007199254740993}


async def test_the_same_key_is_the_same_task(driver: Driver, tools: Tools) -> None:
    """Our server honours the key, and refuses it for another call."""
    tools.gate.opened.set()
    first, second = await start(driver, "wait", n=1), await start(driver, "wait", n=1)
    assert first == second
    await until(driver, first, RemoteStatus.COMPLETED)
    assert tools.runs == 1
    with pytest.raises(RemoteRefused, match="key was used before with other arguments"):
        await driver.submit("wait", {"n": 2}, key="k")


async def test_each_end_is_told_apart(driver: Driver) -> None:
    """A tool error is completed, a protocol error failed, an ordinary tool no task, bad arguments the tool's error."""
    refused = await until(driver, await start(driver, "refuse"), RemoteStatus.COMPLETED)
    assert refused.result is not None and refused.result["isError"]
    broken = await until(driver, await start(driver, "break_protocol"), RemoteStatus.FAILED)
    assert broken.error == {"code": -32050, "message": "out of paper", "data": {"tray": 2}}
    live = await driver.submit("live", {}, key="k")
    assert live.handle is None and live.snapshot.result is not None
    bad = await driver.submit("wait", {"n": "many"}, key="k")
    assert bad.handle is None and bad.snapshot.result is not None and bad.snapshot.result["isError"]


async def test_questions_are_answered(driver: Driver) -> None:
    """A subset first; what does not fit is refused, and the task is not taken for gone."""
    handle = await start(driver, "ask_both")
    shot = await until(driver, handle, RemoteStatus.INPUT_REQUIRED)
    keys = {question["params"]["message"]: key for key, question in shot.questions.items()}
    assert keys.keys() == {"Left?", "Right?"}
    with pytest.raises(RemoteRefused) as caught:
        await driver.answer(handle, {keys["Left?"]: {"action": "accept", "content": {"word": 7}}})
    assert caught.value.code == -32602
    await driver.answer(handle, {keys["Left?"]: {"action": "accept", "content": {"word": "in"}}})
    assert (await driver.look(handle)).questions.keys() == {keys["Right?"]}
    await driver.answer(handle, {keys["Right?"]: {"action": "accept", "content": {"word": "out"}}})
    ended = await until(driver, handle, RemoteStatus.COMPLETED)
    assert ended.result is not None and ended.result["content"][0]["text"] == "in out"


async def test_a_cancel_is_heard(driver: Driver, tools: Tools) -> None:
    """And an unknown task is gone."""
    handle = await start(driver, "wait", n=1)
    await tools.gate.arrival()
    await driver.cancel(handle)
    await until(driver, handle, RemoteStatus.CANCELLED)
    for call in (driver.look("n" * 32), driver.answer("n" * 32, {}), driver.cancel("n" * 32)):
        with pytest.raises(RemoteGone):
            await call


async def test_tasks_are_told_of_on_one_stream(driver: Driver, tools: Tools) -> None:
    """Each task's state first, then its changes, until its end."""
    handles = [await start(driver, "wait", f"k{n}", n=n) for n in range(3)]
    ended: dict[str, Snapshot] = {}
    async with asyncio.timeout(30), aclosing(driver.listen([*handles, "n" * 32])) as told:
        async for handle, shot in told:
            tools.gate.opened.set()  # it is heard: now they may end
            if shot.status.terminal:
                ended[handle] = shot
            if ended.keys() == set(handles):
                break
    results = [ended[handle].result for handle in handles]
    assert [result["structuredContent"]["n"] for result in results if result is not None] == [0, 1, 2]
