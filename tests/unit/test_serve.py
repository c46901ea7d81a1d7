"""`mcptasks serve`: what its connections are like."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest
import uvicorn
from starlette.applications import Starlette

from mcptasks.cli.serve import bound
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_every_answer_leaves_at_once() -> None:
    """Nagle's algorithm held the second write of an answer back for the client's delayed ACK: 40 ms a request.

    The server's own ends of its connections are looked at, because only they show the option.
    """
    server = uvicorn.Server(uvicorn.Config(Starlette(), log_config=None, lifespan="off"))
    with bound("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        async def accepted() -> list[socket.socket]:
            open_now = cast("set[Any]", server.server_state.connections)
            return [each.transport.get_extra_info("socket") for each in open_now]

        await eventually(_started(server), description="the server serves")
        _, writer = await asyncio.open_connection(*listener.getsockname())
        [connection] = await eventually(accepted, description="the server has the connection")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        server.should_exit = True
        await serving


def _started(server: uvicorn.Server) -> Any:
    async def started() -> bool:
        return server.started

    return started
