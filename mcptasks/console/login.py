"""Who the operator is: by the token, by what a reverse proxy says, or by an OpenID provider."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import time
from typing import Final

from starlette.requests import Request

from mcptasks.actors import NAME_MAX
from mcptasks.console.options import ConsoleOptions
from mcptasks.settings import Settings
from mcptasks.shown import plain

#: What a wrong token costs whoever tries.
_PENALTY_S: Final = 0.5

_NAME, _WAY, _SINCE, _CSRF = "name", "way", "since", "csrf"
TOKEN, OPENID, PROXY = "token", "openid", "proxy"


class Login:
    """The ways in that the options open."""

    def __init__(self, options: ConsoleOptions, settings: Settings) -> None:
        self._options, self._proxies = options, options.proxies
        #: Signs the sessions. The same in every console process, and another one once the token changes.
        self.secret = _secret(options, settings)

    @property
    def cookie(self) -> str:
        """The session's name: another one for each fleet, because browsers keep cookies by host, whatever the port."""
        name = f"mcptasks_console_{hashlib.sha256(self.secret.encode()).hexdigest()[:8]}"
        return f"__Host-{name}" if self._options.secure else name

    @property
    def by_token(self) -> bool:
        """There is a token to log in with."""
        return self._options.token is not None

    @property
    def by_openid(self) -> bool:
        """There is an OpenID provider."""
        return bool(self._options.oidc_issuer)

    def operator(self, request: Request) -> tuple[str, str] | None:
        """The operator's name and the way they came in; None: nobody has logged in."""
        if (name := self._proxied(request)) is not None:
            return name, PROXY
        session = request.session
        name, way, since = session.get(_NAME), session.get(_WAY), session.get(_SINCE)
        if not isinstance(name, str) or not isinstance(since, int | float):
            return None
        open_ways = [*([TOKEN] if self.by_token else []), *([OPENID] if self.by_openid else [])]
        fresh = 0 <= time.time() - since <= self._options.session_ms / 1000
        return (name, str(way)) if fresh and way in open_ways else None

    async def try_token(self, token: str) -> bool:
        """Whether this is the token; a wrong one takes half a second."""
        known = self._options.token
        if known is not None and _same(token, known.get_secret_value()):
            return True
        await asyncio.sleep(_PENALTY_S)
        return False

    def enter(self, request: Request, name: str, way: str) -> None:
        """The session is this operator's from now on, and nothing of an earlier one is left in it."""
        request.session.clear()
        request.session.update({_NAME: known_name(name), _WAY: way, _SINCE: time.time()})

    def _proxied(self, request: Request) -> str | None:
        header = self._options.proxy_header
        said = request.headers.getlist(header) if header else []
        # Of several, the browser may have sent any: a proxy that adds its own leaves what it was sent.
        if len(said) != 1 or not (name := known_name(said[0])) or request.client is None:
            return None
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return None
        # On a socket of both kinds an IPv4 peer has such an address.
        address = getattr(address, "ipv4_mapped", None) or address
        return name if any(address in network for network in self._proxies) else None


def known_name(name: str) -> str:
    """The name as it stands in timelines."""
    return plain(name.strip(), NAME_MAX)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _secret(options: ConsoleOptions, settings: Settings) -> str:
    # With a proxy alone the session holds nothing but the forms' token: the proxy says with every request who it is.
    secrets = [one.get_secret_value() for one in (options.token, options.oidc_client_secret) if one is not None]
    text = "\n".join(["mcptasks console", settings.redis_url, settings.prefix, *secrets])
    # Everybody gets a cookie with the log-in page, and may try tokens against its signature: each try is to cost them
    # tens of milliseconds and 16 MiB.
    return hashlib.scrypt(text.encode(), salt=b"mcptasks console session", n=2**14, r=8, p=1).hex()
