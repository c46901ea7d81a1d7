"""When a call becomes a task: per tool, or decided per call by a function of the call and its caller (ours)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolRequestParams

from mcptasks import Mode, Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house

pytestmark = pytest.mark.anyio

MISSING: Final = -32021


class Chooser:
    """A tool whose mode is what its argument says; remembers what the policy function was given."""

    def __init__(self, wrap: Callable[[str], Any]) -> None:
        self.wrap = wrap
        self.asked: list[tuple[CallToolRequestParams, str]] = []

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        def mode(params: CallToolRequestParams, owner: str) -> Any:
            self.asked.append((params, owner))
            return self.wrap((params.arguments or {})["mode"])

        @mcp.tool()
        @tasks.durable(mode=mode)
        async def chosen(mode: str) -> str:
            return mode

        @mcp.tool()
        @tasks.durable(mode="forbidden")
        async def never() -> str:
            return "inline"


async def later(value: str) -> str:
    """The mode, after a pause in which other calls go on."""
    await asyncio.sleep(0)
    return value


@covers("N1")
@pytest.mark.parametrize("wrap", [str, Mode, later], ids=["text", "Mode", "async"])
async def test_a_function_decides_for_each_call(settings: Settings, wrap: Callable[[str], Any]) -> None:
    """Ours: forbidden, optional or required per call; the function may be async and may answer in text."""
    async with house(settings, Chooser(wrap)) as (home, client), home.fleet.delivering():
        kinds: dict[str, list[Any]] = {}
        for mode in ("forbidden", "optional", "required"):
            for caller in (client, client.undeclared()):
                body = (await caller.call("chosen", {"mode": mode})).body
                kinds.setdefault(mode, []).append(
                    body["result"]["resultType"] if "result" in body else body["error"]["code"]
                )

        assert kinds == {
            "forbidden": ["complete", "complete"],
            "optional": ["task", "complete"],
            "required": ["task", MISSING],
        }


@covers("N1", "N3")
async def test_the_function_knows_the_call_and_the_caller(settings: Settings) -> None:
    """Ours: it gets the call's params and the owner string that the task will have, no token and no request."""
    chooser = Chooser(str)
    async with house(settings, chooser, auth=True, token="alice@reports") as (_, client):
        await client.call("chosen", {"mode": "optional"})

        [(params, owner)] = chooser.asked
        assert (params.name, params.arguments) == ("chosen", {"mode": "optional"})
        assert owner == '["reports","https://issuer.example/","alice"]'


@covers("N1")
async def test_a_forbidden_tool_is_answered_at_once(settings: Settings, raw: redis.Redis) -> None:
    """Ours: declared or not, the tool is what it was before it knew of tasks."""
    async with house(settings, Chooser(str)) as (home, client):
        live = await (await home.open_ordinary()).call("never")
        assert live == await client.call("never") == await client.undeclared().call("never")
        assert list(raw.scan_iter(f"{settings.prefix}*")) == []


def breaks(mode: str) -> Any:
    raise LookupError("secret of the policy function")


@covers("N1", "W9")
@pytest.mark.parametrize("wrap", [breaks, lambda _: "perhaps", lambda _: None], ids=["raises", "junk", "None"])
async def test_a_function_that_cannot_decide_refuses_the_call(
    settings: Settings, raw: redis.Redis, wrap: Callable[[str], Any]
) -> None:
    """Ours: no decision is neither a yes nor a no. The call is an internal error, runs nowhere and leaves nothing."""
    async with house(settings, Chooser(wrap)) as (home, client):
        for caller in (client, client.undeclared()):
            reply = await caller.call("chosen", {"mode": "optional"})
            assert reply.error["code"] == -32603
            assert b"secret" not in reply.raw
        assert list(raw.scan_iter(f"{settings.prefix}*")) == [] and home.fleet.messages == []
