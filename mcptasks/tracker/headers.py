"""HTTP headers that say more than one thing."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from mcp.shared.inbound import encode_header_value

#: A longer name does not fit into every server's headers; it stands in the request's body as well.
_NAME_MAX: Final = 24 * 1024


def name_value(name: str) -> str | None:
    """The value of the header `Mcp-Name` for this name, encoded where it has to be; None: it fits into none."""
    try:
        value = encode_header_value(name)
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can say it, and nothing else can
        return None
    return value if len(value) <= _NAME_MAX else None


def retry_after_ms(value: str) -> int | None:
    """Milliseconds that `Retry-After` asks to wait: seconds or a date, as RFC 9110 has it; None: it says nothing."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return int(text[:12]) * 1_000
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0, round((at - datetime.now(UTC)).total_seconds() * 1_000))
