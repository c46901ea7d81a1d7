"""The console's log-in through an OpenID provider: who may enter, by the provider's signed word alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import pytest
import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcptasks.cli.serve import bound
from mcptasks.settings import Settings
from tests.support.console import Browser, browser
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

CLIENT: Final = "console-of-tests"
SECRET: Final = "secret-of-tests"
URL: Final = "https://ops.example.com"


class Provider:
    """Says of whoever comes what `claims` says, signed with `key`, whose public half it shows."""

    def __init__(self) -> None:
        self.url = ""
        self.key = self.shown = RSAKey.generate_key(2048, {"kid": "one"})
        self.claims: dict[str, Any] = {}
        self.nonce = ""
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.about),
                Route("/keys", self.keys),
                Route("/token", self.token, methods=["POST"]),
            ]
        )

    async def about(self, _: Request) -> Response:
        ways = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        algorithms = {"id_token_signing_alg_values_supported": ["RS256"]}
        return JSONResponse({"issuer": self.url} | {name: self.url + path for name, path in ways.items()} | algorithms)

    async def keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.shown.as_dict(private=False)]})

    async def token(self, request: Request) -> Response:
        form = await request.form()
        assert form["code_verifier"] and form["redirect_uri"] == f"{URL}/login/openid/callback"
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT, "sub": "1", "iat": now, "exp": now + 60, "nonce": self.nonce}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, usual | self.claims, self.key)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": token})


@pytest.fixture
async def provider(anyio_backend: str) -> AsyncGenerator[Provider]:
    """A provider on a real port."""
    found = Provider()
    with bound("127.0.0.1", 0) as listener:
        found.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(found.app, log_config=None, ws="none", lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))

        async def started() -> bool:
            return server.started

        await eventually(started, description="the provider serves")
        yield found
        server.should_exit = True
        await serving


@asynccontextmanager
async def came_back(
    settings: Settings, provider: Provider, on_the_way: str = "", **options: Any
) -> AsyncGenerator[tuple[Browser, httpx2.Response]]:
    """A browser that was at the provider and came back, and what it got."""
    ways: dict[str, Any] = {
        "oidc_issuer": provider.url,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        "url": URL,
    }
    who: dict[str, Any] = {"oidc_operators": "olga@example.com", "token": None}
    async with browser(settings, **(ways | who | options)) as page:
        assert "Log in with OpenID" in (await page.open("/tasks")).text
        leaves = await page.send("/login/openid", {}, follow=False)
        assert leaves.status_code == 405, "only a link leads there"
        # As the log-in page links to it.
        text = (await page.open(f"/login?next={quote(on_the_way)}")).text
        link = text.partition('href="/login/openid')[2].partition('"')[0]
        sent = await page.leave(f"/login/openid{unescape(link)}")
        asked = parse_qs(urlsplit(sent.headers["location"]).query)
        assert sent.headers["location"].startswith(f"{provider.url}/authorize?")
        assert asked["code_challenge_method"] == ["S256"] and asked["client_id"] == [CLIENT]
        provider.nonce = asked["nonce"][0]
        yield page, await page.leave(f"/login/openid/callback?code=c&state={asked['state'][0]}")


async def test_an_operator_comes_in_by_the_providers_word(settings: Settings, provider: Provider) -> None:
    """With PKCE, a state and a nonce; the name is the claim."""
    provider.claims = {"email": "olga@example.com", "email_verified": True}
    async with came_back(settings, provider) as (page, answer):
        assert (answer.status_code, answer.headers["location"]) == (303, "/tasks")
        text = (await page.open("/tasks")).text
        assert "olga@example.com" in text and SECRET not in text


@pytest.mark.parametrize(
    ("way", "lands"),
    [("/tasks/abcd?x=1", "/tasks/abcd?x=1"), ("//evil.example", "/tasks"), ("/" + "x" * 900, "/xxx")],
    ids=["ours", "theirs", "long"],
)
async def test_who_was_on_the_way_to_a_page_lands_there(
    settings: Settings, provider: Provider, way: str, lands: str
) -> None:
    """And on no other site."""
    provider.claims = {"email": "olga@example.com", "email_verified": True}
    async with came_back(settings, provider, on_the_way=way) as (_, answer):
        assert answer.status_code == 303 and answer.headers["location"].startswith(lands)
        assert len(answer.headers["location"]) <= 500


@pytest.mark.parametrize(
    ("claims", "options"),
    [
        ({"email": "eve@example.com", "email_verified": True}, {}),
        ({"email": "olga@example.com", "email_verified": False}, {}),
        ({"email": "olga@example.com"}, {}),
        ({"preferred_username": "olga@example.com"}, {}),
        ({"email": "olga@example.com", "email_verified": True}, {"oidc_claim": "groups"}),
        ({"email": "olga@example.com", "email_verified": True, "aud": "another"}, {}),
        ({"email": "olga@example.com", "email_verified": True, "iss": "http://evil.example"}, {}),
        ({"email": "olga@example.com", "email_verified": True, "exp": 1}, {}),
        ({"email": "olga@example.com", "email_verified": True, "nonce": "old"}, {}),
        ({"email": "olga@example.com", "email_verified": True, "forged": True}, {}),
    ],
    ids=["stranger", "unverified", "unsaid", "other claim", "no claim", "aud", "iss", "expired", "replayed", "forged"],
)
async def test_nobody_else_does(
    settings: Settings, provider: Provider, claims: dict[str, Any], options: dict[str, Any]
) -> None:
    """Whom the provider knows is no operator yet, and a token that is not right is none."""
    provider.claims = claims
    if claims.pop("forged", False):
        provider.key = RSAKey.generate_key(2048, {"kid": "one"})
    async with came_back(settings, provider, **options) as (page, answer):
        assert answer.status_code == 403
        assert (await page.open("/tasks")).url.path == "/login"


async def test_a_state_that_was_not_given_out_is_refused_and_so_is_a_provider_that_is_away(
    settings: Settings, provider: Provider
) -> None:
    """Log-in CSRF; and no stack trace where the provider is down."""
    provider.claims = {"email": "olga@example.com", "email_verified": True}
    async with came_back(settings, provider) as (page, _):
        await page.open("/tasks")
        await page.send("/logout", {})
        assert (await page.leave("/login/openid/callback?code=c&state=forged")).status_code == 403
    ways: dict[str, Any] = {
        "oidc_issuer": "http://127.0.0.1:1",
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        "url": URL,
    }
    async with browser(settings, **ways, oidc_operators="*", token=None) as page:
        assert (await page.leave("/login/openid")).status_code == 502
