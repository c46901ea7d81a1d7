"""One process and one server: the pool, its limits, who we are, and programs over stdio."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Generator, Mapping
from typing import Any

import httpx2
import psutil
import pytest

from mcptasks.tracker import stdio_peer
from mcptasks.tracker.remote import Accepted, ProtocolBroken, RemoteGone, RemoteStatus, RemoteUnavailable
from mcptasks.tracker.servers import Servers
from tests.requirements import covers
from tests.support import stub_faults as faults
from tests.support.remote import driving
from tests.support.stub_server import StubServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def stub() -> Generator[StubServer]:
    with StubServer() as server:
        yield server


async def test_requests_share_connections_and_all_are_closed(stub: StubServer) -> None:
    """200 looks, at most as many connections as may be used at a time."""
    async with driving(stub, driver="tasks", max_concurrency=4) as driver:
        handle = (await driver.submit("build", {}, key="k")).handle
        assert handle is not None
        await asyncio.gather(*(driver.look(handle) for _ in range(200)))
        assert stub.connections <= 4

    async def closed() -> bool:
        return stub.open_connections == 0

    await eventually(closed, description="no connection is open")


async def test_no_more_requests_at_a_time_than_allowed(stub: StubServer) -> None:
    """The rest waits, and its own time limit does not run meanwhile."""
    async with driving(stub, driver="tasks", max_concurrency=2, timeout="2s") as driver:
        handle = (await driver.submit("build", {}, key="k")).handle
        assert handle is not None
        stub.cancel_delay_s = 0.6
        cancels = asyncio.gather(*(driver.cancel(handle) for _ in range(8)))
        started = time.monotonic()
        await cancels
        assert time.monotonic() - started >= 4 * 0.6 - 0.1
        times = [seen.at for seen in stub.asked("tasks/cancel")]
        assert all(later - earlier >= 0.5 for earlier, later in zip(times, times[2:], strict=False))


async def test_requests_keep_their_pace(stub: StubServer) -> None:
    """So many per second, evenly spread."""
    async with driving(stub, driver="tasks", rate=50) as driver:
        handle = (await driver.submit("build", {}, key="k")).handle
        assert handle is not None
        started = time.monotonic()
        await asyncio.gather(*(driver.look(handle) for _ in range(25)))
        assert time.monotonic() - started >= 0.45


async def test_a_request_whose_turn_does_not_come_was_not_sent(stub: StubServer) -> None:
    """It may be sent again; and what gave up takes no turn from the others."""
    async with driving(stub, driver="tasks", max_concurrency=1, timeout="1s") as driver:
        handle = (await driver.submit("build", {}, key="k")).handle
        assert handle is not None
        stub.always("tasks/get", faults.silent(20))
        before = stub.counts["tasks/get"]
        found = await asyncio.gather(*(driver.look(handle) for _ in range(5)), return_exceptions=True)
        sent = [error.sent for error in found if isinstance(error, RemoteUnavailable)]
        assert len(sent) == 5 and 0 < sent.count(True) == stub.counts["tasks/get"] - before < 5
        stub.always("tasks/get", None)
        await driver.look(handle)
    async with driving(stub, driver="tasks", rate=2, timeout="1200ms") as driver:
        found = await asyncio.gather(*(driver.look(handle) for _ in range(8)), return_exceptions=True)
        late = [error for error in found if isinstance(error, RemoteUnavailable)]
        assert len(late) == 5 and not any(error.sent for error in late)


async def test_no_log_line_has_the_url_or_a_header(stub: StubServer, caplog: pytest.LogCaptureFixture) -> None:
    """Both may hold secrets; what else of httpx2's is logged is as before."""
    caplog.set_level(logging.DEBUG)
    entry = {"url": f"{stub.url}?token=SECRET", "headers": {"Authorization": "Bearer SECRET"}}
    async with Servers({"mcpServers": {"stub": entry}}) as servers:
        await servers.driver("stub").submit("build", {"password": "SECRET"}, key="k")
        with pytest.raises(RemoteGone):
            await servers.driver("stub").look("x")
    async with httpx2.AsyncClient() as other:
        await other.get(stub.url)
    assert "SECRET" not in caplog.text
    assert [record.message for record in caplog.records if record.name == "httpx2"] == [
        f'HTTP Request: GET {stub.url} "HTTP/1.1 405 Stub"'
    ]


