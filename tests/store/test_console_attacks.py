"""The console against who means harm, and against browsers, proxies and networks that are as they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import pytest
from pydantic import SecretStr

from mcptasks.console import ConsoleOptions, console_app, pages
from mcptasks.console.desk import Desk
from mcptasks.model import label
from mcptasks.operations import Operations
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.store.test_console import answers, asked
from tests.store.test_console_guard import decline
from tests.support.console import TOKEN, browser
from tests.support.tasks import queued

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client(
    settings: Settings, peer: str = "127.0.0.1", **options: Any
) -> AsyncGenerator[tuple[httpx2.AsyncClient, httpx2.ASGITransport]]:
    """A client of a console of its own that says only what it is told to say, and the way there."""
    app = console_app(settings, ConsoleOptions.model_validate({"token": TOKEN} | options))
    transport = httpx2.ASGITransport(app, client=(peer, 4711))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://console") as one,
    ):
        yield one, transport


async def logged_in(one: httpx2.AsyncClient, at: str = "", then: str = "") -> httpx2.Response:
    """The answer to the log-in form."""
    page = (await one.get(f"{at}/login")).text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
    return await one.post(f"{at}/login", data={"csrf": csrf, "name": "olga", "token": TOKEN, "next": then})


PROXY: Final[dict[str, Any]] = {"token": None, "proxy_header": "X-Forwarded-User", "proxy_from": "10.0.0.0/8"}


# ------------------------------------------------------------------------------------------------ who may enter


async def test_a_name_that_comes_twice_is_nobodys(settings: Settings) -> None:
    """A proxy that adds its header to the browser's leaves the browser the first word."""
    async with client(settings, "10.1.2.3", **PROXY) as (one, _):
        for names, status in ((["pia"], 200), (["root", "pia"], 401), (["pia", "pia"], 401)):
            headers = [("X-Forwarded-User", name) for name in names]
            assert (await one.get("/fleet", headers=headers)).status_code == status, names


async def test_a_proxy_is_known_by_its_ipv4_address_on_a_socket_of_both_kinds(settings: Settings) -> None:
    """A server on `::` is told of an IPv4 peer by an address of IPv6."""
    for peer, status in (("::ffff:10.1.2.3", 200), ("::ffff:11.1.2.3", 401)):
        async with browser(settings, peer=peer, **PROXY) as page:
            assert (await page.open("/fleet", **{"X-Forwarded-User": "pia"})).status_code == status, peer


def test_a_guess_at_the_token_costs_work_also_where_nobody_counts_the_guesses(settings: Settings) -> None:
    """Whoever opens the log-in page gets a signed cookie, and may try tokens against its signature at home."""
    options = ConsoleOptions(token=SecretStr(TOKEN))
    Desk(settings, options)
    began_s = time.process_time()
    secrets = {Desk(settings, options).login.secret for _ in range(5)}
    assert len(secrets) == 1, "every console process must know the others' sessions"
    # A plain hash takes a microsecond, templates and connections of a desk less than five milliseconds.
    assert (time.process_time() - began_s) / 5 > 0.015


async def test_two_consoles_on_one_host_leave_each_other_their_sessions(settings: Settings) -> None:
    """Browsers keep cookies by host, whatever the port: staging and production forwarded to one machine."""
    other = settings.model_copy(update={"prefix": "other:"})
    async with client(settings) as (_, first), client(other) as (_, second):
        ways: dict[str, Any] = {"http://console:1": first, "http://console:2": second}
        async with httpx2.AsyncClient(mounts=ways) as one:
            for at in ways:
                assert (await logged_in(one, at)).status_code == 303
            for at in ways:
                assert (await one.get(f"{at}/fleet")).status_code == 200, at


# ------------------------------------------------------------------------------------------------ forms


async def test_a_form_that_does_not_say_how_long_it_is_is_not_read(settings: Settings) -> None:
    """Of two lengths, servers believe the chunks; who is not logged in must not fill the memory."""
    read = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 1
            yield b"a=" + b"x" * 65_536 + b"&"

    async with client(settings) as (one, _):
        usual = {"Content-Type": "application/x-www-form-urlencoded"}
        for headers in (
            {"Transfer-Encoding": "chunked"},
            {"Transfer-Encoding": "chunked", "Content-Length": "10"},
            {"Content-Length": "many"},
            {"Content-Length": "-1"},
        ):
            answer = await one.post("/login", headers=usual | headers, content=endless())
            assert (answer.status_code, read <= 1) == (413, True), (headers, answer.status_code, read)


@pytest.mark.parametrize("url", ["https://Ops.Example.com", "https://ops.example.com:443", "https://ops.example.com/"])
async def test_an_origin_is_recognised_however_the_url_was_written(
    store: TaskStore, settings: Settings, url: str
) -> None:
    """Browsers write hosts small, and leave out the usual port."""
    claim = await asked(store)
    async with browser(settings, url=url) as page:
        await page.log_in()
        await page.open(f"/tasks/{label(claim.task_id)}")
        assert await decline(page, claim, Origin="https://ops.example.com:8443") == 403
        assert await decline(page, claim, Origin="https://ops.example.com") == 303
    assert await answers(store, claim) == {"q": {"action": "decline"}}


@pytest.mark.parametrize("proxied", ["/ops", ""], ids=["passed on", "cut off"])
async def test_below_a_path_of_its_url_every_link_stays_below_it(
    store: TaskStore, settings: Settings, proxied: str
) -> None:
    """Whether the proxy passes the path on or cuts it off."""
    task = label(await queued(store))
    async with client(settings, url="http://console/ops") as (one, _):
        where = await one.get(f"{proxied}/tasks")
        assert (where.status_code, where.headers["location"]) == (303, "/ops/login?next=/tasks")
        came = await logged_in(one, proxied, f"/tasks/{task}")
        assert (came.status_code, came.headers["location"]) == (303, f"/ops/tasks/{task}")
        text = (await one.get(f"{proxied}/tasks")).text
        assert f'href="/ops/tasks/{task}"' in text and 'aria-current="page"' in text
        assert (await one.get(f"{proxied}/static/console.css")).status_code == 200
        assert (await one.get("/opsx/tasks")).status_code == 404


# ------------------------------------------------------------------------------------------------ streams


async def test_who_does_not_read_is_not_sent_to_for_ever(
    store: TaskStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose other end takes nothing ends, and with it what is kept for it."""
    monkeypatch.setattr(pages, "_SEND_S", 0.2)
    app = console_app(settings, ConsoleOptions.model_validate(PROXY))
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/live/tasks",
        "raw_path": b"/live/tasks",
        "query_string": b"",
        "headers": [(b"host", b"console"), (b"x-forwarded-user", b"pia")],
        "client": ("10.1.2.3", 4711),
        "server": ("console", 80),
        "scheme": "http",
        "root_path": "",
    }
    stuck, left = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(Operations, "leave", lambda *_: left.set())

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            stuck.set()
            await asyncio.Event().wait()

    async with app.router.lifespan_context(app), asyncio.timeout(30):
        serving = asyncio.create_task(app(scope, receive, send))
        await stuck.wait()
        await serving
        await left.wait()
