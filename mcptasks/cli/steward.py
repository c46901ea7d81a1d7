"""Keeps the embedded Valkey of a folder for as long as anybody uses it: `python -m mcptasks.cli.steward FOLDER TARGET`.

A process of its own, for the store belongs to none of its users: desktop clients start a second `mcptasks dev` beside
the first, and either may end before the other. A user is an open connection, which the kernel closes for whoever ends,
also by `kill -9`. The first user's is our standard input; the others come through a door whose port stands in the
folder. Each is told where the store is, and never says anything. A connection that we close says that the store is
gone or, to one who leaves, that there is nothing to wait for. `shared_store.py` is the users' side.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from mcptasks.cli.embedded import HOST, STOP_MS, EmbeddedValkey
from mcptasks.errors import ConfigurationError, MCPTasksError

#: In the store's folder: the number of the port where further users are let in.
DOOR: Final = "door"


def main() -> None:
    """Every user of the store has left, and it has ended with its data written out."""
    # Whoever stops "everything" with a signal must not take the store from workers that still have runs to give back.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    folder, target = Path(sys.argv[1]), sys.argv[2]
    with socket.socket(fileno=sys.stdin.fileno()) as first:
        try:
            # A store that its users left a moment ago may still be writing.
            with EmbeddedValkey(folder, lock_ms=STOP_MS) as valkey:
                threading.Thread(target=_fall_with, args=(valkey,), daemon=True).start()
                last = _serve(first, valkey, target)
        except MCPTasksError as error:
            _tell(first, error=str(error), usage=isinstance(error, ConfigurationError))
            return
        # Only now does the one who waits for it hear that all is written out.
        last.close()


def _fall_with(valkey: EmbeddedValkey) -> None:
    valkey.wait()
    os._exit(1)


def _serve(first: socket.socket, valkey: EmbeddedValkey, target: str) -> socket.socket:
    """Returns when the last user has left, with the connection that user had."""
    users = [first]
    word = {"url": valkey.url, "folder": str(valkey.folder), "target": target}
    with socket.create_server((HOST, 0)) as door:
        (valkey.folder / DOOR).write_text(str(door.getsockname()[1]))
        _tell(first, **word)
        while True:
            readable, _, _ = select.select([door, *users], [], [])
            if door in readable:
                user, _ = door.accept()
                _tell(user, **word)
                users.append(user)
            for user in [user for user in users if user in readable]:
                users.remove(user)
                if not users:
                    return user
                user.close()


def _tell(user: socket.socket, **word: str | bool) -> None:
    # One who is gone already is noticed where its end is read.
    with suppress(OSError):
        user.sendall(json.dumps(word).encode() + b"\n")


if __name__ == "__main__":
    main()
