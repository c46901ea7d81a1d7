"""`mcptasks doctor` on real fleets (issue 2 part 7; cases A01 and A17: the operator is told before tasks are lost).

Where TARGET, exit code or output matter the look is a process of its own; else it is taken here, which is far cheaper.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from mcptasks.cli.doctor import APP_CHECKS, BACKLOG_CHECKS, SERVER_CHECKS, STORE_CHECKS, Examination
from mcptasks.cli.verdict import Check, Status
from mcptasks.store.store import TaskStore
from tests.fleet.system import MCPTASKS, ROOT, START_S, TARGET, Fleet
from tests.support.peek import Peek
from tests.support.tasks import queued

ALL: Final = {"versions", "settings", "artifacts", "store", *STORE_CHECKS, "broker", *APP_CHECKS}

#: The leases of these fleets are short; the store's time-out must fit into them.
FITTING: Final = {"MCPTASKS_STORE_TIMEOUT_MS": "1000", "MCPTASKS_REQUEST_STATE_KEYS": "geheim" * 6}

#: A server whose author knows better: the broker redelivers, Celery ends what runs on, and the module talks.
STUBBORN: Final = """
from mcp.server.mcpserver import MCPServer
from mcptasks import Tasks
from mcptasks.settings import Settings

print("importing")
tasks = Tasks(Settings(prefix="stubborn:", poll_ms=60_000))
mcp = MCPServer("stubborn", extensions=[tasks])

@mcp.tool()
@tasks.durable(time_limit="10s", queue="gpu")
async def render(key: str) -> str:
    return key

@mcp.tool()
@tasks.durable(unlimited=True)
async def archive(key: str) -> str:
    return key

celery = tasks.bind(mcp)
celery.conf.broker_transport_options = {"visibility_timeout": 30, "global_keyprefix": "stubborn:"}
celery.conf.task_time_limit = 5
"""

#: Name lookups of one host never end: they wait for a writer of a pipe that has none.
NO_LOOKUP: Final = """
import os, socket
really = socket.getaddrinfo

def getaddrinfo(host, *args, **kwargs):
    if host == "hangs.test":
        open(os.environ["PIPE"]).read()
    return really(host, *args, **kwargs)

socket.getaddrinfo = getaddrinfo
"""


@dataclass(frozen=True)
class Report:
    """What doctor found, and how its process ended (0 where it had none)."""

    checks: dict[str, Check]
    code: int = 0
    stderr: str = ""

    def of(self, status: Status) -> set[str]:
        """The names of the checks with that verdict."""
        return {name for name, check in self.checks.items() if check.status is status}


def report_of(found: list[Check], code: int = 0, stderr: str = "") -> Report:
    """The report, which is complete and never leaves its reader helpless."""
    report = Report({check.check: check for check in found}, code, stderr)
    assert report.checks.keys() == ALL
    assert all(check.advice for check in found if check.status in (Status.WARN, Status.FAIL))
    return report


def run(fleet: Fleet, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`mcptasks doctor ARGV` has ended by itself."""
    return subprocess.run(
        [*MCPTASKS, "doctor", *argv],
        env=fleet.environment(**{**FITTING, **env}),
        cwd=fleet.folder,
        capture_output=True,
        text=True,
        timeout=START_S,
    )


def examine(fleet: Fleet, *argv: str, **env: str) -> Report:
    """What a process of `mcptasks doctor --json ARGV` says."""
    done = run(fleet, "--json", *argv, **env)
    assert done.returncode in (0, 1), done.stderr
    found = [Check(one["check"], Status(one["status"]), one["found"], one["advice"]) for one in json.loads(done.stdout)]
    return report_of(found, done.returncode, done.stderr)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Looks from this process, without any TARGET, at the fleet that the environment names."""

    def taken(fleet: Fleet, **env: str) -> Report:
        for name, value in fleet.environment(**{**FITTING, **env}).items():
            monkeypatch.setenv(name, value)
        return report_of(Examination(None).report())

    return taken


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fleet]:
    """A fleet with one worker."""
    with Fleet(tmp_path_factory.mktemp("healthy")) as fleet:
        fleet.worker("threads", concurrency=3)
        yield fleet


@pytest.fixture
def nobody() -> Generator[str]:
    """A URL where nothing listens, nor will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://:geheim@127.0.0.1:{taken.getsockname()[1]}/0"


# ------------------------------------------------------------------------------------------------ a running fleet


def test_a_healthy_fleet_is_found_healthy_and_left_as_it_was(healthy: Fleet) -> None:
    """A store may hold millions of tasks, and doctor is run when it is in trouble: no walk over all keys."""
    before = set(healthy.raw.scan_iter())
    healthy.raw.config_resetstat()
    report = examine(healthy, TARGET, "--strict")
    used = healthy.raw.info("commandstats")
    assert report.of(Status.OK) == ALL, report.checks
    assert report.code == 0
    assert report.checks["workers"].found.startswith("1 answers: w")
    assert report.checks["pool"].found == "1 x threads; 3 run(s) at a time"
    assert healthy.store.url in report.checks["broker"].found
    assert "cmdstat_time" in used
    assert {"cmdstat_scan", "cmdstat_keys", "cmdstat_randomkey"}.isdisjoint(used)
    assert set(healthy.raw.scan_iter()) == before


