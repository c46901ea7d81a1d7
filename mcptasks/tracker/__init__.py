"""Durable tracking of tasks on remote MCP servers: the caller's side, on the same store and the same fleet."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcptasks.tracker.agents import agents_server as agents_server
    from mcptasks.tracker.consumers import CeleryTask as CeleryTask
    from mcptasks.tracker.errors import AlreadyTracked as AlreadyTracked
    from mcptasks.tracker.errors import KeyConflict as KeyConflict
    from mcptasks.tracker.errors import Refused as Refused
    from mcptasks.tracker.errors import SubmitUncertain as SubmitUncertain
    from mcptasks.tracker.errors import Unhandled as Unhandled
    from mcptasks.tracker.model import DeadLetter as DeadLetter
    from mcptasks.tracker.model import Event as Event
    from mcptasks.tracker.model import EventKind as EventKind
    from mcptasks.tracker.model import Tracked as Tracked
    from mcptasks.tracker.model import TrackStatus as TrackStatus
    from mcptasks.tracker.options import TrackOptions as TrackOptions
    from mcptasks.tracker.remote import ProtocolBroken as ProtocolBroken
    from mcptasks.tracker.remote import RemoteRefused as RemoteRefused
    from mcptasks.tracker.remote import RemoteUnavailable as RemoteUnavailable
    from mcptasks.tracker.scope import TrackedTasks as TrackedTasks
    from mcptasks.tracker.servers import Servers as Servers
    from mcptasks.tracker.tracker import Tracker as Tracker
    from mcptasks.tracker.webhook import Webhook as Webhook

#: Public names and their modules, imported on first use: a look at the store needs neither Celery nor the SDK.
_HOMES: Final = {
    "AlreadyTracked": "errors",
    "CeleryTask": "consumers",
    "DeadLetter": "model",
    "Event": "model",
    "EventKind": "model",
    "KeyConflict": "errors",
    "ProtocolBroken": "remote",
    "Refused": "errors",
    "RemoteRefused": "remote",
    "RemoteUnavailable": "remote",
    "Servers": "servers",
    "SubmitUncertain": "errors",
    "TrackOptions": "options",
    "TrackStatus": "model",
    "Tracked": "model",
    "TrackedTasks": "scope",
    "Tracker": "tracker",
    "Unhandled": "errors",
    "Webhook": "webhook",
    "agents_server": "agents",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
