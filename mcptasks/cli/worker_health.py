"""`mcptasks worker --health`: is there a worker on this host that lives and hears its queue? For probes."""

from __future__ import annotations

import asyncio
import socket

import typer

from mcptasks.errors import MCPTasksError
from mcptasks.settings import Settings
from mcptasks.store.registry import DEAF_MS, FRESH_MS, WorkerPulse
from mcptasks.store.store import TaskStore


class Unhealthy(MCPTasksError):
    """A probe should restart the worker."""


def health(name: str) -> None:
    """Prints who is healthy.

    Raises:
        Unhealthy: no worker of this host (or none of that name) lives, or one is deaf.
        StoreUnavailable: the store does not answer, so no worker can work.
    """
    pulses, now_ms = asyncio.run(_look())
    here = {node: p for node, p in pulses.items() if (node == name if name else p.host == socket.gethostname())}
    fresh = {node: p for node, p in here.items() if now_ms - p.at_ms <= FRESH_MS}
    if not fresh:
        raise Unhealthy(f"no live worker {name or 'on this host'}: none has reported within {FRESH_MS // 1000} s")
    if deaf := [node for node, p in fresh.items() if p.deaf_ms >= DEAF_MS]:
        raise Unhealthy(f"deaf: {', '.join(sorted(deaf))}: messages wait, slots are free, none is taken; restart it")
    if held := [f"{node} ({p.held_by})" for node, p in sorted(fresh.items()) if p.held_by]:
        raise Unhealthy(f"a tool holds the event loop, so nothing else runs: {', '.join(held)}; restart it")
    for node, pulse in sorted(fresh.items()):
        typer.echo(f"{node}: healthy, {pulse.active} of {pulse.slots} slots busy")


async def _look() -> tuple[dict[str, WorkerPulse], int]:
    store = TaskStore(Settings.load())
    try:
        return await store.workers(), await store.now_ms()
    finally:
        await store.aclose()
