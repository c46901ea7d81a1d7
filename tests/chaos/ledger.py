"""What really happened, in a file outside the store: written by the tools, by the driver, and by nobody else.

Each tool writes a row per effect with the number of its run. The driver writes what it submitted, how each call came
out, and every fault it committed. SQLite in WAL mode: a row that was written stays written whatever is killed next.
"""

from __future__ import annotations

import json
import os
import queue
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_SCHEMA: Final = """
CREATE TABLE effects (key TEXT, run INTEGER, event TEXT, at REAL, pid INTEGER, detail TEXT);
CREATE INDEX effects_by_key ON effects (key);
CREATE TABLE submissions (key TEXT PRIMARY KEY, kind TEXT, arguments TEXT, at REAL);
CREATE TABLE calls (key TEXT, at REAL, door TEXT, method TEXT, outcome TEXT, detail TEXT);
CREATE TABLE faults (kind TEXT, target TEXT, began REAL, ended REAL, detail TEXT);
CREATE TABLE exits (name TEXT, at REAL, code INTEGER, told INTEGER);
"""

#: A process frozen in the middle of its write keeps everybody else waiting until it is thawed.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that a tool did."""

    key: str
    run: int
    event: str
    at: float
    pid: int
    detail: str


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
    # The machine does not crash here, only processes do: what the kernel has is safe.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def note(path: Path, key: str, run: int, event: str, **detail: Any) -> None:
    """The ledger has this effect. A connection of its own each time: nothing to share with a forked child."""
    row = (key, run, event, time.time(), os.getpid(), json.dumps(detail) if detail else "")
    with closing(_connect(path)) as connection:
        connection.execute("INSERT INTO effects VALUES (?, ?, ?, ?, ?, ?)", row)


def noted(path: Path, key: str, event: str) -> int:
    """How often the event stands under the key."""
    with closing(_connect(path)) as connection:
        rows = connection.execute("SELECT count(*) FROM effects WHERE key = ? AND event = ?", (key, event))
        return int(rows.fetchone()[0])


class Ledger:
    """The driver's hand on the file. It writes from a thread, so that a frozen tool's lock never stops the driver."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(_connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
        self._rows: queue.SimpleQueue[tuple[str, Sequence[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="chaos-ledger", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._rows.put(None)
        self._thread.join(_PATIENCE_S)

    def add(self, table: str, *row: Any) -> None:
        """The table will have this row."""
        self._rows.put((table, row))

    def effects(self) -> dict[str, list[Effect]]:
        """Everything that tools did, by key, in the order in which it was done."""
        found: defaultdict[str, list[Effect]] = defaultdict(list)
        with closing(_connect(self.path)) as connection:
            for row in connection.execute("SELECT * FROM effects ORDER BY at, rowid"):
                found[row[0]].append(Effect(*row))
        return found

    def _write(self) -> None:
        with closing(_connect(self.path)) as connection:
            while (item := self._rows.get()) is not None:
                table, row = item
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
