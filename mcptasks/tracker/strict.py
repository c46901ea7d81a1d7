"""Reads what a remote server wrote as the strictest client would: digits kept, nothing that JSON has not, bounded."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn, cast

from mcptasks.errors import BadPayload
from mcptasks.strict_json import check_depth
from mcptasks.tracker.remote import ProtocolBroken, RemoteRefused, RemoteUnavailable

#: JSON-RPC's number for an answer that has an error without a usable number.
_NO_CODE: Final = -32603


class _NotFinite(ValueError):
    pass


def _constant(name: str) -> NoReturn:
    raise _NotFinite(name)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _NotFinite("a number beyond what a double holds")
    return value


def read(raw: bytes | str, server: str) -> Any:
    """The JSON value of these bytes.

    Raises:
        RemoteUnavailable: they are no JSON; a proxy wrote them, or they were cut off.
        ProtocolBroken: NaN or an infinity (1e999 is one too), over 200 levels, an integer of over 4,300 digits.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        value = json.loads(text, parse_constant=_constant, parse_float=_float)
        check_depth(value, "It")
    except _NotFinite as exc:
        raise ProtocolBroken(f"Server {server!r} sent a number that JSON has not: {exc}") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        # `from None`, here and below: the text itself stands in these errors, and does not belong in a traceback.
        raise RemoteUnavailable(f"Server {server!r} sent a body that is no JSON") from None
    except (RecursionError, BadPayload):
        raise ProtocolBroken(f"Server {server!r} sent JSON that nests deeper than 200 levels") from None
    except ValueError:
        raise ProtocolBroken(f"Server {server!r} sent an integer of more digits than Python reads") from None
    return value


def finite(value: Any, server: str) -> Any:
    """The same value, of which another parser has made Python objects.

    Raises:
        ProtocolBroken: it holds NaN or an infinity, or nests deeper than 200 levels.
    """
    try:
        json.dumps(value, allow_nan=False)
        check_depth(value, "It")
    except (ValueError, RecursionError, BadPayload):
        raise ProtocolBroken(
            f"Server {server!r} sent what JSON has not: NaN, an infinity, or endless nesting"
        ) from None
    return value


def outcome(message: Any, request_id: int, server: str, *, any_id: bool = False) -> dict[str, Any]:
    """The result of this JSON-RPC response.

    `any_id`: an error may have another id or none, as servers write that refused a request before they read it.

    Raises:
        RemoteRefused: it is an error.
        ProtocolBroken: it is no response to the request.
    """
    if not isinstance(message, dict):
        raise ProtocolBroken(f"Server {server!r} sent JSON that is no JSON-RPC response")
    found = cast("dict[str, Any]", message)
    error, result = found.get("error"), found.get("result")
    if isinstance(error, dict):
        if found.get("id") not in (request_id, None) and not any_id:
            raise ProtocolBroken(f"Server {server!r} answered another request than the one that was sent")
        raise refusal(cast("dict[str, Any]", error))
    if found.get("id") != request_id or isinstance(found.get("id"), bool):
        raise ProtocolBroken(f"Server {server!r} answered another request than the one that was sent")
    if error is not None or not isinstance(result, dict):
        raise ProtocolBroken(f"Server {server!r} sent a JSON-RPC response without a result")
    return cast("dict[str, Any]", result)


def refusal(error: dict[str, Any]) -> RemoteRefused:
    """A JSON-RPC error; what it lacks is made up, for it is an error all the same."""
    code, message = error.get("code"), error.get("message")
    return RemoteRefused(
        code if type(code) is int else _NO_CODE,
        message if isinstance(message, str) and message else "The server gave no message",
        error.get("data"),
    )
