"""An operator's retry: a failed task's call made again, as a task of its own."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

from mcptasks import Operations
from mcptasks.errors import RetryRefused, Sealed, UnknownTask
from mcptasks.model import label
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from tests.requirements import covers
from tests.support.durable import answer_all, one, text, through
from tests.support.house import house
from tests.support.keys import SECRETS
from tests.support.tools import Word

pytestmark = pytest.mark.anyio


@covers("P30", "W6")
@pytest.mark.parametrize("keys", [(), SECRETS[:1]], ids=["plain", "sealed"])
async def test_a_failed_call_is_made_again_in_its_callers_name(settings: Settings, keys: Any) -> None:
    """Same tool, arguments, caller and terms; its questions are asked again, and the failed task stays as it is."""
    settings = settings.model_copy(update={"encryption_keys": keys})
    stock = list[int]()
    seen = list[Any]()

    async def order(item: str, ctx: Context) -> str:
        token = get_access_token()
        seen.append((item, token and token.subject))
        await ctx.elicit(f"Send {item}?", Word)
        if not stock:
            raise MCPError(-32050, "No stock")
        return f"sent {item}"

    options: Any = {"ttl": "2h", "retry": [1, 5], "time_limit": "10m", "cancel_grace": "7s", "max_attempts": 2}
    async with (
        house(settings, one(order, **options), auth=True, token="ann@app") as (home, client),
        Operations(settings) as fleet,
    ):
        failed_id = await client.start("tool", {"item": "tea"})
        await home.fleet.deliver()
        await answer_all(client, failed_id)
        failed = await through(home, client, failed_id)
        assert failed["status"] == "failed"
        stock.append(1)
        new_id = await fleet.retry(failed_id[:8])
        old, new = await fleet.read(failed_id), await fleet.read(new_id)
        for name in ("tool", "owner", "ttl_ms", "max_attempts", "queue", "hard_limit_ms", "version"):
            assert getattr(new, name) == getattr(old, name), name
        assert new_id != failed_id and not home.fleet.messages
        await home.fleet.sweep()
        await home.fleet.deliver()
        state = await client.state(new_id)
        assert state["status"] == "input_required", "it asks again"
        await answer_all(client, new_id)
        assert text(await through(home, client, new_id)) == "sent tea"
        assert seen == [("tea", "ann")] * 4
        assert await client.state(failed_id) == failed
        told = [entry.about for entry in await fleet.timeline(failed_id) if entry.what == "retried"]
        assert told == [{"as": label(new_id)}]
        found = [(entry.what, entry.about) for entry in await fleet.timeline(new_id)]
        assert found[1] == ("retried", {"of": label(failed_id)})
        assert [what for what, _ in found[2:]] == ["claim", "ask", "park", "answer", "claim", "end"]


async def fails() -> str:
    raise MCPError(-32050, "No stock")


@covers("P30")
async def test_only_what_has_failed_is_retried(settings: Settings, raw: redis.Redis) -> None:
    """What waits, was cancelled, or is not there is not; nor what an older version failed, without keeping its call."""
    async with house(settings, one(fails)) as (home, client), Operations(settings) as fleet:
        waits = await client.start("tool")
        with pytest.raises(RetryRefused, match="is queued; only a task that has failed"):
            await fleet.retry(waits)
        await client.cancel(waits)
        with pytest.raises(RetryRefused, match="is cancelled"):
            await fleet.retry(waits)
        with pytest.raises(UnknownTask):
            await fleet.retry("x" * 32)
        home.fleet.messages.clear()
        failed_id = await client.start("tool")
        await through(home, client, failed_id)
        raw.delete(Keys(settings.prefix).call(failed_id))
        with pytest.raises(RetryRefused, match="what was called is not kept"):
            await fleet.retry(failed_id)


@covers("T1")
async def test_a_retry_keeps_to_admission_and_limits(settings: Settings) -> None:
    """As every new task; nothing is stored of one that is refused."""
    async with house(settings, one(fails)) as (home, client):
        failed_id = await client.start("tool")
        await through(home, client, failed_id)
        async with Operations(settings.model_copy(update={"tool_max": 1})) as fleet:
            await fleet.close_admission("Moving house")
            with pytest.raises(RetryRefused, match="not accepted now \\(Moving house\\)"):
                await fleet.retry(failed_id)
            await fleet.open_admission()
            await client.start("tool")
            with pytest.raises(RetryRefused, match="limit of 1 tasks \\(tool_max\\)"):
                await fleet.retry(failed_id)
            assert "retried" not in [entry.what for entry in await fleet.timeline(failed_id)]
            assert len(await fleet.active()) == 1


@covers("B09")
async def test_a_sealed_call_is_not_retried_without_its_key(settings: Settings) -> None:
    """It is left as it is."""
    sealed = settings.model_copy(update={"encryption_keys": SECRETS[:1]})
    async with house(sealed, one(fails)) as (home, client):
        failed_id = await client.start("tool")
        await through(home, client, failed_id)
        async with Operations(settings) as fleet:
            with pytest.raises(Sealed):
                await fleet.retry(failed_id)
