"""How this project runs property tests: the same examples every time, and no clock that a busy machine could break."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

#: Put above `@given`.
UNHURRIED: Final = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
