"""What every ring shares: a real Valkey per test process, settings of a prefix of one's own, and the key-leak check."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Generator

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import settings as property_tests

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.settings import Settings

# A shell that runs the tests in the background makes them ignore Ctrl-C, and every process they start with them; the
# tests that press it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests have the same examples every time, and no clock that a busy machine could break.
property_tests.register_profile(
    "unhurried", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
property_tests.load_profile("unhurried")

#: The broker's own bookkeeping lives as long as its queues; it is Celery's, and bounded by their number.
_BROKERS = ("_kombu.binding", "unacked")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Generator[EmbeddedValkey]:
    """A Valkey of this test process's own."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def raw(valkey: EmbeddedValkey) -> Generator[redis.Redis]:
    """A plain client, to look at what is really stored and to break things."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def settings(valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings on that Valkey, under a prefix no other test has. Short leases, so that nothing waits for long ones."""
    artifacts = tmp_path_factory.mktemp("artifacts") / "place"
    return Settings(redis_url=valkey.url, prefix=f"t{uuid.uuid4().hex[:8]}:", artifacts_url=str(artifacts))


@pytest.fixture(autouse=True)
def no_key_without_an_expiry(request: pytest.FixtureRequest) -> Generator[None]:
    """Every key a test leaves has an expiry, unless it makes unlimited tasks (mark `unlimited`); then all are gone."""
    yield
    if "valkey" not in request.fixturenames:
        return
    server: EmbeddedValkey = request.getfixturevalue("valkey")
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = [str(key) for key in client.scan_iter(count=1000)]
        for_ever = [key for key in keys if client.ttl(key) == -1 and not _is_brokers(key, client)]
        client.flushall()
    if request.node.get_closest_marker("unlimited") is None:
        assert for_ever == []


def _is_brokers(key: str, client: redis.Redis) -> bool:
    return any(name in key for name in _BROKERS) or (client.type(key) == "list" and not key.endswith(":timeline"))
