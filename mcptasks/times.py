"""Durations as people write them, moments as the wire has them, limits; inside there are only whole milliseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from mcptasks.errors import ConfigurationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Duration: TypeAlias = str | int | float | timedelta
"""Seconds as a number, a `timedelta`, or text such as "500ms", "15m", "24h", "1h30m"."""


def duration_ms(value: Duration) -> int:
    """The duration in whole milliseconds.

    Raises:
        ConfigurationError: the text is no duration, or it is not positive.
    """
    if isinstance(value, timedelta):
        ms = round(value.total_seconds() * 1000)
    elif isinstance(value, str):
        parts = _DURATION.findall(value)
        if not parts or "".join(n + u for n, u in parts) != value:
            raise ConfigurationError(
                f"{value!r} is not a duration; write seconds as a number, or text like '90s', '1h30m'"
            )
        ms = round(sum(float(n) * _UNIT_MS[u] for n, u in parts))
    else:
        ms = round(value * 1000)
    if ms <= 0:
        raise ConfigurationError(f"{value!r} is not a positive duration")
    return ms


def iso(ms: int) -> str:
    """Unix milliseconds as ISO 8601 in UTC with a `Z`, as the wire wants them."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime | None:
    """The moment that this text is in ISO 8601, in UTC where it has no offset; None: it is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimit:
    """How long a question may stay open, and what happens then."""

    ms: int
    #: The task fails with this message. None: the question is answered as a person who cancels would.
    failure: str | None
