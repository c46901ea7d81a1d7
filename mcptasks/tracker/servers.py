"""The remote servers that one process speaks to: one connection each, opened when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx2
from mcp.client.stdio import StdioServerParameters

from mcptasks.errors import ConfigurationError
from mcptasks.tracker.config import ServerEntry, Speaking, filled, load
from mcptasks.tracker.drivers.auto import AutoDriver
from mcptasks.tracker.drivers.core import CoreDriver
from mcptasks.tracker.drivers.tasks import TasksDriver
from mcptasks.tracker.drivers.triple import TripleDriver
from mcptasks.tracker.http_peer import Auth, HttpPeer
from mcptasks.tracker.pacing import Pacing
from mcptasks.tracker.peer import Era, Peer
from mcptasks.tracker.remote import Driver
from mcptasks.tracker.stdio_peer import StdioPeer


class Servers:
    """The servers of an `mcpServers` file. Belongs to one process, and to the event loop in which it is first used.

    async with Servers("servers.json") as servers:
        accepted = await servers.driver("reports").submit("build_report", {"topic": "q3"}, key="q3")
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        auth: Mapping[str, Auth] | None = None,
        environment: Mapping[str, str] | None = None,
        transports: Mapping[str, httpx2.AsyncBaseTransport] | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            source: the file, or what was read from it.
            auth: by a server's name, an async function that gives headers such as `Authorization`; awaited before the
                first request, and again when the server answers 401.
            environment: where `${VAR}` is looked up; None: this process's.
            transports: by a server's name, in the place of the network.

        Raises:
            ConfigurationError: the file is not what it must be, or `auth` names a server that it has not.
        """
        self._entries, self._auth, self._transports = load(source), dict(auth or {}), dict(transports or {})
        self._environment = os.environ if environment is None else environment
        self._peers: dict[str, Peer] = {}
        self._drivers: dict[str, TasksDriver | CoreDriver | AutoDriver | TripleDriver] = {}
        for name in self._auth:
            self._entry(name)

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def names(self) -> list[str]:
        """The servers that there are, in the file's order."""
        return list(self._entries)

    def speaking(self, name: str) -> Speaking:
        """The settings of one server.

        Raises:
            ConfigurationError: there is none of that name.
        """
        return self._entry(name).mcptasks

    def problems(self) -> dict[str, str]:
        """By server, why it cannot be used as this process's environment is; nothing is sent."""
        found: dict[str, str] = {}
        for name, entry in self._entries.items():
            try:
                filled(name, entry, self._environment)
            except ConfigurationError as exc:
                found[name] = str(exc)
        return found

    def driver(self, name: str) -> Driver:
        """The way to speak to this server, always the same one; nothing is sent yet.

        Raises:
            ConfigurationError: there is no server of that name, or its environment lacks a variable.
        """
        if (driver := self._drivers.get(name)) is None:
            peer = self._peers[name] = self._peer(name, filled(name, self._entry(name), self._environment))
            driver = self._drivers[name] = _driver(peer, self.speaking(name))
        return driver

    async def aclose(self) -> None:
        """All connections are closed, and the programs have ended. A driver that is asked for later opens anew."""
        drivers, peers = list(self._drivers.values()), list(self._peers.values())
        self._drivers.clear()
        self._peers.clear()
        for driver in drivers:
            if isinstance(driver, (CoreDriver, AutoDriver)):
                await driver.aclose()
        for peer in peers:
            await peer.aclose()

    def _entry(self, name: str) -> ServerEntry:
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(self._entries) or "none"
            raise ConfigurationError(f"There is no server {name!r} in mcpServers; there are: {known}") from None

    def _peer(self, name: str, entry: ServerEntry) -> Peer:
        speaking = entry.mcptasks
        eras = {"tasks": Era.MODERN, "core-2025-11-25": Era.LEGACY}
        pacing = Pacing(speaking.max_concurrency, speaking.rate)
        common = (name, eras.get(speaking.driver, Era.ASK), speaking.questions, pacing, speaking.timeout_ms / 1_000)
        if entry.url is None:
            assert entry.command is not None  # `ServerEntry` has either
            program = StdioServerParameters(
                command=entry.command, args=list(entry.args), env=dict(entry.env), cwd=entry.cwd
            )
            return StdioPeer(*common, parameters=program, body_max=speaking.body_max)
        return HttpPeer(
            *common,
            url=entry.url,
            headers=entry.headers,
            body_max=speaking.body_max,
            auth=self._auth.get(name),
            transport=self._transports.get(name),
        )


def _driver(peer: Peer, speaking: Speaking) -> TasksDriver | CoreDriver | AutoDriver | TripleDriver:
    match speaking.driver:
        case "tasks":
            return TasksDriver(peer, honours_key=speaking.honours_key)
        case "core-2025-11-25":
            return CoreDriver(peer, honours_key=speaking.honours_key)
        case "triple":
            assert speaking.triple is not None  # `Speaking` sees to it
            return TripleDriver(peer, speaking.triple, honours_key=speaking.honours_key)
        case _:
            return AutoDriver(peer, honours_key=speaking.honours_key)