def test_a_store_that_would_lose_tasks_is_named_and_fails_when_strict(healthy: Fleet) -> None:
    """A17 (a): an LRU policy drops queued jobs without an error; without AOF a restart does."""
    healthy.raw.config_set("maxmemory-policy", "allkeys-lru")
    healthy.raw.config_set("appendonly", "no")
    try:
        report = examine(healthy, "--strict")
    finally:
        healthy.raw.config_set("maxmemory-policy", "noeviction")
        healthy.raw.config_set("appendonly", "yes")
    assert report.of(Status.WARN) == {"eviction", "persistence"}
    assert report.code == 1
    assert "allkeys-lru" in report.checks["eviction"].found
    assert "CONFIG SET maxmemory-policy noeviction" in report.checks["eviction"].advice
    assert "a restart of the store loses every task" in report.checks["persistence"].found


def test_a_user_who_may_not_ask_learns_what_is_missing(healthy: Fleet, look: Callable[..., Report]) -> None:
    """Managed stores and careful administrators forbid INFO and CONFIG."""
    healthy.raw.execute_command("ACL", "SETUSER", "app", "on", ">geheim", "~*", "&*", "+@all", "-info", "-config")
    report = look(healthy, MCPTASKS_REDIS_URL=healthy.store.url.replace("redis://", "redis://app:geheim@"))
    assert report.of(Status.WARN) == {"store"}
    assert "may not ask" in report.checks["store"].found
    assert report.of(Status.SKIPPED) == {*SERVER_CHECKS, *APP_CHECKS}
    assert "geheim" not in repr(report)


def test_a_wrong_password_is_told_from_a_store_that_is_away(healthy: Fleet, look: Callable[..., Report]) -> None:
    report = look(healthy, MCPTASKS_REDIS_URL=healthy.store.url.replace("redis://", "redis://app:falsch@"))
    for name in ("store", "broker"):
        assert report.checks[name].status is Status.FAIL
        assert "refuses the user or password" in report.checks[name].found
    assert "falsch" not in repr(report)


def test_keys_of_another_application_under_our_prefix_do_not_stop_the_look(
    healthy: Fleet, look: Callable[..., Report]
) -> None:
    healthy.raw.set("theirs:unsent", "text", ex=600)
    report = look(healthy, MCPTASKS_PREFIX="theirs:")
    assert report.of(Status.SKIPPED) == {*BACKLOG_CHECKS, *APP_CHECKS}
    assert "MCPTASKS_PREFIX cannot be read" in report.checks["outbox"].found


def test_without_a_shared_key_several_servers_are_warned_of_each_other(healthy: Fleet) -> None:
    """A round that comes to another process than the one before would be refused; the key itself is never shown."""
    warned = examine(healthy, TARGET, MCPTASKS_REQUEST_STATE_KEYS="")
    assert warned.of(Status.WARN) == {"rounds"}
    assert "set MCPTASKS_REQUEST_STATE_KEYS on all of them" in warned.checks["rounds"].advice
    keys = "geheim" * 6 + ",GEHEIM" + "geheim" * 6
    shared = run(healthy, TARGET, "--json", MCPTASKS_REQUEST_STATE_KEYS=keys)
    assert "1 more open(s)" in shared.stdout and "geheim" not in (shared.stdout + shared.stderr).lower()
    short = run(healthy, TARGET, "--json", MCPTASKS_REQUEST_STATE_KEYS="geheim")
    assert "MCPTASKS_REQUEST_STATE_KEYS: " in short.stdout and "geheim" not in short.stdout + short.stderr


# ------------------------------------------------------------------------------------------------ no or odd workers


def test_without_a_worker_the_report_says_how_to_start_one(fleet: Fleet) -> None:
    """The table is for the person who is woken up: what, and what to do, in words."""
    done = run(fleet, TARGET, COLUMNS="200")
    assert done.returncode == 1
    assert "no worker answers" in done.stdout
    assert f"-> Start one: mcptasks worker {TARGET}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed: workers. 1 warned: sweeper. ")


def test_tasks_that_nobody_moves_on_are_reported(fleet: Fleet, look: Callable[..., Report]) -> None:
    """What waits, for how long, and that no sweeper lives."""

    async def two_tasks() -> list[str]:
        store = TaskStore(fleet.settings)
        task_ids = [await queued(store), await queued(store)]
        await store.close_admission("upgrade")
        await store.aclose()
        return task_ids

    late, old = asyncio.run(two_tasks())
    fleet.raw.expire(fleet.keys.admission, 600)
    peek = Peek(fleet.raw, fleet.prefix)
    peek.make_due("unsent", late)
    peek.put(old, updated=str(peek.now_ms() - 20 * 60_000))
    report = look(fleet)
    assert report.of(Status.FAIL) == {"overdue", "sweeper"}
    assert report.of(Status.WARN) == {"admission", "outbox"}
    assert "refused: upgrade" in report.checks["admission"].found
    assert "the oldest for 20 min in queue mcptasks" in report.checks["outbox"].found
    assert "message(s) to be sent again, and no worker sweeps" in report.checks["overdue"].found
    assert report.of(Status.SKIPPED) == set(APP_CHECKS)
    assert "mcptasks doctor module:attribute" in report.checks["workers"].advice
    assert late not in repr(report), "an id is a secret"


