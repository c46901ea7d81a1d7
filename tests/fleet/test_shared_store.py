"""One embedded Valkey for all who use a folder at a time: begun by the first, ended after the last (two windows of a
desktop client run the same command twice). The users are real processes, which end in every way there is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from unittest import mock

import pytest
from redis import Redis

from mcptasks.cli.embedded import FOLDER, EmbeddedValkey
from mcptasks.cli.main import main
from mcptasks.cli.operating import on_fleet
from mcptasks.cli.shared_store import SharedValkey, running_on
from mcptasks.cli.store_check import require_store, tell_of_dev
from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.settings import Settings
from tests.support.processes import Kin
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = "server:mcp"

#: Uses the store until its standard input ends, and says so again when the store is gone.
USER: Final = """
import sys
from pathlib import Path
from mcptasks.cli.shared_store import SharedValkey

with SharedValkey(Path(sys.argv[1]), "server:mcp") as store:
    store.watch(lambda: print("lost", flush=True))
    print(store.url, flush=True)
    sys.stdin.read()
"""


class User:
    """A process that uses the folder's store."""

    def __init__(self, folder: Path, kin: Kin) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder)],
            env={**kin.environment(), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        """The next line; "" once it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def leave(self) -> str:
        """It has left the store in order; returns what it said last."""
        said, _ = self._process.communicate()
        assert self._process.returncode == 0
        return said

    def kill(self) -> None:
        """It got `kill -9`."""
        self._process.kill()
        self._process.communicate()

    def end(self, how: Literal["leave", "kill"]) -> None:
        """It has left the store, one way or the other."""
        if how == "leave":
            self.leave()
        else:
            self.kill()


@dataclass(frozen=True)
class Home:
    """A folder for a store, and every process that comes to have to do with it."""

    folder: Path
    kin: Kin

    def user(self) -> User:
        """One more user is starting."""
        return User(self.folder, self.kin)


@pytest.fixture
def home(tmp_path: Path) -> Generator[Home]:
    """Nobody is there yet, and after the test nobody may be any more."""
    kin = Kin(tmp_path)
    try:
        yield Home(tmp_path / "valkey", kin)
        wait_until(lambda: not kin.living(), description="steward and store have ended after the last user")
    finally:
        kin.kill()


def get(url: str, key: str) -> str | None:
    """What the store at the URL has under the key."""
    with Redis.from_url(url, decode_responses=True) as redis:
        return str(value) if (value := redis.get(key)) is not None else None


def put(url: str, key: str, value: str) -> None:
    """The store at the URL has the value under the key."""
    with Redis.from_url(url) as redis:
        redis.set(key, value)


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_the_others_keep_the_store_when_the_one_who_began_it_is_gone(home: Home, end: Literal["leave", "kill"]) -> None:
    first = home.user()
    url = first.says()
    second = home.user()
    assert second.says() == url
    first.end(end)
    put(url, "task", "kept")
    third = home.user()
    assert third.says() == url
    second.kill()
    assert get(url, "task") == "kept"
    third.leave()


def test_who_leaves_last_has_left_when_all_is_written_out(home: Home) -> None:
    only = home.user()
    put(only.says(), "task", "kept")
    only.leave()
    # It does not wait for the folder.
    with EmbeddedValkey(home.folder) as valkey:
        assert get(valkey.url, "task") == "kept"


def test_who_comes_while_the_store_is_ending_waits_for_it_and_begins_it_again(home: Home) -> None:
    first = home.user()
    put(first.says(), "task", "kept")
    server, steward = home.kin.named("valkey-server"), home.kin.named("steward")
    server.suspend()
    first.kill()
    second = home.user()

    def waits() -> bool:
        others = [process for process in home.kin.all_named("steward") if process != steward]
        return any(file.path == str(home.folder / "lock") for process in others for file in process.open_files())

    wait_until(waits, description="a second steward waits for the lock")
    server.resume()
    assert get(second.says(), "task") == "kept"
    second.leave()


def test_all_who_come_at_once_share_one_store(home: Home) -> None:
    users = [home.user() for _ in range(5)]
    urls = {user.says() for user in users}
    assert len(urls) == 1 and "" not in urls
    for user in users:
        user.leave()


def test_the_fleet_of_another_target_is_refused(home: Home) -> None:
    """Two servers' workers would take each other's tasks out of one queue, and know none of the tools."""
    user = home.user()
    user.says()
    refused = (
        rf"{home.folder} holds the tasks of server:mcp, which runs .* give other:mcp a folder of its own with --data"
    )
    with pytest.raises(ConfigurationError, match=refused), SharedValkey(home.folder, "other:mcp"):
        pass
    user.leave()


@pytest.mark.parametrize("victim", ["steward", "valkey-server"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent's life")
def test_each_user_hears_that_the_store_is_gone_and_the_next_one_begins_it_again(home: Home, victim: str) -> None:
    users = [home.user(), home.user()]
    [url] = {user.says() for user in users}
    put(url, "task", "kept")
    home.kin.named(victim).kill()
    for user in users:
        assert user.says() == "lost"
        user.leave()
    after = home.user()
    assert get(after.says(), "task") == "kept"
    after.leave()


def test_who_leaves_does_not_take_the_end_for_a_loss(home: Home) -> None:
    user = home.user()
    user.says()
    assert user.leave() == ""


def test_signals_to_everybody_do_not_end_the_steward(home: Home) -> None:
    """What gets SIGTERM with it still has runs to give back; without its users it ends by itself."""
    user = home.user()
    url = user.says()
    steward = home.kin.named("steward")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        steward.send_signal(signum)
    another = home.user()
    assert another.says() == url
    another.leave()
    user.leave()


def test_a_stranger_behind_the_door_of_a_killed_steward_is_not_believed(home: Home) -> None:
    home.folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        (home.folder / "door").write_text(str(stranger.getsockname()[1]))
        user = home.user()
        visitor, _ = stranger.accept()
        with visitor:
            visitor.sendall(b'{"url": "redis://elsewhere", "folder": "/elsewhere", "target": "server:mcp"}\n')
        assert user.says().startswith("redis://127.0.0.1:")
        user.leave()


def test_a_store_that_cannot_start_says_why(home: Home) -> None:
    (home.folder / "appendonlydir").mkdir(parents=True)
    (home.folder / "appendonlydir" / "appendonly.aof.manifest").write_text("no manifest\n")
    with (
        pytest.raises(StoreUnavailable, match=r"(?s)Valkey ended while it started .*manifest"),
        SharedValkey(home.folder, TARGET),
    ):
        pass


@pytest.fixture
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is in a folder of its own, and no setting of mcptasks is in its environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MCPTASKS_")]:
        monkeypatch.delenv(name)


def test_whoever_only_looks_finds_the_store_and_keeps_it_from_nothing(
    nothing_set: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator's command in the folder of a `mcptasks dev`, with nothing set; the store may end all the same."""
    assert running_on() is None
    with SharedValkey(FOLDER, TARGET) as store:
        assert running_on() == store.url != Settings().redis_url
        on_fleet(lambda fleet: fleet.close_admission("moving house"))
        monkeypatch.setattr(sys, "argv", ["mcptasks", "admission", "status"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code, capsys.readouterr().out) == (0, "admission is closed: moving house; 0 unfinished\n")
        monkeypatch.setattr(sys, "argv", ["mcptasks", "doctor", "--json"])
        # It tells a target's module by the environment, which is this process's own afterwards.
        with mock.patch.dict(os.environ), pytest.raises(SystemExit):
            main()
        found = {check["check"]: check["found"] for check in json.loads(capsys.readouterr().out)}
        assert store.url in found["store"]
    assert running_on() is None


def test_a_worker_or_server_beside_a_dev_is_told_which_store_that_has(
    nothing_set: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not taken: it ends with that `dev`. Where something names a store, nothing is said."""
    tell_of_dev(Settings.load())
    assert capsys.readouterr().err == ""
    with SharedValkey(FOLDER, TARGET) as store:
        with suppress(StoreUnavailable):  # this machine may have a store at the usual place
            require_store()
        assert f"set MCPTASKS_REDIS_URL={store.url}" in capsys.readouterr().err
        monkeypatch.setenv("MCPTASKS_REDIS_URL", store.url)
        require_store()
        assert capsys.readouterr().err == ""
