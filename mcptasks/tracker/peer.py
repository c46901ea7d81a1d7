"""One connection to one server: which protocol it speaks, and requests to it. HTTP and stdio are its two kinds."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.metadata import version
from typing import Any, Final, cast

from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from mcptasks.model import CLIENT_CAPABILITIES, CLIENT_INFO
from mcptasks.tracker.pacing import NoTurn, Pacing
from mcptasks.tracker.remote import ProtocolBroken, RemoteRefused, RemoteUnavailable
from mcptasks.wire import EXTENSION, MODERN

#: The version that has tasks in its core; offered in `initialize`.
LEGACY_VERSION: Final = "2025-11-25"
_VERSION_META: Final = "io.modelcontextprotocol/protocolVersion"
_CLIENT: Final = {"name": "mcptasks", "version": version("mcptasks")}

#: What questions can be asked of us, as the client declares it.
_DECLARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}


class Era(Enum):
    """Which protocol to speak."""

    #: What the server advertises: `server/discover` first, `initialize` where that is unknown.
    ASK = "ask"
    #: 2026-07-28, unasked: it has no handshake.
    MODERN = "modern"
    #: 2025-11-25, by `initialize`.
    LEGACY = "legacy"


class FrontRefused(RemoteUnavailable):
    """An HTTP status from 400 on, and no JSON-RPC in the body: the endpoint, or what stands before it, said no."""

    def __init__(self, message: str, status: int, *, sent: bool = True) -> None:
        super().__init__(message, sent=sent)
        self.status = status


class SessionLost(RemoteUnavailable):
    """The server does not know our session any more (HTTP 404); it has not carried the request out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What the server said of itself."""

    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session: str | None = field(default=None, repr=False)

    @property
    def modern(self) -> bool:
        return self.version in MODERN


class Peer(ABC):
    """Requests to one server. Greets it at the first one, and again, once per request, after its session was lost."""

    def __init__(self, server: str, era: Era, declares: Sequence[str], pacing: Pacing, timeout_s: float) -> None:
        """`declares`: the kinds of questions that tasks may ask: "elicitation", "sampling", "roots"."""
        self.server, self._era, self._pacing, self._timeout_s = server, era, pacing, timeout_s
        self._capabilities = {kind: dict(_DECLARED[kind]) for kind in declares}
        self._ids = itertools.count(1)
        self._greeting: Greeting | None = None
        self._greets = asyncio.Lock()

    # ------------------------------------------------------------------------------------------------ for drivers

    async def greet(self) -> Greeting:
        """What the server said of itself; asked once per session.

        Raises:
            RemoteUnavailable, RemoteRefused, ProtocolBroken: as `request`; nothing but the greeting was sent.
        """
        async with self._greets:
            if self._greeting is None:
                try:
                    self._greeting = await self._meet()
                except RemoteUnavailable as exc:
                    exc.sent = False
                    raise
            return self._greeting

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        session: str | None = None,
        on_send: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """The result of one request, asked once.

        Args:
            name: what the request is about (a tool, a task), for the header `Mcp-Name`.
            headers: more of them, where the connection has headers.
            session: to ask in, for as long as the server knows it; then, and without one, the connection's own.
            on_send: called right before the request goes out: the server is greeted, and it is this one's turn.

        Raises:
            RemoteRefused: the server answered with a JSON-RPC error, whichever.
            RemoteUnavailable: no answer in time, or one that is not the server's own.
            ProtocolBroken: the answer is no JSON-RPC response.
        """
        lost: SessionLost | None = None
        for _ in range(2 if session is None else 3):
            greeting = await self.greet()
            used = greeting if session is None else replace(greeting, session=session)
            try:
                async with self._pacing.turn(self._timeout_s):
                    if on_send is not None:
                        on_send()
                    return await self._request(used, method, params, name=name, headers=headers)
            except NoTurn:
                raise RemoteUnavailable(
                    f"Server {self.server!r} has too much to do: no turn within {self._timeout_s:g} s "
                    "(max_concurrency, rate)",
                    sent=False,
                ) from None
            except SessionLost as exc:
                lost = exc
                if session in (None, greeting.session):
                    self.forget(greeting)
                session = None
        raise RemoteUnavailable(str(lost), sent=False)

    @abstractmethod
    def stream(
        self, method: str, params: Mapping[str, Any], *, session: str | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yields the notifications and requests that come with the answer, then `{"result": ...}`; has no time limit.

        Raises:
            RemoteRefused, RemoteUnavailable, ProtocolBroken: as `request`.
        """

    @abstractmethod
    async def respond(self, request_id: object, result: Any, *, session: str | None = None) -> None:
        """The server has the answer to a request of its own, in the session in which it asked.

        Raises:
            RemoteUnavailable: it has not.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """The connection is closed, and its processes and tasks are gone."""

    def forget(self, greeting: Greeting) -> None:
        """The session is over; the next request greets the server anew."""
        if self._greeting is greeting:
            self._greeting = None

    # ------------------------------------------------------------------------------------------------ for the kinds

    @abstractmethod
    async def _request(
        self,
        greeting: Greeting,
        method: str,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]: ...

    @abstractmethod
    async def _initialize(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """The result of `initialize`, and the session that it opened."""

    @abstractmethod
    async def _initialized(self, greeting: Greeting) -> None:
        """The server has `notifications/initialized`."""

    def _message(self, greeting: Greeting, method: str, params: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """A request's id, and the request; since 2026-07-28 each says by itself who asks and what he can."""
        request_id = next(self._ids)
        sent = dict(params)
        if greeting.modern:
            envelope = {
                _VERSION_META: greeting.version,
                CLIENT_INFO: _CLIENT,
                CLIENT_CAPABILITIES: {**self._capabilities, "extensions": {EXTENSION: {}}},
            }
            sent["_meta"] = {**envelope, **sent.get("_meta", {})}
        return request_id, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": sent}

    @staticmethod
    def _asked_back(message: Mapping[str, Any]) -> dict[str, Any]:
        """The response to a request of the server's that comes outside of a task: alive, and nothing else."""
        if message.get("method") == "ping":
            return {"jsonrpc": "2.0", "id": message.get("id"), "result": {}}
        error = {"code": METHOD_NOT_FOUND, "message": "Nobody can be asked here"}
        return {"jsonrpc": "2.0", "id": message.get("id"), "error": error}

    # ------------------------------------------------------------------------------------------------ greeting

    async def _meet(self) -> Greeting:
        modern = Greeting(version=LATEST_MODERN_VERSION)
        if self._era is Era.MODERN:
            return modern
        if self._era is Era.ASK and (capabilities := await self._discover(modern)) is not None:
            return Greeting(version=LATEST_MODERN_VERSION, capabilities=capabilities)
        params = {"protocolVersion": LEGACY_VERSION, "capabilities": self._capabilities, "clientInfo": _CLIENT}
        result, session = await self._initialize(params)
        said, capabilities = result.get("protocolVersion"), result.get("capabilities")
        if not isinstance(capabilities, dict) or said not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise ProtocolBroken(f"Server {self.server!r} answered initialize with no version and capabilities we know")
        greeting = Greeting(version=said, capabilities=cast("dict[str, Any]", capabilities), session=session)
        await self._initialized(greeting)
        return greeting

    async def _discover(self, modern: Greeting) -> Mapping[str, Any] | None:
        """The capabilities of a server of today; None: it is an older one."""
        try:
            found = await self._request(modern, "server/discover", {})
        except RemoteRefused:
            return None
        except FrontRefused as exc:
            if exc.status in (401, 403):
                raise
            return None
        versions, capabilities = found.get("supportedVersions"), found.get("capabilities")
        if not isinstance(versions, list) or modern.version not in versions or not isinstance(capabilities, dict):
            return None
        return cast("dict[str, Any]", capabilities)