def test_a_worker_on_the_wrong_queue_in_the_wrong_pool_is_told_so(fleet: Fleet) -> None:
    fleet.ready(fleet.start("worker", TARGET, "--pool", "solo", "--", "-Q", "elsewhere"))
    report = examine(fleet, TARGET)
    assert report.of(Status.FAIL) == {"queues"}
    assert "no worker serves queue mcptasks" in report.checks["queues"].found
    assert report.of(Status.WARN) == {"pool"}
    assert "1 x solo" in report.checks["pool"].found


# ------------------------------------------------------------------------------------------------ no store


def test_without_a_store_it_fails_and_shows_no_password(tmp_path: Path, nobody: str) -> None:
    done = run(
        Fleet(tmp_path), COLUMNS="200", MCPTASKS_REDIS_URL=nobody, MCPTASKS_BROKER_URL=nobody.removesuffix("0") + "1"
    )
    assert done.returncode == 1
    shown = nobody.replace(":geheim@", "")
    assert f"{shown} refuses or drops connections" in done.stdout
    assert f"{shown.removesuffix('0')}1 refuses connections" in done.stdout
    assert "2 failed: store, broker. " in done.stdout
    assert "geheim" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_store_the_look_itself_takes_no_time(
    tmp_path: Path, nobody: str, look: Callable[..., Report]
) -> None:
    """Within 5 s of the start of the process, of which Python's imports take most."""
    began = time.monotonic()
    report = look(Fleet(tmp_path), MCPTASKS_REDIS_URL=nobody)
    assert time.monotonic() - began < 4
    assert report.of(Status.FAIL) == {"store", "broker"}


def test_a_frozen_store_holds_nobody_up(fleet: Fleet) -> None:
    """It takes connections and answers nothing; it is still frozen when doctor has ended."""
    fleet.store.freeze()
    try:
        report = examine(fleet, TARGET, MCPTASKS_STORE_TIMEOUT_MS="60000")
    finally:
        fleet.store.thaw()
    assert report.code == 1
    for name in ("store", "broker"):
        assert report.checks[name].status is Status.FAIL
        assert "does not answer in time" in report.checks[name].found
    assert report.of(Status.SKIPPED) == {*STORE_CHECKS, "workers", "queues", "pool"}


def test_a_name_lookup_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """No time-out reaches into the C library's resolver, and Python waits for its thread at exit."""
    (tmp_path / "sitecustomize.py").write_text(NO_LOOKUP)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    report = examine(
        Fleet(tmp_path), MCPTASKS_REDIS_URL="redis://hangs.test/0", PYTHONPATH=f"{tmp_path}:{ROOT}", PIPE=str(pipe)
    )
    assert report.code == 1
    assert report.of(Status.FAIL) == {"store", "broker"}


# ------------------------------------------------------------------------------------------------ settings and TARGET


def test_a_server_that_undoes_the_profile_is_told_what_that_costs(fleet: Fleet) -> None:
    """A01: warned of a limit that is not below the visibility timeout. The settings looked at are the server's own."""
    (fleet.folder / "stubborn.py").write_text(STUBBORN)
    report = examine(fleet, "stubborn:mcp")
    limits = report.checks["limits"].found
    assert limits == "not below visibility_timeout (30 s): the countdown of 60 s and runs of archive"
    assert report.checks["profile"].found == "the Celery app changes task_time_limit"
    assert "poll_ms (60 s) is over poll_parked_ms" in report.checks["settings"].found
    assert "nor do tasks of archive" in report.checks["expiry"].found
    assert report.of(Status.WARN) == {"limits", "profile", "settings", "sweeper"}
    assert "importing" in report.stderr, "and not among the JSON"


@pytest.mark.parametrize(
    ("variable", "value"), [("MCPTASKS_FLOWER", "geheim"), ("MCPTASKS_REDIS_URL", "redis://:ge/heim@h/0")]
)
def test_settings_that_mean_nothing_are_named_without_their_values(
    tmp_path: Path, look: Callable[..., Report], variable: str, value: str
) -> None:
    report = look(Fleet(tmp_path), **{variable: value})
    assert report.of(Status.FAIL) == {"settings"}
    assert report.of(Status.SKIPPED) == ALL - {"versions", "settings"}
    assert report.checks["settings"].found.startswith(variable)
    assert "heim" not in repr(report)


def test_a_bad_target_is_a_usage_error(tmp_path: Path, nobody: str) -> None:
    done = run(Fleet(tmp_path), "--json", "tests.fleet.tools:tasks", MCPTASKS_REDIS_URL=nobody)
    assert (done.returncode, done.stdout) == (2, "")
    assert "tests.fleet.tools:tasks is a Tasks, not an MCPServer" in " ".join(done.stderr.split())