class Door:
    """A hook that has another token each time."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> Mapping[str, str]:
        self.calls += 1
        return {"Authorization": f"Bearer {self.calls}"}


async def test_the_hook_is_asked_again_after_a_401_once(stub: StubServer) -> None:
    """Tokens expire; one that is refused at once is refused."""
    door = Door()
    async with driving(stub, headers={"X-Team": "blue", "Authorization": "none"}, auth=door, driver="tasks") as driver:
        stub.authorization = "Bearer 1"
        handle = (await driver.submit("build", {}, key="k")).handle
        assert handle is not None
        await driver.look(handle)
        assert door.calls == 1
        stub.authorization = "Bearer 2"
        await driver.look(handle)
        assert door.calls == 2 and stub.log[-1].headers["x-team"] == "blue"
        stub.authorization = "Bearer secret"
        with pytest.raises(RemoteUnavailable, match="HTTP 401") as caught:
            await driver.look(handle)
        assert not caught.value.sent and door.calls == 3
        stub.authorization = "Bearer 4"
        assert (await driver.look(handle)).status is RemoteStatus.COMPLETED


async def test_a_hook_that_fails_costs_the_request_only(stub: StubServer) -> None:
    """The network of the hook is down, not the task's."""

    async def broken() -> Mapping[str, str]:
        raise ValueError("token is SECRET")

    async with driving(stub, auth=broken, driver="tasks") as driver:
        with pytest.raises(RemoteUnavailable, match=r"hook .* failed \(ValueError\)") as caught:
            await driver.look("x")
        assert "SECRET" not in str(caught.value) and not stub.log


