"""The log-in page, by the token or through an OpenID provider, and the way out."""

from __future__ import annotations

import logging
from typing import Any, Final
from urllib.parse import quote

from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.starlette_client import OAuth
from httpx2 import HTTPError
from joserfc.errors import JoseError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcptasks.console import guard
from mcptasks.console.desk import Desk, root
from mcptasks.console.login import OPENID, TOKEN, known_name

log: Final = logging.getLogger("mcptasks.console")

_CALLBACK: Final = "/login/openid/callback"
_NEXT: Final = "next"
#: A session is a cookie, and has 4 KiB for everything.
_NEXT_MAX: Final = 500


class Entrance:
    """Where people come in."""

    def __init__(self, desk: Desk) -> None:
        self._desk, options = desk, desk.options
        self._provider: Any = None
        if desk.login.by_openid and options.oidc_client_secret is not None:
            self._provider = OAuth().register(
                name=OPENID,
                client_id=options.oidc_client_id,
                client_secret=options.oidc_client_secret.get_secret_value(),
                server_metadata_url=f"{options.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
                client_kwargs={"scope": "openid email profile", "code_challenge_method": "S256"},
            )

    def routes(self) -> list[Route]:
        """Their addresses."""
        openid = [Route("/login/openid", self.to_provider), Route(_CALLBACK, self.from_provider)]
        return [
            Route("/login", self.page),
            Route("/login", self.by_token, methods=["POST"]),
            Route("/logout", self.leave, methods=["POST"]),
            *(openid if self._provider is not None else []),
        ]

    async def page(self, request: Request) -> Response:
        """The ways in."""
        return await self._page(request)

    async def by_token(self, request: Request) -> Response:
        """Who sends the token is logged in by the name they give."""
        form = await guard.form_of(request, self._desk.options.url)
        name, back = known_name(str(form.get("name") or "")), str(form.get("next") or "")
        if not self._desk.login.by_token or not await self._desk.login.try_token(str(form.get("token") or "")):
            log.warning("A log-in with a wrong token was refused")
            return await self._page(request, 403, back, wrong="This is not the token.", name=name)
        if not name:
            return await self._page(request, 422, back, wrong="Say your name: it stands in the timeline.", name="")
        self._desk.login.enter(request, name, TOKEN)
        log.info("Operator %r has logged in", name)
        return self._desk.to(request, local(back))

    async def to_provider(self, request: Request) -> Response:
        """The browser goes to the provider; where it was on its way to is in its session meanwhile."""
        request.session[_NEXT] = local(request.query_params.get("next", ""))[:_NEXT_MAX]
        try:
            return await self._provider.authorize_redirect(request, f"{self._desk.options.url}{_CALLBACK}")
        except (OAuthError, HTTPError) as exc:
            log.warning("The OpenID provider does not answer as it should: %s", type(exc).__name__)
            return await self._page(request, 502, wrong="The OpenID provider does not answer. Try again in a while.")

    async def from_provider(self, request: Request) -> Response:
        """Who comes back with the provider's word, and may enter, is logged in."""
        try:
            told = await self._provider.authorize_access_token(request)
        # The last two: what the provider told is not what OpenID says it is.
        except (OAuthError, HTTPError, JoseError, ValueError, KeyError) as exc:
            log.warning("A log-in through OpenID was refused: %s", type(exc).__name__)
            return await self._page(request, 403, wrong="The OpenID provider did not let you in.")
        name = self._allowed(told.get("userinfo") or {})
        if not name:
            log.warning("Somebody whom the OpenID provider let in is no operator")
            return await self._page(request, 403, wrong="You are known, but you are no operator of this fleet.")
        back = local(str(request.session.get(_NEXT, "")))
        self._desk.login.enter(request, name, OPENID)
        log.info("Operator %r has logged in", name)
        return self._desk.to(request, back)

    async def leave(self, request: Request) -> Response:
        """Nobody is logged in by this browser any more."""
        await self._desk.form(request)
        request.session.clear()
        return self._desk.to(request, "/login")

    def _allowed(self, claims: dict[str, Any]) -> str:
        options = self._desk.options
        name = claims.get(options.oidc_claim)
        if not isinstance(name, str) or (options.oidc_claim == "email" and claims.get("email_verified") is not True):
            return ""
        return name if "*" in options.oidc_operators or name in options.oidc_operators else ""

    async def _page(
        self, request: Request, status: int = 200, back: str = "", *, wrong: str = "", name: str = ""
    ) -> Response:
        login = self._desk.login
        ways = {"by_token": login.by_token, "by_openid": login.by_openid}
        back = local(back or request.query_params.get("next", ""))
        return await self._desk.bare(request, "login.html", status, next=back, wrong=wrong, name=name, **ways)


def local(path: str) -> str:
    """The path, if it is one of this console; else the list's. No log-in leads to somebody else's page."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\", "/log")) and path.isprintable()
    return path if fine and "\\" not in path else "/tasks"


def after_login(request: Request) -> str:
    """Where the log-in page is, for who was on the way to this page."""
    path = request.url.path.removeprefix(root(request))
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{root(request)}/login?next={quote(path + query)}" if request.method == "GET" else f"{root(request)}/login"
