"""A console on a real port, and Chromium in front of it."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import uvicorn
from playwright.async_api import Browser, Page, async_playwright, expect

from mcptasks.cli.serve import bound
from mcptasks.console import ConsoleOptions, console_app
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.support.console import TOKEN
from tests.support.waiting import eventually

#: What a page may take for anything at all on a busy machine.
PATIENCE_MS: Final = 30_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
async def chromium(anyio_backend: str) -> AsyncGenerator[Browser]:
    """Chromium without a screen. Its sandbox wants more than a container gives root."""
    found = shutil.which("chromium")
    assert found is not None, "there is no chromium on PATH: `make chromium` installs Debian's"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def store(settings: Settings, anyio_backend: str) -> AsyncGenerator[TaskStore]:
    """The store that the console shows."""
    store = TaskStore(settings)
    yield store
    await store.aclose()


@pytest.fixture
async def console(settings: Settings, anyio_backend: str) -> AsyncGenerator[str]:
    """The console's URL."""
    app = console_app(settings, ConsoleOptions.model_validate({"token": TOKEN}))
    with bound("127.0.0.1", 0) as listener:
        async with served(app, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def served(app: object, listener: socket.socket) -> AsyncGenerator[None]:
    """The application serves there, in this event loop."""
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)  # pyright: ignore[reportArgumentType]
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))

    async def started() -> bool:
        return server.started

    await eventually(started, description="the console serves")
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def logged_in(chromium: Browser, console: str, name: str, path: str, **how: object) -> Page:
    """A window of its own, in which that operator looks at that page, which is loaded and, with scripts, live."""
    context = await chromium.new_context(**how)  # pyright: ignore[reportArgumentType]
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.goto(f"{console}{path}")
    await page.get_by_label("Your name").fill(name)
    await page.get_by_label("Operator token").fill(TOKEN)
    await page.get_by_role("button", name="Log in", exact=True).click()
    # A key that is pressed before this page is there goes to the page before it.
    await page.get_by_role("button", name="Log out").wait_for()
    await page.wait_for_load_state()
    if how.get("java_script_enabled", True):
        await page.locator("#sign[data-state=live]").wait_for()
    return page
