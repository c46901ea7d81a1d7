"""The tracker's own settings."""

from __future__ import annotations

from typing import Any

import pytest

from mcptasks.errors import ConfigurationError
from mcptasks.tracker.options import TrackOptions


def test_what_goes_on_is_never_taken_for_lost() -> None:
    """As they come."""
    options = TrackOptions()
    assert options.lease_ms > 3 * options.call_ms and options.intent_ms > 2 * options.call_ms


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"LEASE_MS": "3s", "CALL_MS": "1s"}, "lease_ms must be more than 3 times call_ms"),
        ({"INTENT_MS": "2s", "CALL_MS": "1s"}, "intent_ms must be more than 2 times call_ms"),
        ({"CALL_MS": "1m"}, "must be more than"),
    ],
)
def test_a_lease_that_a_call_could_outlast_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], name: str
) -> None:
    """At the start, with the names of both."""
    for variable, value in given.items():
        monkeypatch.setenv(f"MCPTASKS_TRACK_{variable}", value)
    with pytest.raises(ConfigurationError, match=name):
        TrackOptions.load()
