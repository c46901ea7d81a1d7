"""A tool that asks comes to the result of the live call, whoever its client is (P32), and where no live call can."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from mcp import Client, InputRequiredRoundsExceededError
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from mcptasks.client import TasksClient
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support import kinds
from tests.support.house import house, ordinary
from tests.support.kinds.shelf import LEGACY, MODERN, Kind, Reply
from tests.support.person import elicit, person

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The (roots|sampling) capability is deprecated"),
]

MODES: Final = {MODERN: "auto", LEGACY: "legacy"}


def answering(kind: Kind, **options: Any) -> Mapping[str, Any]:
    """The options of a client that answers as the kind has it."""

    async def decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action=kind.reply.value)  # type: ignore[arg-type]

    callback = {Reply.ACCEPT: elicit, Reply.UNABLE: None}.get(kind.reply, decline)
    return {"elicitation_callback": callback, **options}


async def outcome(client: Client, kind: Kind) -> str:
    """What the call comes to: all of its result but for the stamp, or its error."""
    try:
        result = await client.call_tool(kind.tool, kind.arguments)
    except MCPError as exc:
        return f"{exc.error.code} {exc.error.message} {json.dumps(exc.error.data)}"
    except InputRequiredRoundsExceededError as exc:
        return str(exc)
    return result.model_dump_json(by_alias=True, exclude={"meta", "result_type"})


async def live(kind: Kind, version: str) -> str:
    """What a server without tasks answers to a client of that version."""
    server = ordinary(kinds.register(*kind.tools), kinds.extensions, lifespan=kinds.lifespan)
    async with person(server, **answering(kind, mode=MODES[version])) as client:
        return await outcome(client, kind)


async def durable(settings: Settings, kind: Kind) -> dict[str, str]:
    """What the call comes to for a client that knows tasks, and for those of each version that know none."""
    clients = {"tasks": {"extensions": [TasksClient()]}, MODERN: {"mode": "auto"}, LEGACY: {"mode": "legacy"}}
    tools, settings = kinds.register(*kind.tools), settings.model_copy(update={"replays_max": 20})
    async with house(settings, tools, lifespan=kinds.lifespan, extensions=kinds.extensions) as (home, _):
        outcomes: dict[str, str] = {}
        async with home.fleet.delivering():
            for name, options in clients.items():
                async with person(home.mcp, **answering(kind, **options)) as client:
                    outcomes[name] = await outcome(client, kind)
        return outcomes


@covers("P32", "R3", "C14")
@pytest.mark.parametrize("kind", [kind for kind in kinds.ASKING if kind.differs is None], ids=lambda kind: kind.id)
async def test_a_tool_that_asks_comes_to_the_live_result(settings: Settings, kind: Kind) -> None:
    """The three ways to ask work unmodified, and the answers lead to what they lead to live, where they can."""
    found = await durable(settings, kind)
    assert len(set(found.values())) == 1, found
    for version in MODES:
        there = await live(kind, version)
        if version in kind.live_on:
            assert found["tasks"] == there, version
        else:
            assert found["tasks"] != there, f"live it can be asked on {version}, too"


@covers("P32", "C14", "E03")
@pytest.mark.parametrize("kind", [kind for kind in kinds.ASKING if kind.differs is not None], ids=lambda kind: kind.id)
async def test_where_a_task_that_asks_differs_it_differs_as_the_page_says(settings: Settings, kind: Kind) -> None:
    """Ours: no difference is unexplained, and none that is explained has gone."""
    assert kind.differs is not None
    for version in kind.live_on:
        assert kind.differs.live in await live(kind, version)
    for client, found in (await durable(settings, kind)).items():
        assert kind.differs.task in found, client
