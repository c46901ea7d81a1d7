"""The console as an ASGI application: `console_app()`, to serve by itself or to mount below a path of another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from mcptasks.console.actions import Actions
from mcptasks.console.desk import HERE, Desk, NotLoggedIn
from mcptasks.console.downloads import Downloads
from mcptasks.console.entrance import Entrance, after_login
from mcptasks.console.guard import Below, Headers
from mcptasks.console.options import ConsoleOptions
from mcptasks.console.pages import Pages
from mcptasks.errors import (
    AmbiguousTask,
    BadCursor,
    MCPTasksError,
    RetryRefused,
    SchemaTooNew,
    Sealed,
    StoreUnavailable,
    UnknownTask,
)
from mcptasks.settings import Settings

#: What an error is for HTTP; the others are ours, and 500.
_STATUS: Final[Mapping[type[MCPTasksError], int]] = {
    UnknownTask: 404,
    AmbiguousTask: 404,
    BadCursor: 404,
    RetryRefused: 409,
    SchemaTooNew: 409,
    Sealed: 409,
    StoreUnavailable: 503,
}


def console_app(settings: Settings | None = None, options: ConsoleOptions | None = None) -> Starlette:
    """The console of the fleet on that store; settings and options are by default those of the environment.

    Its connections are closed by its lifespan. What mounts it below a path runs that (`app.router.lifespan_context`),
    or keeps the connections until the process ends.

    Raises:
        ConfigurationError: the environment cannot be read, or there is no way to log in.
    """
    desk = Desk(settings or Settings.load(), options or ConsoleOptions.load())
    pages = Pages(desk)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with desk.fleet:
            yield

    async def troubled(request: Request, exc: Exception) -> Response:
        status = exc.status_code if isinstance(exc, HTTPException) else _status_of(exc)
        said = exc.detail if isinstance(exc, HTTPException) else str(exc)
        if request.url.path.startswith(f"{request.scope.get('root_path') or ''}/live/"):
            return PlainTextResponse(said, status)
        return await desk.bare(request, "trouble.html", status, said=said, code=status)

    async def not_logged_in(request: Request, _: Exception) -> Response:
        if request.method != "GET" or "/live/" in request.url.path or not _ways(desk):
            why = (
                "Nothing was done."
                if _ways(desk)
                else "Operators come in through this fleet's proxy, which named nobody."
            )
            return await desk.bare(request, "trouble.html", 401, said=f"You are not logged in. {why}", code=401)
        return RedirectResponse(after_login(request), 303)

    return Starlette(
        routes=[
            *pages.routes(),
            *Downloads(desk).routes(),
            *Actions(desk, pages).routes(),
            *Entrance(desk).routes(),
            Mount("/static", _Static(directory=HERE / "static")),
        ],
        middleware=[
            Middleware(Below, path=urlsplit(desk.options.url).path),
            Middleware(Headers),
            Middleware(
                SessionMiddleware,
                secret_key=desk.login.secret,
                session_cookie=desk.login.cookie,
                max_age=desk.options.session_ms // 1000,
                # Links from a chat lead to the page, and the way back from an OpenID provider does; forms do not.
                same_site="lax",
                https_only=desk.options.secure,
            ),
        ],
        exception_handlers={
            NotLoggedIn: not_logged_in,
            HTTPException: troubled,
            MCPTasksError: troubled,
        },
        lifespan=lifespan,
    )


class _Static(StaticFiles):
    """Files of a release, by names or queries that change with them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=3600"
        return response


def _ways(desk: Desk) -> bool:
    return desk.login.by_token or desk.login.by_openid


def _status_of(exc: Exception) -> int:
    return next((status for kind, status in _STATUS.items() if isinstance(exc, kind)), 500)
