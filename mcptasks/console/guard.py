"""What stands between the console and other people's pages: headers, the origin of a request, the form's own token."""

from __future__ import annotations

import hmac
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import FormData, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Nothing but our own files runs, loads or is sent to; nobody frames us.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: Of the fields of a form, and of one file or field: an answer may have a quarter of a MiB.
FIELDS_MAX: Final = 500
FORM_MAX: Final = 1024 * 1024

#: Name of the hidden field, and of its twin in the session.
CSRF: Final = "csrf"


class Below:
    """The console is below the path of its URL, whether the proxy before it passes that on or cuts it off."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app, self._path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What mounts it says by itself where it is.
        if self._path and scope["type"] == "http" and not scope.get("root_path"):
            path = scope["path"]
            whole = path if path == self._path or path.startswith(f"{self._path}/") else self._path + path
            scope = {**scope, "root_path": self._path, "path": whole}
        await self._app(scope, receive, send)


class Headers:
    """Every answer has the headers that browsers are told to be careful by, and is kept by no cache."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def csrf_of(request: Request) -> str:
    """The token that this session's forms carry; one is made with the first."""
    session = request.session
    if CSRF not in session:
        session[CSRF] = secrets.token_urlsafe(24)
    return str(session[CSRF])


async def form_of(request: Request, url: str) -> FormData:
    """The form that was sent, from a page of ours. `url` is the console's own, empty where nobody said it.

    Raises:
        HTTPException: 403, it came from elsewhere; 413, it is larger than any form of ours.
    """
    if not _same_origin(request, url):
        raise HTTPException(403, "This form was sent from another site. Nothing was done.")
    if not _short(request):
        raise HTTPException(413, f"A form may have {FORM_MAX:,} bytes. Nothing was done.")
    form = await request.form(max_files=0, max_fields=FIELDS_MAX, max_part_size=FORM_MAX)
    sent, known = form.get(CSRF), request.session.get(CSRF)
    if not isinstance(sent, str) or not known or not hmac.compare_digest(sent.encode(), str(known).encode()):
        raise HTTPException(403, "This page is too old. Open it again and repeat what you did; nothing was done yet.")
    return form


def _short(request: Request) -> bool:
    # Of two lengths a server may believe the chunks, which have no end; no browser sends a form in chunks.
    length = request.headers.get("content-length", "")
    said = length.isascii() and length.isdecimal() and "transfer-encoding" not in request.headers
    return said and len(length) < 10 and int(length) <= FORM_MAX


def _same_origin(request: Request, url: str) -> bool:
    headers = request.headers
    if (site := headers.get("sec-fetch-site")) is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True  # an old browser, or no browser: the token decides
    ours, theirs = urlsplit(url), urlsplit(origin)
    if ours.netloc:
        return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
    return theirs.netloc == headers.get("host")
