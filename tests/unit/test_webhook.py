"""The webhook: what it sends, how it is signed, what it makes of answers, and where it does not go."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from mcptasks.errors import ConfigurationError
from mcptasks.tracker import tls
from mcptasks.tracker.errors import Refused, Unhandled
from mcptasks.tracker.model import Delivery, Event, EventKind, Tracked, TrackStatus
from mcptasks.tracker.webhook import Webhook, is_public
from tests.requirements import covers

pytestmark = pytest.mark.anyio

SECRET = "a secret of the receiver"


def delivery() -> Delivery:
    """An end."""
    task = Tracked(
        task_id="t1",
        owner="ann",
        server="crm",
        tool="export",
        status=TrackStatus.COMPLETED,
        reason=None,
        message=None,
        handle="secret-handle",
        questions={},
        created_ms=1,
        updated_ms=2,
        revision=3,
        failures=0,
        last_error=None,
        polls=1,
        cancel_requested=False,
        cancel_delivered=False,
        consumers=("hook",),
        result={"content": [{"type": "text", "text": "42"}], "isError": False},
    )
    event = Event(event_id="t1:3", kind=EventKind.COMPLETED, task_id="t1", server="crm", tool="export", owner="ann")
    return Delivery(event=event, consumer="hook", task=task, token=1, revision=3, failed=0)


class Receiver:
    """An HTTP endpoint that keeps what it gets and answers as it is told."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.got: list[tuple[str, dict[str, str], bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.got.append((first, headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(self.response)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving(response: str) -> AsyncGenerator[tuple[Receiver, str]]:
    """An endpoint and its URL."""
    receiver = Receiver(f"HTTP/1.1 {response}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    try:
        yield receiver, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/in?who=us"
    finally:
        server.close()


def verified(secret: str, headers: dict[str, str], body: bytes, *, now: float) -> bool:
    """As docs/tracking.md tells receivers to check a signature; shares no code with the sender."""
    timestamp = headers["mcptasks-timestamp"]
    expected = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    signatures = [part.removeprefix("v1=") for part in headers["mcptasks-signature"].split(" ")]
    return abs(now - int(timestamp)) < 300 and any(hmac.compare_digest(expected, one) for one in signatures)


@covers("D6")
async def test_a_post_is_signed_timed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body is JSON with the event and the task, without the task's handle."""
    async with receiving("204 No Content") as (receiver, url):
        hook = Webhook(url, secret=SECRET, allow_private=True, clock=lambda: 1_800_000_000.9)
        await hook.deliver(delivery())
    ((first, headers, body),) = receiver.got
    assert first == "POST /in?who=us HTTP/1.1"
    assert headers["host"] == url.split("/")[2]
    assert (headers["mcptasks-event-id"], headers["mcptasks-timestamp"]) == ("t1:3", "1800000000")
    assert verified(SECRET, headers, body, now=1_800_000_010)
    assert not verified("another secret here", headers, body, now=1_800_000_010)
    assert not verified(SECRET, headers, body.replace(b"42", b"43"), now=1_800_000_010)
    assert not verified(SECRET, headers, body, now=1_800_001_000)
    said = json.loads(body)
    assert (said["event_id"], said["kind"], said["task"]["result"]["content"][0]["text"]) == ("t1:3", "completed", "42")
    assert b"secret-handle" not in body


async def test_while_a_secret_is_exchanged_both_sign() -> None:
    """A receiver with either is served."""
    async with receiving("200 OK") as (receiver, url):
        await Webhook(url, secret=[SECRET, "the next secret!"], allow_private=True).deliver(delivery())
    ((_, headers, body),) = receiver.got
    now = int(headers["mcptasks-timestamp"])
    assert verified(SECRET, headers, body, now=now)
    assert verified("the next secret!", headers, body, now=now)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ("410 Gone", Refused),
        ("404 Not Found", Unhandled),
        ("500 Oops", Unhandled),
        ("302 Found\r\nlocation: http://127.0.0.1:1/", Unhandled),
    ],
)
async def test_what_is_no_2xx_is_not_handled(response: str, error: type[Exception]) -> None:
    """410 is for good; a redirect is not followed."""
    async with receiving(response) as (receiver, url):
        with pytest.raises(error, match=response[:3]):
            await Webhook(url, secret=SECRET, allow_private=True).deliver(delivery())
    assert len(receiver.got) == 1


