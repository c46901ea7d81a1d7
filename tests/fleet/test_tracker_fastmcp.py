"""The tracker's driver on a foreign server: FastMCP's tasks on Docket, in processes and a virtualenv of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing

import pytest

from benchmarks import fastmcp_env
from benchmarks.systems import fastmcp
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.tracker.remote import Driver, PushUnavailable, RemoteGone, RemoteStatus, Snapshot
from mcptasks.tracker.servers import Servers
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Of a server of FastMCP's that runs with its worker."""
    fastmcp_env.ensure()
    home = tmp_path_factory.mktemp("fastmcp")
    with EmbeddedValkey(home / "valkey") as valkey, fastmcp(valkey.url.rpartition("/")[0], home) as system:
        yield f"http://127.0.0.1:{system.port}/mcp"


@pytest.fixture
async def driver(url: str) -> AsyncGenerator[Driver]:
    async with Servers({"mcpServers": {"fastmcp": {"url": url}}}) as servers:
        yield servers.driver("fastmcp")


async def until(driver: Driver, handle: str | None, status: RemoteStatus) -> Snapshot:
    """What a look shows once the task has this status."""
    assert handle is not None

    async def look() -> Snapshot | None:
        shot = await driver.look(handle)
        return shot if shot.status is status else None

    return await eventually(look, description=f"the task is {status}")


async def test_a_task_is_followed_to_its_result(driver: Driver) -> None:
    """Issue 6: end to end against FastMCP's tasks server."""
    accepted = await driver.submit("add", {"a": 9007199254740992, "b": 1}, key="k")
    ended = await until(driver, accepted.handle, RemoteStatus.COMPLETED)
    assert ended.result is not None and ended.result["structuredContent"] == {"result": 9007199254740993}


async def test_an_ordinary_tool_answers_at_once(driver: Driver) -> None:
    """There is no task."""
    accepted = await driver.submit("plain_add", {"a": 1, "b": 2}, key="k")
    assert accepted.handle is None
    assert accepted.snapshot.result is not None and accepted.snapshot.result["structuredContent"] == {"result": 3}


async def test_a_question_is_answered_and_the_task_goes_on(driver: Driver) -> None:
    """`inputRequests`, `tasks/update`."""
    accepted = await driver.submit("ask", {}, key="k")
    shot = await until(driver, accepted.handle, RemoteStatus.INPUT_REQUIRED)
    (key,) = shot.questions
    assert shot.questions[key]["params"]["message"] == "Which?"
    assert accepted.handle is not None
    await driver.answer(accepted.handle, {key: {"action": "accept", "content": {"value": "this"}}})
    ended = await until(driver, accepted.handle, RemoteStatus.COMPLETED)
    assert ended.result is not None and ended.result["content"][0]["text"] == "this"


async def test_a_waiting_task_is_cancelled_and_an_unknown_one_is_gone(driver: Driver) -> None:
    """`tasks/cancel`; -32602."""
    accepted = await driver.submit("ask", {}, key="k")
    await until(driver, accepted.handle, RemoteStatus.INPUT_REQUIRED)
    assert accepted.handle is not None
    await driver.cancel(accepted.handle)
    await until(driver, accepted.handle, RemoteStatus.CANCELLED)
    with pytest.raises(RemoteGone):
        await driver.look("0" * 32)


async def test_it_has_no_push(driver: Driver) -> None:
    """FastMCP tells of no tasks; it is polled."""
    async with aclosing(driver.listen(["0" * 32])) as told:
        with pytest.raises(PushUnavailable):
            await anext(told)
