"""A browser without a screen for the console: it keeps cookies, follows to where it is sent, and fills in forms."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from mcptasks.console import ConsoleOptions, console_app
from mcptasks.settings import Settings

TOKEN: Final = "a-token-of-operators"
_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')


class Browser:
    """One operator's. `sent` is what it sends with every request."""

    def __init__(self, client: httpx2.AsyncClient, root: str) -> None:
        self._client, self._root = client, root
        #: The token of the forms on the page that was opened last.
        self.csrf = ""

    async def open(self, path: str, **headers: str) -> httpx2.Response:
        """The page, after all redirects."""
        answer = await self._client.get(self._root + path, headers=headers, follow_redirects=True)
        if found := _CSRF.search(answer.text):
            self.csrf = found[1]
        return answer

    async def leave(self, path: str) -> httpx2.Response:
        """What the page answers, without going where it sends people."""
        return await self._client.get(self._root + path)

    async def send(self, path: str, data: dict[str, Any], *, follow: bool = True, **headers: str) -> httpx2.Response:
        """The answer to a form, sent with the token of the page that was opened last."""
        form = {"csrf": self.csrf, **data}
        answer = await self._client.post(self._root + path, data=form, headers=headers, follow_redirects=follow)
        if found := _CSRF.search(answer.text):
            self.csrf = found[1]
        return answer

    async def log_in(self, name: str = "olga", token: str = TOKEN) -> httpx2.Response:
        """Logged in by the token."""
        await self.open("/login")
        return await self.send("/login", {"name": name, "token": token})

    def cookies(self) -> dict[str, str]:
        """What it keeps."""
        return dict(self._client.cookies)


@asynccontextmanager
async def browser(
    settings: Settings, *, app: Any = None, peer: str = "127.0.0.1", root: str = "", **options: Any
) -> AsyncGenerator[Browser]:
    """A browser on a console of that store, whose connection comes from `peer`."""
    if app is None:
        app = console_app(settings, ConsoleOptions.model_validate({"token": TOKEN} | options))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, client=(peer, 4711)), base_url=options.get("url") or "http://console"
    ) as client:
        if hasattr(app, "router") and not root:
            async with app.router.lifespan_context(app):
                yield Browser(client, root)
        else:
            yield Browser(client, root)
