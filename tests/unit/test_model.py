"""The values that travel through the house: durations, ids, times, statuses."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcptasks.errors import ConfigurationError
from mcptasks.model import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    Hint,
    Status,
    Submission,
    is_task_id,
    label,
    new_task_id,
)
from mcptasks.times import Duration, duration_ms, iso
from tests.requirements import covers

# ------------------------------------------------------------------------------------------------ durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("1s", 1_000),
        ("90s", 90_000),
        ("1.5s", 1_500),
        ("15m", 900_000),
        ("24h", 86_400_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1d2h3m4s5ms", 93_784_005),
        (1, 1_000),
        (0.25, 250),
        (timedelta(minutes=2), 120_000),
    ],
    ids=str,
)
def test_a_duration_is_whole_milliseconds(text: Duration, ms: int) -> None:
    """DESIGN: one unit inside. A bare number is seconds, as everywhere in Python."""
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "1", "1x", "s", "-1s", "1 h", "1h 30m", " 1s", "1s ", "1,5s", "1h30", "one hour", "1e3s", "٣s\u0000"]
)
def test_what_is_no_duration_is_told_what_one_looks_like(text: str) -> None:
    """A typing mistake must not become a limit nobody meant."""
    with pytest.raises(ConfigurationError, match="is not a duration; write seconds as a number"):
        duration_ms(text)


@pytest.mark.parametrize("value", [0, -1, -0.5, "0s", "0ms", timedelta(0), timedelta(seconds=-1), 0.0001], ids=str)
def test_a_duration_is_positive(value: Duration) -> None:
    """Nought would mean never or at once, depending on who reads it."""
    with pytest.raises(ConfigurationError, match="is not a positive duration"):
        duration_ms(value)


# ------------------------------------------------------------------------------------------------ ids


@covers("P24")
def test_an_id_carries_more_than_128_random_bits_in_a_header_safe_alphabet() -> None:
    """SEP-2663: at least 128 bits. 32 characters of 64 are 192, less what a dash in front would be."""
    ids = {new_task_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", one) for one in ids)
    for position in range(32):
        seen = {one[position] for one in ids}
        assert len(seen) == 64 - (position == 0), f"character {position} carries no full 6 bits"
    assert not any(one.startswith("-") for one in ids), "a command line would take it for an option"


def test_our_own_ids_are_recognised_and_odd_ones_are_not() -> None:
    """F11: what could not be an id need not be looked up."""
    assert all(is_task_id(new_task_id()) for _ in range(100))
    for odd in ("", "x" * 31, "x" * 33, "x" * 31 + "\n", "x" * 31 + "é", "*" * 32, new_task_id() + "\n"):
        assert not is_task_id(odd)


@covers("P81")
def test_a_label_leaves_most_of_the_secret_out() -> None:
    """P81: without authentication the id is a bearer secret; 132 of its bits stay unknown."""
    task_id = new_task_id()
    assert task_id.startswith(label(task_id))
    assert (len(task_id) - len(label(task_id))) * 6 >= 128


def test_a_message_is_named_after_its_task_and_run_without_the_secret() -> None:
    """Operators find the Celery message of a task, and the other way round."""
    task_id = "abcdefghijKLMNOPQRST"
    assert Hint(task_id=task_id, run=3).message_id == "abcdefghij-3"
    assert Hint(task_id=task_id, run=3, look=2).message_id == "abcdefghij-3.2"


# ------------------------------------------------------------------------------------------------ times


@covers("P11")
@given(st.integers(min_value=0, max_value=7_258_118_399_999))
def test_a_time_is_iso_8601_in_utc_and_loses_no_millisecond(ms: int) -> None:
    """SEP-2663: ISO 8601; F10: always with its zone."""
    text = iso(ms)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    back = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    assert back // timedelta(milliseconds=1) == ms


# ------------------------------------------------------------------------------------------------ status


@covers("P30")
def test_three_statuses_are_terminal() -> None:
    """SEP-2663: completed, failed, cancelled; nothing leaves them."""
    assert {status for status in Status if status.terminal} == {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


# ------------------------------------------------------------------------------------------------ submission


INFO: dict[str, Any] = {"name": "c", "version": "1"}
CAPABILITIES: dict[str, Any] = {"elicitation": {}}


@pytest.mark.parametrize(
    "how",
    [
        {"meta": {CLIENT_INFO: INFO, CLIENT_CAPABILITIES: CAPABILITIES}},
        {"client_info": INFO, "client_capabilities": CAPABILITIES},
        {"client_info": INFO, "client_capabilities": CAPABILITIES, "meta": {"x": 1}},
    ],
    ids=["modern", "older", "older with other meta"],
)
def test_a_submission_knows_its_client_however_it_was_told(how: dict[str, Any]) -> None:
    """Modern requests carry it in `_meta`, older ones told it once."""
    call = Submission(tool="t", arguments={}, protocol_version="v", **how)
    assert (call.client, call.capabilities) == (INFO, CAPABILITIES)


def test_a_submission_without_a_client_has_none() -> None:
    """`clientInfo` is optional on the modern wire."""
    call = Submission(tool="t", arguments={}, protocol_version="v")
    assert (call.client, call.capabilities) == (None, None)


def test_a_client_that_declared_nothing_is_not_one_that_said_nothing() -> None:
    """An older client's empty capabilities: without them the SDK forgets its name, too."""
    call = Submission(tool="t", arguments={}, protocol_version="2025-11-25", client_capabilities={})
    assert call.capabilities == {}
