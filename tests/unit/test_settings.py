"""Every knob comes from MCPTASKS_*, once, and a wrong one is refused with its name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mcptasks.errors import ConfigurationError
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.keys import SECRETS


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own MCPTASKS_* say nothing here."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MCPTASKS_{name.upper()}", raising=False)


def test_without_any_variable_the_settings_are_usable_and_consistent() -> None:
    """`Tasks()` needs no configuration."""
    settings = Settings()
    assert settings.broker == settings.redis_url == "redis://127.0.0.1:6379/0"
    assert settings.renew_ms * 3 <= settings.lease_ms
    assert 2 * settings.store_timeout_ms < 5_000, "a connection is tried twice, and callers are promised 5 seconds"
    assert max(settings.countdowns_ms) <= 60_000, "far below any visibility timeout"


def test_every_setting_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations with a unit or as milliseconds, lists by comma."""
    for name, text in {
        "REDIS_URL": "redis://store:1/2",
        "BROKER_URL": "amqp://broker//",
        "PREFIX": "{mcp}:",
        "TTL_MS": "24h",
        "LEASE_MS": "30000",
        "HEADERS": "X-Team, x-request-id,,",
        "STRICT_MCP_NAME": "true",
        "COUNTDOWNS_MS": '["1s", 2000]',
        "FLOWER": "off",
    }.items():
        monkeypatch.setenv(f"MCPTASKS_{name}", text)
    settings = Settings()
    assert (settings.redis_url, settings.broker, settings.prefix) == ("redis://store:1/2", "amqp://broker//", "{mcp}:")
    assert (settings.ttl_ms, settings.lease_ms, settings.countdowns_ms) == (86_400_000, 30_000, (1_000, 2_000))
    assert (settings.headers, settings.strict_mcp_name, settings.flower) == (("x-team", "x-request-id"), True, "off")


ONE, TWO = "first-secret-of-thirty-two-bytes!", "second-secret-of-thirty-two-bytes"


def test_the_keys_of_request_states_are_a_list_and_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seals, all open; nothing that is printed of the settings shows them."""
    monkeypatch.setenv("MCPTASKS_REQUEST_STATE_KEYS", f" {ONE},{TWO} ,")
    settings = Settings.load()
    assert [key.get_secret_value() for key in settings.request_state_keys] == [ONE, TWO]
    for text in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert ONE not in text and TWO not in text


@pytest.mark.parametrize("keys", ["too-short", f"{ONE},too-short", f"{ONE},{ONE}"])
def test_a_bad_key_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    """The SDK refuses short keys and doubled ones; it must not come to that when a server is already up."""
    monkeypatch.setenv("MCPTASKS_REQUEST_STATE_KEYS", keys)
    with pytest.raises(ConfigurationError, match=r"REQUEST_STATE_KEYS.*at least 32 bytes each; make one with") as said:
        Settings.load()
    with pytest.raises(ValidationError) as raw:
        Settings()
    for text in (str(said.value), str(raw.value), repr(raw.value)):
        assert all(key not in text for key in keys.split(","))


OLD, NEW = (key.get_secret_value() for key in SECRETS[:2])


@covers("B09")
def test_the_keys_that_seal_are_a_list_and_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above: the order is the rotation, and nothing that is printed shows them."""
    monkeypatch.setenv("MCPTASKS_ENCRYPTION_KEYS", f"{NEW}, {OLD}")
    settings = Settings.load()
    assert [key.get_secret_value() for key in settings.encryption_keys] == [NEW, OLD]
    for text in (repr(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert OLD not in text and NEW not in text


@covers("B09")
@pytest.mark.parametrize("keys", ["no-key", f"{OLD},no-key", f"{OLD},{OLD}", OLD[:-4], "ü" * 44])
def test_what_is_no_fernet_key_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    """At start, not at the first call."""
    monkeypatch.setenv("MCPTASKS_ENCRYPTION_KEYS", keys)
    with pytest.raises(
        ConfigurationError, match=r"ENCRYPTION_KEYS: must be different Fernet keys; make one with"
    ) as said:
        Settings.load()
    assert not any(key in str(said.value) for key in keys.split(","))


@covers("B09")
def test_without_the_package_keys_are_refused_and_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text instead would be the worst of all answers."""
    monkeypatch.setattr("mcptasks.settings.find_spec", lambda _: None)
    monkeypatch.setenv("MCPTASKS_ENCRYPTION_KEYS", OLD)
    with pytest.raises(ConfigurationError, match=r"pip install 'mcptasks\[encryption\]'"):
        Settings.load()
    monkeypatch.delenv("MCPTASKS_ENCRYPTION_KEYS")
    assert Settings.load().encryption_keys == ()


@covers("B09")
def test_tokens_are_kept_only_where_they_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bearer token in plain text is everybody's."""
    monkeypatch.setenv("MCPTASKS_KEEP_TOKEN", "true")
    with pytest.raises(ConfigurationError, match="keep_token needs encryption_keys"):
        Settings.load()
    monkeypatch.setenv("MCPTASKS_ENCRYPTION_KEYS", OLD)
    assert Settings.load().keep_token


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"lease_ms": 1_000, "renew_ms": 501}, "renew_ms must be at most half of lease_ms"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": "soon"}, "ttl_ms\n.*'soon' is not a duration"),
        ({"countdown_budget": -1}, "countdown_budget"),
        ({"arguments_max": 0}, "arguments_max"),
        ({"flower": "everything"}, "flower"),
        ({"tll_ms": 5}, "tll_ms"),
        ({"countdowns_ms": (0,)}, "countdowns_ms"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_with_its_name(wrong: dict[str, Any], says: str) -> None:
    """Also one that is only misspelled: it would silently do nothing."""
    with pytest.raises(ValidationError, match=says):
        Settings(**wrong)


@covers("N3")
@pytest.mark.parametrize("name", ["Authorization", "cookie", "Proxy-Authorization"])
def test_headers_that_carry_credentials_cannot_be_kept(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Invariant 10: bearer tokens are never stored."""
    monkeypatch.setenv("MCPTASKS_HEADERS", f"x-team,{name}")
    with pytest.raises(ValidationError, match=f"headers may not name {name.lower()}: credentials are never stored"):
        Settings()


def test_settings_do_not_change_once_read() -> None:
    """They are passed down; a part that changed them would change all."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().queue = "other"
