"""Mistakes at the command line: each has its exit code and one clear sentence (DESIGN 7, issue 2 "Bad input")."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from mcptasks.cli.main import main
from tests.fleet.system import MCPTASKS, ROOT

#: From the start of the process itself; what Python needs for its imports on this machine comes on top.
WITHIN_S = 5.0

#: Nobody listens on the discard port.
NO_STORE = "redis://127.0.0.1:9/0"

FAILED, USAGE = 1, 2

SERVER = """
from mcp.server.mcpserver import MCPServer
from mcptasks import Tasks
tasks = Tasks()
mcp = MCPServer("good", extensions=[tasks])
celery = tasks.bind(mcp)
not_a_server = 42
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with servers in it, good and bad."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "good.py").write_text(SERVER)
    (folder / "broken.py").write_text("def oops(:\n")
    (folder / "unbound.py").write_text(SERVER.replace("celery = ", "_ = "))
    (folder / "crashes.py").write_text("raise RuntimeError('no database today')\n")
    (folder / "brackets.py").write_text("raise RuntimeError(\"pip install 'mcptasks[flower]' [/]\")\n")
    return folder


@pytest.fixture(scope="module")
def import_s(project: Path) -> float:
    """What a command costs here before it does anything."""
    began = time.monotonic()
    assert process(project, "dev", "--help")[0] == 0
    return time.monotonic() - began


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """This very process stands in the folder, and forgets afterwards what it imported from there."""
    before = set(sys.modules)
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("MCPTASKS_REDIS_URL", NO_STORE)
    yield
    for name in set(sys.modules) - before:
        if (project / f"{name}.py").exists():
            del sys.modules[name]


@pytest.fixture
def taken() -> Generator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def process(folder: Path, *argv: str, redis_url: str | None = NO_STORE) -> tuple[int, str]:
    """The exit code of a real process, and all that it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
    env |= {"PYTHONPATH": str(ROOT)} | ({} if redis_url is None else {"MCPTASKS_REDIS_URL": redis_url})
    done = subprocess.run(
        [*MCPTASKS, *argv],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.decode()


# ------------------------------------------------------------------------------------------------ real processes


@pytest.mark.parametrize(
    ("argv", "redis_url", "code", "says"),
    [
        (("serve", "nowhere:mcp"), NO_STORE, USAGE, "There is no module nowhere"),
        (("worker", "nowhere:mcp"), NO_STORE, USAGE, "There is no module nowhere"),
        (("dev", "nowhere:mcp", "--port", "0"), None, USAGE, "There is no module nowhere"),
        (("serve", "good:mcp", "--port", "TAKEN"), NO_STORE, USAGE, "Cannot listen on 127.0.0.1:TAKEN"),
        (("dev", "good:mcp", "--port", "TAKEN"), None, USAGE, "Cannot listen on 127.0.0.1:TAKEN"),
        (("worker", "good:mcp"), NO_STORE, FAILED, f"The store at {NO_STORE} does not answer"),
        (("dev", "good:mcp", "--port", "0"), NO_STORE, FAILED, f"The store at {NO_STORE} does not answer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_cannot_start_says_why_at_once(
    project: Path, import_s: float, taken: int, argv: tuple[str, ...], redis_url: str | None, code: int, says: str
) -> None:
    """Issue 2: left alone, Celery tries an absent store again for minutes. 2: usage, 1: the world's fault."""
    began = time.monotonic()
    ended, said = process(project, *(word.replace("TAKEN", str(taken)) for word in argv), redis_url=redis_url)
    # Its imports are slow here or not, by what else the machine does.
    assert time.monotonic() - began < WITHIN_S + 3 * import_s
    assert (ended, "Traceback" in said) == (code, False), said
    assert says.replace("TAKEN", str(taken)) in said


# ------------------------------------------------------------------------------------------------ sentences


def told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[object, str]:
    """The exit code of the command in this process, and all that it said, in one line."""
    monkeypatch.setattr(sys, "argv", ["mcptasks", *argv])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return end.value.code, _plain(out + err)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("serve", "good:mpc"), "Did you mean mcp?"),
        (("serve", "good.py:mcp"), "looks like a file"),
        (("serve", "broken:mcp"), "Importing broken failed: SyntaxError"),
        (("serve", "crashes:mcp"), "no database today"),
        (("serve", "a b:mcp"), "not of the form module:attribute"),
        (("serve", "good:not_a_server"), "is a int, not an MCPServer"),
        (("serve", "brackets:mcp"), "pip install 'mcptasks[flower]' [/]"),
        (("serve",), "Missing argument"),
        (("serve", "good:mcp", "--port", "70000"), "Invalid value for '--port'"),
        (("dev", "good:mcp", "--stdio", "--port", "0"), "--stdio and --port exclude each other"),
        (("dev", "good:mcp", "--workdir", "nowhere"), "'nowhere' does not exist"),
        (("worker", "good.py:mcp"), "looks like a file"),
        (("worker", "broken:mcp"), "Importing broken failed: SyntaxError"),
        (("worker", "unbound:mcp"), "keeps no Celery app"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_a_usage_error_that_names_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], says: str
) -> None:
    """DESIGN 7: exit code 2, and one sentence with what is wrong and what is right."""
    code, said = told(capfd, monkeypatch, *argv)
    assert (code, says in said) == (USAGE, True), said


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("name", "value"), [("LEASE_MS", "soon"), ("HEADERS", "authorization"), ("RENEW_MS", "99999")])
def test_a_setting_that_means_nothing_is_a_usage_error_that_names_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """DESIGN 7: settings are usage too."""
    monkeypatch.setenv(f"MCPTASKS_{name}", value)
    code, said = told(capfd, monkeypatch, "serve", "good:mcp", "--port", "0")
    assert (code, name.lower() in said.lower()) == (USAGE, True), said


@pytest.mark.usefixtures("here")
def test_a_stores_password_is_not_told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: terminals are recorded, and tickets quote them."""
    monkeypatch.setenv("MCPTASKS_REDIS_URL", "redis://me:hunter2@127.0.0.1:9/0")
    code, said = told(capfd, monkeypatch, "worker", "good:mcp")
    assert (code, "hunter2" in said, "127.0.0.1:9" in said) == (FAILED, False, True), said


def _plain(said: str) -> str:
    """Without the frames and line ends of a formatted usage error."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", said))
