"""Drivers on a stub server, as the tracker's tests use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcptasks.tracker.http_peer import Auth
from mcptasks.tracker.remote import Driver
from mcptasks.tracker.servers import Servers
from tests.support.stub_server import StubServer


@asynccontextmanager
async def driving(
    stub: StubServer, *, headers: Mapping[str, str] | None = None, auth: Auth | None = None, **speaking: Any
) -> AsyncGenerator[Driver]:
    """The driver of this server; `speaking`: its settings under the key `mcptasks`."""
    entry = {"url": stub.url, "headers": dict(headers or {}), "mcptasks": {"timeout": 10, **speaking}}
    async with Servers({"mcpServers": {"stub": entry}}, auth={} if auth is None else {"stub": auth}) as servers:
        yield servers.driver("stub")
