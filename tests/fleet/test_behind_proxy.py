"""Two servers behind the proxy of deploy/: requests go to either, streams come through as they are written."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import subprocess
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from mcp.client import Client

from mcptasks.client import TasksClient, connect
from mcptasks.wire import DetailedTask
from tests.fleet.conftest import ENDED
from tests.fleet.system import Fleet, client, free_port, new_key, outcome, start, text
from tests.fleet.test_push import waiting
from tests.support import nginx
from tests.support.patient import Patient
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CHUNK: Final = 1 << 20
SIZE: Final = 64 * CHUNK


def test_nginx_accepts_the_file_as_it_stands(tmp_path: Path) -> None:
    argv = [nginx.binary(), "-t", "-c", str(nginx.CONF), "-e", "/dev/stderr"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_an_answer_waits_at_its_server_for_a_slow_client_and_not_on_the_proxys_disk(
    fleet: Fleet, tmp_path: Path
) -> None:
    """What callers were answered is written nowhere, and fills no /tmp: buffering is off."""
    port = free_port()
    with Upstream() as upstream:
        conf = nginx.moved(port, [upstream.port], tmp_path)
        fleet.start_other("nginx", [nginx.binary(), "-c", str(conf), "-e", "/dev/stderr", "-g", "daemon off;"])
        wait_until(lambda: _healthy(port), description="the proxy answers its probe")
        with socket.create_connection(("127.0.0.1", port), 10) as slow:
            slow.sendall(b"GET /mcp HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n")
            wait_until(lambda: upstream.stalled or upstream.ended, description="the answer is as far as it goes")
            assert upstream.stalled, "the proxy took more than a client that does not read has room for"
            received = b"".join(iter(lambda: slow.recv(1 << 20), b""))
    assert received.count(b"z") == SIZE


class Upstream:
    """A server that answers one request with more than the sockets on the way have room for."""

    def __enter__(self) -> Upstream:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.stalled = self.ended = False
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection, suppress(ConnectionError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
            left = SIZE
            while left:
                if not select.select([], [connection], [], 1)[1]:
                    # Nobody took anything for so long: whoever could take more would have.
                    self.stalled = True
                    continue
                # No more than there is room for, or it would wait here.
                left -= connection.send(b"z" * min(CHUNK, left), socket.MSG_DONTWAIT)
        self.ended = True


async def test_tasks_and_streams_pass_the_proxy_and_one_server_may_go(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sticky sessions: a waiting client hears of the end without asking."""
    first, second = fleet.start_server(), fleet.start_server()
    worker = fleet.start_worker()
    ports = [int(fleet.ready(one).rpartition(":")[2].partition("/")[0]) for one in (first, second)]
    fleet.ready(worker)
    port, key, path, polls, patient = free_port(), new_key(), tmp_path / "open", list[DetailedTask](), Patient()
    conf = nginx.moved(port, ports, tmp_path)
    fleet.start_other("nginx", [nginx.binary(), "-c", str(conf), "-e", "/dev/stderr", "-g", "daemon off;"])
    wait_until(lambda: _healthy(port), description="the proxy answers its probe")
    url = f"http://127.0.0.1:{port}/mcp"
    async with client(url) as maker, Client(url, extensions=[TasksClient(pause=patient)]) as listener:
        for _ in range(3):
            assert await outcome(await start(maker, "ledger", key=key)) == f"ran {key}"
        handle = TasksClient.attach(listener, (await start(maker, "gate", key=key, path=str(path))).task_id)
        get = handle.get

        async def counted() -> DetailedTask:
            polls.append(await get())
            return polls[-1]

        monkeypatch.setattr(handle, "get", counted)
        async with waiting(handle) as wait:
            fleet.ledger.await_event(key, "begin")
            async with asyncio.timeout(30):
                await patient.relies.wait()
            asked = len(polls)
            path.touch()
            assert text(await wait) == f"passed {key}"
            assert len(polls) == asked
    for one in (first, second):
        assert re.search(r'"POST /mcp HTTP/1.1" 200', one.output), "both were asked"
    assert first.stop() in ENDED
    async with connect(url) as connection:
        for _ in range(4):
            assert await outcome(await start(connection, "ledger", key=key)) == f"ran {key}"


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
            return answer.read() == b"ok\n"
    except OSError:
        return False
