"""Tells a URL: signed, timed, without redirects, and not into the network that this process stands in.

What is sent: a POST of JSON, with the headers

    Mcptasks-Event-Id     the same for every attempt at the same event
    Mcptasks-Timestamp    seconds since 1970, of this attempt
    Mcptasks-Signature    v1=<hex HMAC-SHA256 of "<timestamp>.<body>">, one per secret, separated by spaces
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from mcptasks.errors import ConfigurationError
from mcptasks.tracker import tls
from mcptasks.tracker.errors import Refused, Unhandled
from mcptasks.tracker.model import Delivery, Tracked

#: A secret that can be guessed signs nothing.
SECRET_BYTES: Final = 16
_GONE: Final = 410
#: Of a name's addresses so many are tried, each for so long: one may be down, or of a network that is not there.
_ADDRESSES: Final = 4
_CONNECT_S: Final = 5.0


class Webhook:
    """A consumer that is an HTTP endpoint. It has handled an event when it answers 2xx.

    410 sends the event to the dead letters at once; everything else is tried again, with growing gaps. Redirects are
    not followed. Addresses that are not of the public internet are refused, each time it connects, unless
    `allow_private`.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | Sequence[str],
        allow_private: bool = False,
        timeout_s: float = 20.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`secret`: of at least 16 bytes; several while one is exchanged, each of which signs.

        Raises:
            ConfigurationError: the URL is none of http or https, has a user in it, or a secret is too short.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("a webhook's URL must be http://host... or https://host...")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                "a webhook's URL must have no user or password in it; the signature says who sends"
            )
        self._secrets = [one.encode() for one in ([secret] if isinstance(secret, str) else secret)]
        if not self._secrets or any(len(one) < SECRET_BYTES for one in self._secrets):
            raise ConfigurationError(f"a webhook's secret must have at least {SECRET_BYTES} bytes")
        self._url = httpx2.URL(url)
        self._allow_private, self._timeout_s, self._clock = allow_private, timeout_s, clock

    def __repr__(self) -> str:
        # The path may hold a token.
        return f"Webhook({self._url.scheme}://{self._url.host})"

    async def deliver(self, delivery: Delivery) -> None:
        """The endpoint has answered 2xx.

        Raises:
            Refused: it answered 410, or its address is one that must not be reached.
            Unhandled: it did not answer, or otherwise.
        """
        body = json.dumps(payload(delivery), separators=(",", ":")).encode()
        timestamp = str(int(self._clock()))
        headers = {
            "content-type": "application/json",
            "host": self._url.netloc.decode(),
            "user-agent": "mcptasks",
            "mcptasks-event-id": delivery.event.event_id,
            "mcptasks-timestamp": timestamp,
            "mcptasks-signature": " ".join(f"v1={sign(one, timestamp, body)}" for one in self._secrets),
        }
        status = await self._post(body, headers)
        if status == _GONE:
            raise Refused("HTTP 410: the endpoint is gone")
        if not 200 <= status < 300:
            raise Unhandled(f"HTTP {status}")

    async def _post(self, body: bytes, headers: dict[str, str]) -> int:
        # The addresses that were judged are those that are connected to: a name may say something else the next time.
        refused: Exception | None = None
        for address in await self._addresses():
            try:
                return await self._post_to(address, body, headers)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
                refused = exc
            except httpx2.HTTPError as exc:
                raise Unhandled(f"no answer ({type(exc).__name__})") from exc
        raise Unhandled(f"no answer ({type(refused).__name__})") from refused

    async def _post_to(self, address: str, body: bytes, headers: dict[str, str]) -> int:
        # A client of its own: pooled connections would be found by address, whatever name they were made for.
        timeout = httpx2.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_S))
        async with (
            httpx2.AsyncClient(
                verify=tls.context(), trust_env=False, follow_redirects=False, timeout=timeout
            ) as client,
            client.stream(
                "POST",
                self._url.copy_with(host=address),
                content=body,
                headers=headers,
                extensions={"sni_hostname": self._url.host},
            ) as response,
        ):
            return response.status_code  # the answer's body is nobody's business

    async def _addresses(self) -> list[str]:
        port = self._url.port or (443 if self._url.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._url.host, port, type=socket.SOCK_STREAM)
        except OSError as exc:
            raise Unhandled("its name cannot be resolved") from exc
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not self._allow_private and not all(is_public(address) for address in addresses):
            raise Refused("its address is not public (allow_private=True allows that)")
        return addresses[:_ADDRESSES]


def is_public(address: str) -> bool:
    """The address is one of the public internet: not private, loopback, link-local, multicast or reserved."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        # Ways to write an IPv4 address in an IPv6 one: what is behind counts.
        behind = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if behind is not None:
            return is_public(str(behind))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def sign(secret: bytes, timestamp: str, body: bytes) -> str:
    """The hex HMAC-SHA256 of "<timestamp>.<body>"."""
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def payload(delivery: Delivery) -> dict[str, Any]:
    """The JSON that is sent: the event, and the task as it is now."""
    return {**delivery.event.as_json(), "task": shown(delivery.task)}


def shown(task: Tracked) -> dict[str, Any]:
    """The task for those who are told of it: without its handle, which is a key to it."""
    return {
        "task_id": task.task_id,
        "server": task.server,
        "tool": task.tool,
        "owner": task.owner,
        "status": str(task.status),
        "reason": None if task.reason is None else str(task.reason),
        "message": task.message,
        "questions": dict(task.questions),
        "created_ms": task.created_ms,
        "updated_ms": task.updated_ms,
        "result": task.result,
        "truncated": task.truncated,
        "error": task.error,
    }