async def test_a_hook_that_hangs_makes_no_doubt_whether_a_call_was_sent(stub: StubServer) -> None:
    """It was not: the call may be made again, and nobody has to look at the server."""

    async def hangs() -> Mapping[str, str]:
        await asyncio.sleep(60)
        return {}

    async with driving(stub, auth=hangs, driver="tasks", timeout="600ms") as driver:
        calls = [driver.submit("build", {}, key=f"k{n}") for n in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert [each.sent for each in found if isinstance(each, RemoteUnavailable)] == [False] * 3
    assert not stub.log


async def test_many_requests_ask_the_hook_once(stub: StubServer) -> None:
    """At the beginning, and when all of them are refused at once because the token has expired."""
    door = Door()

    async def slow() -> Mapping[str, str]:
        await asyncio.sleep(0.05)
        return await door()

    async with driving(stub, auth=slow, driver="tasks", max_concurrency=16) as driver:
        stub.authorization = "Bearer 1"
        accepted = await asyncio.gather(*(driver.submit("build", {}, key=f"k{n}") for n in range(16)))
        assert door.calls == 1
        stub.authorization = "Bearer 2"
        await asyncio.gather(*(driver.look(each.handle or "") for each in accepted))
        assert door.calls == 2


async def test_a_cancelled_caller_leaves_the_connection_usable(stub: StubServer) -> None:
    """And no connection behind."""
    async with driving(stub, driver="tasks", max_concurrency=1) as driver:
        handle = (await driver.submit("build", {}, key="k")).handle
        assert handle is not None
        stub.fault("tasks/get", faults.silent(20))
        hung = asyncio.create_task(driver.look(handle))

        async def asked() -> bool:
            return stub.counts["tasks/get"] == 1

        await eventually(asked, description="the request is on its way")
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        assert (await driver.look(handle)).status is RemoteStatus.WORKING


PROGRAM = """
import json, os, sys
print("ready: no JSON-RPC", file=sys.stderr)
greeted = "old" not in sys.argv
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params, id = message["method"], message.get("params", {}), message["id"]
    if method == "initialize":
        greeted = True
        out = {"result": {"protocolVersion": "2025-11-25", "capabilities": {}}}
    elif not greeted:
        out = {"error": {"code": -32600, "message": "not initialized"}}
    elif method == "server/discover":
        out = {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}}
    elif method == "tools/call" and params["name"] == "die":
        os._exit(1)
    elif method == "tools/call" and params["name"] == "hang":
        continue
    elif method == "tools/call" and params["name"] == "endless":
        sys.stdout.write("x" * 5_000_000)
        sys.stdout.flush()
        continue
    elif method == "tools/call" and params["name"] == "long":
        out = {"result": {"content": [{"type": "text", "text": "x" * 5_000_000}]}}
    elif method == "tools/call" and params["name"] == "deaf":
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
        print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
        while True:
            time.sleep(1)
    elif method == "tools/call" and params["name"] == "nan":
        print('{"jsonrpc": "2.0", "id": %d, "result": {"content": [], "x": NaN}}' % id, flush=True)
        continue
    elif method == "tools/call":
        print("noise on the wire", flush=True)
        out = {"result": {"content": [{"type": "text", "text": os.environ["WORD"] + str(os.getpid())}],
                          "structuredContent": {"n": params["arguments"].get("n")}}}
    else:
        out = {"error": {"code": -32602, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": id, **out}), flush=True)
"""


def program(*argv: str, **speaking: Any) -> dict[str, Any]:
    """A server that is a program; its secret comes by reference."""
    entry = {
        "command": sys.executable,
        "args": ["-c", PROGRAM, *argv],
        "env": {"WORD": "${WORD}"},
        "mcptasks": speaking,
    }
    return {"mcpServers": {"local": entry}}


@covers("F05")
@pytest.mark.parametrize("argv", [[], ["old"]], ids=["2026-07-28", "2025-11-25"])
async def test_a_program_is_spoken_to_over_stdio(argv: list[str]) -> None:
    """Started when it is needed, started again when it has died, gone at the end."""
    async with Servers(program(*argv, timeout=10), environment={"WORD": "pid "}) as servers:
        driver = servers.driver("local")
        pids: list[int] = []
        for tool in ("echo", "echo", "die", "echo"):
            if tool == "die":
                with pytest.raises(RemoteUnavailable, match="ended before it answered"):
                    await driver.submit("die", {}, key="k")
                continue
            accepted = await driver.submit(tool, {"n": 10**30}, key="k")
            assert accepted.snapshot.result is not None
            assert accepted.snapshot.result["structuredContent"] == {"n": 10**30}
            pids.append(int(accepted.snapshot.result["content"][0]["text"].removeprefix("pid ")))
        assert pids[0] == pids[1] != pids[2] and os.getpid() not in pids
        together = await asyncio.gather(*(driver.submit("echo", {"n": n}, key="k") for n in range(20)))
        assert [a.snapshot.result["structuredContent"]["n"] for a in together if a.snapshot.result] == list(range(20))
    assert not psutil.pid_exists(pids[2])


async def test_a_program_that_hangs_or_does_not_start_is_unavailable() -> None:
    """As a server behind a network is."""
    async with Servers(program(timeout="1s"), environment={"WORD": ""}) as servers:
        with pytest.raises(RemoteUnavailable, match="did not answer within 1 s"):
            await servers.driver("local").submit("hang", {}, key="k")
    async with Servers({"mcpServers": {"x": {"command": "/no/such/program"}}}) as servers:
        with pytest.raises(RemoteUnavailable, match="does not start") as caught:
            await servers.driver("x").look("t")
        assert not caught.value.sent


async def test_a_line_over_the_limit_costs_its_own_call_alone() -> None:
    """The program goes on, and so do those who wait beside it; one that never ends its line is not waited for."""
    async with Servers(program(timeout="5s", body_max=4_096), environment={"WORD": "pid "}) as servers:
        driver = servers.driver("local")
        found = await asyncio.gather(
            *(driver.submit(tool, {}, key="k") for tool in ("echo", "long", "nan", "echo")), return_exceptions=True
        )
        assert [type(each) for each in found] == [Accepted, ProtocolBroken, ProtocolBroken, Accepted]
        assert "more than 4,096 bytes" in str(found[1])
        with pytest.raises(RemoteUnavailable, match="did not answer"):
            await driver.submit("endless", {}, key="k")
        again = await driver.submit("echo", {}, key="k")
        assert isinstance(found[0], Accepted) and again.snapshot == found[0].snapshot, "the same program"


async def test_a_program_that_reads_nothing_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears neither the end of its input nor SIGTERM; what it was sent is not kept for ever."""
    monkeypatch.setattr(stdio_peer, "_UNREAD_MAX", 2)
    async with Servers(program(timeout="500ms", max_concurrency=1), environment={"WORD": "pid "}) as servers:
        driver = servers.driver("local")
        deaf = (await driver.submit("deaf", {}, key="k")).snapshot.result
        assert deaf is not None
        pid = int(deaf["content"][0]["text"])
        text = "x" * 1_000_000  # more than a pipe holds

        async def ended() -> bool:
            with pytest.raises(RemoteUnavailable) as caught:
                await driver.submit("echo", {"text": text}, key="k")
            return "does not read" in str(caught.value) and not caught.value.sent

        await eventually(ended, description="it is given up")

        async def answers() -> bool:
            try:
                return (await driver.submit("echo", {}, key="k")).snapshot.result is not None
            except RemoteUnavailable:
                return False

        await eventually(answers, description="it is started again")
        await eventually(lambda: _gone(pid), description="the old one has gone")


async def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)
