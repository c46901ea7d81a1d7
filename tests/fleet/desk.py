"""A desktop client's side of `mcptasks dev --stdio`: the command as its child, and every process that comes of it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import psutil
from mcp.client.stdio import StdioServerParameters
from mcp_types import jsonrpc_message_adapter

from tests.fleet.system import MCPTASKS, ROOT, START_S, STOP_S, Ledger
from tests.support.processes import Kin, living
from tests.support.waiting import wait_until

End = Literal["closes its input", "SIGTERM", "SIGKILL"]
ENDS: Final[tuple[End, ...]] = ("closes its input", "SIGTERM", "SIGKILL")

_HELLO: Final[dict[str, Any]] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "desk", "version": "1"},
}


class Window:
    """One running command and a client of 2025-11-25 that speaks to it by hand, and never reads its stderr."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        #: All that came over the wire, line by line.
        self.wire: list[bytes] = []
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._asked = 0

    def begin(self) -> None:
        """The server has answered `initialize`."""
        self.ask("initialize", _HELLO)
        self.answer()
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, tool: str, **arguments: Any) -> None:
        """The call is on its way."""
        self.ask("tools/call", {"name": tool, "arguments": arguments})

    def ask(self, method: str, params: dict[str, Any]) -> None:
        """The request is on its way."""
        self._asked += 1
        self._send({"jsonrpc": "2.0", "id": self._asked, "method": method, "params": params})

    def answer(self) -> dict[str, Any]:
        """The result of the last request."""
        while (answer := self._answers.get(timeout=START_S)).get("id") != self._asked:
            pass
        return answer["result"]

    def text(self) -> str:
        """The text that the last call came to."""
        return str(self.answer()["content"][0]["text"])

    def leave(self, end: End) -> None:
        """The client has told it to end, one way or the other."""
        match end:
            case "closes its input":
                assert self._process.stdin is not None
                self._process.stdin.close()
            case "SIGTERM":
                self._process.terminate()
            case "SIGKILL":
                self._process.kill()

    def await_end(self) -> tuple[int, str]:
        """Its exit code, and all that it said on stderr."""
        assert self._process.stderr is not None and self._process.stdin is not None
        code = self._process.wait(STOP_S)
        self._reader.join(STOP_S)
        assert not self._reader.is_alive(), "somebody still holds the wire"
        self._process.stdin.close()
        with self._process.stderr as said:
            return code, said.read().decode()

    def bury(self) -> None:
        """It has ended, for tests that failed."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def dirt(self) -> list[bytes]:
        """What came over the wire and is no message of the protocol."""
        return [line for line in self.wire if not _is_message(line)]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as wire:
            for line in wire:
                self.wire.append(line)
                if _is_message(line):
                    self._answers.put(json.loads(line))


def _is_message(line: bytes) -> bool:
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return False
    return line.endswith(b"\n")


@dataclass
class Desk:
    """Where windows are opened, all on one data folder. Nothing that they started lives after the `with` block."""

    folder: Path

    def __post_init__(self) -> None:
        self.kin = Kin(self.folder)

        self._windows: list[Window] = []
        self.ledger = Ledger(self.folder / "ledger.jsonl")

    @property
    def log(self) -> str:
        """What the workers have said."""
        log = self.folder / "data" / "workers.log"
        return log.read_text() if log.exists() else ""

    def open(self, target: str, **env: str) -> Window:
        """The command is starting."""
        window = Window([*MCPTASKS, *self._command(target)], self._environment(env))
        self._windows.append(window)
        return window

    def parameters(self, target: str, **env: str) -> StdioServerParameters:
        """The same, for the SDK's own client to start."""
        program, *args = MCPTASKS
        return StdioServerParameters(
            command=program, args=[*args, *self._command(target)], env=self._environment(env), cwd="/"
        )

    def insist(self, command: psutil.Process, end: End) -> None:
        """The command has ended; it got the signal again and again."""

        def ended() -> bool:
            if living([command]):
                command.send_signal(signal.SIGKILL if end == "SIGKILL" else signal.SIGTERM)
            return not living([command])

        wait_until(ended, description=f"the command has ended of {end}")

    def clear(self) -> None:
        """No process of the windows lives, for tests that failed."""
        for window in self._windows:
            window.bury()
        self.kin.kill()

    def await_nobody(self) -> None:
        """Every process that came of the windows has ended."""
        wait_until(lambda: not self.kin.living(), description="none of the windows' processes lives")

    def _command(self, target: str) -> list[str]:
        where = ["--workdir", str(ROOT), "--data", str(self.folder / "data")]
        return ["dev", target, "--stdio", *where, "--concurrency", "4"]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {**self.kin.environment(), "FLEET_LEDGER": str(self.ledger.path), "TMPDIR": str(self.folder), **more}


@contextmanager
def desk_in(folder: Path) -> Generator[Desk]:
    """A desk, left empty."""
    desk = Desk(folder)
    try:
        yield desk
        desk.await_nobody()
    finally:
        desk.clear()