async def test_a_receiver_that_is_down_or_hangs_is_not_handled() -> None:
    """Its error says so, and no more."""

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hangs, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/secret-path"
    with pytest.raises(Unhandled, match="no answer") as raised:
        await Webhook(url, secret=SECRET, allow_private=True, timeout_s=0.2).deliver(delivery())
    assert "secret-path" not in str(raised.value)
    server.close()
    await server.wait_closed()
    with pytest.raises(Unhandled, match="no answer"):
        await Webhook(url, secret=SECRET, allow_private=True).deliver(delivery())


@covers("D6")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "0.0.0.0"])
async def test_private_addresses_are_refused(host: str) -> None:
    """Nothing is sent to the network that this process stands in."""
    async with receiving("200 OK") as (receiver, url):
        port = url.split(":")[2].split("/")[0]
        with pytest.raises(Refused, match="not public"):
            await Webhook(f"http://{host}:{port}/", secret=SECRET).deliver(delivery())
    assert receiver.got == []


Lookup = Callable[..., Awaitable[list[tuple[Any, ...]]]]


async def test_the_address_that_was_judged_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that says something else at the second question is asked once per delivery."""
    async with receiving("200 OK") as (receiver, url):
        port = int(url.split(":")[2].split("/")[0])
        asked: list[str] = []

        async def lookup(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        hook = Webhook(f"http://receiver.example:{port}/in", secret=SECRET, allow_private=True)
        await hook.deliver(delivery())
    assert [name for name in asked if name == "receiver.example"] == ["receiver.example"]
    ((_, headers, _),) = receiver.got
    assert headers["host"] == f"receiver.example:{port}"


async def test_a_name_with_an_address_that_is_down_is_reached_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them was judged; and no certificates are read for it."""
    tls.context()
    monkeypatch.setattr(ssl, "create_default_context", None)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", None)
    async with receiving("200 OK") as (receiver, url):
        port = int(url.split(":")[2].split("/")[0])
        addresses = ["127.0.0.9", "127.0.0.8", "127.0.0.1"]

        async def lookup(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
            found = addresses if host == "receiver.example" else [host]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        hook = Webhook(f"http://receiver.example:{port}/in", secret=SECRET, allow_private=True)
        await hook.deliver(delivery())
        del addresses[2:]
        with pytest.raises(Unhandled, match="ConnectError"):
            await hook.deliver(delivery())
    assert len(receiver.got) == 1


async def test_a_certificate_that_nobody_vouches_for_is_not_taken(tmp_path: Path) -> None:
    """It connects by address, and checks the certificate all the same; the name is sent along (SNI)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "pem").write_bytes(private + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    receiver = Receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unhandled, match="no answer"):
        await Webhook(f"https://localhost:{port}/", secret=SECRET, allow_private=True).deliver(delivery())
    server.close()
    assert (names, receiver.got) == (["localhost"], [])


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
    ],
)
def test_what_is_public(address: str, public: bool) -> None:
    """Also where an IPv4 address is written in an IPv6 one."""
    assert is_public(address) == public


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("ftp://host/", SECRET),
        ("http:///path", SECRET),
        ("https://user:pw@host/", SECRET),
        ("https://host/", "short"),
        ("https://host/", []),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(url: str, secret: Any) -> None:
    """And the message shows neither the URL nor the secret."""
    with pytest.raises(ConfigurationError) as raised:
        Webhook(url, secret=secret)
    assert "pw" not in str(raised.value)


def test_its_repr_shows_no_path() -> None:
    """A path may hold a token."""
    assert repr(Webhook("https://host/token", secret=SECRET)) == "Webhook(https://host)"
