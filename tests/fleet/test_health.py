"""`mcptasks worker --health` tells a live worker from a dead one, and from one that lives and is deaf (A09)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio.to_thread
import pytest

from mcptasks.cli import worker_health
from mcptasks.cli.worker_health import Unhealthy, health
from mcptasks.errors import StoreUnavailable
from mcptasks.fleet.app import make_app
from tests.fleet.recovery_system import RecoveryFleet
from tests.fleet.system import Fleet, Proc, client, new_key, outcome, start
from tests.requirements import covers
from tests.support.waiting import WITHIN_S, wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]

#: A worker reports every two seconds; this is how soon the probes of this module lose patience.
SOON_MS = 6_000


pytestmark = pytest.mark.slow


@pytest.fixture
def probed(shaken: RecoveryFleet, monkeypatch: pytest.MonkeyPatch) -> RecoveryFleet:
    """A fleet whose workers are probed by this process, impatiently."""
    for name, value in shaken.environment().items():
        if name.startswith("MCPTASKS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker_health, "FRESH_MS", SOON_MS)
    monkeypatch.setattr(worker_health, "DEAF_MS", SOON_MS)
    return shaken


def verdict(name: str = "") -> str:
    """What the probe says: "" for healthy."""
    try:
        health(name)
    except Unhealthy as exc:
        return str(exc)
    return ""


def until(words: str, name: str = "") -> None:
    """The probe has come to say this."""
    wait_until(
        lambda: re.search(words, verdict(name)) if words else not verdict(name),
        description=f"the probe says {words or 'healthy'!r}; it says {verdict(name)!r}",
        within_s=2 * WITHIN_S,
    )


def node(worker: Proc) -> str:
    """The worker's name in Celery."""
    return f"{worker.name.removeprefix('worker-')}@test"


@covers("A09")
def test_a_worker_is_healthy_until_it_is_killed_or_leaves(
    probed: RecoveryFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """A09: one dead among two living is found by its name, and only the end of all of them without one."""
    doomed, leaving = probed.start_worker(), probed.start_worker("prefork", concurrency=2)
    probed.ready(doomed, leaving)
    until("")
    assert f"{node(doomed)}: healthy, 0 of 4 slots busy" in capsys.readouterr().out
    until("", node(leaving))
    assert "no live worker nobody@test" in verdict("nobody@test")
    doomed.kill()
    until("no live worker .*none has reported within", node(doomed))
    assert verdict() == "", "the other one lives"
    assert leaving.stop() == 0
    assert "no live worker on this host" in verdict(), "it signed off: nobody has to wait for its silence"


@covers("A09")
def test_a_worker_that_lives_and_takes_nothing_is_deaf_until_it_hears_again(probed: RecoveryFleet) -> None:
    """A09: after a reset the process lives, answers pings, and takes no work; a liveness check cannot see that."""
    worker = probed.worker()
    until("")
    with make_app(probed.settings) as app:
        app.control.cancel_consumer("mcptasks", destination=[node(worker)], reply=True, timeout=10)
        assert app.control.ping(destination=[node(worker)], timeout=10), "alive by Celery's own account"
        verdicts = {verdict() for _ in range(3)}
        assert verdicts == {""}, "with nothing to hear nobody is deaf"
        for garbage in probed.garbage()[:2]:
            probed.raw.lpush(probed.queue, garbage)
        until(f"deaf: {node(worker)}: messages wait, slots are free")
        app.control.add_consumer("mcptasks", destination=[node(worker)], reply=True, timeout=10)
    until("")
    assert worker.exit_code is None


@pytest.mark.anyio
@covers("A09")
async def test_a_worker_with_all_its_slots_busy_is_not_deaf(probed: RecoveryFleet, tmp_path: Path) -> None:
    """A09, the other way round: a probe that restarts whoever is busy kills long jobs for ever."""
    key, release = new_key(), tmp_path / "release"
    worker, server = probed.start_worker(concurrency=1), probed.start_server()
    async with client(probed.ready(worker, server)) as connection:
        running = await start(connection, "deaf_gate", key=key, path=str(release))
        probed.ledger.await_event(key, "begin")
        waiting = await start(connection, "ledger", key=key)
        await anyio.to_thread.run_sync(busy_for, probed, node(worker), SOON_MS)
        release.touch()
        assert await outcome(running) == f"passed {key}"
        assert await outcome(waiting) == f"ran {key}"


def busy_for(fleet: Fleet, name: str, ms: int) -> None:
    """For so long the worker has reported that messages wait and that it took none of them, and is not deaf for it."""

    def entry() -> dict[str, int]:
        return json.loads(str(fleet.raw.hget(fleet.keys.workers, name)))

    def busy() -> dict[str, int] | None:
        now = entry()
        return now if now["waiting"] and now["active"] == now["slots"] else None

    def later() -> dict[str, int] | None:
        now = entry()
        return now if now["at_ms"] >= first["at_ms"] + ms else None

    first = wait_until(busy, description="its slots are taken and a message waits")
    last = wait_until(later, description="it has reported for long enough", within_s=2 * WITHIN_S)
    assert (last["received"], last["deaf_ms"]) == (first["received"], 0)
    assert busy() and verdict(name) == ""


@covers("A09")
def test_without_its_store_no_worker_is_healthy(probed: RecoveryFleet) -> None:
    """A09: the probe fails, with the store's address, because no worker can work."""
    probed.worker()
    until("")
    probed.store.kill()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        health("")
    probed.store.restart()
    until("")


@covers("A09")
def test_the_probe_is_a_command_with_an_exit_code(shaken: RecoveryFleet) -> None:
    """A09: what a container platform runs; one line on stderr says why, no traceback."""
    nobody = shaken.start("worker", "--health")
    assert nobody.await_end() == 1
    assert "no live worker on this host" in nobody.output and "Traceback" not in nobody.output
    worker = shaken.worker()
    wait_until(lambda: shaken.raw.hlen(shaken.keys.workers), description="it has reported")
    probe = shaken.start("worker", "--health", "--name", node(worker))
    assert probe.await_end() == 0
    assert f"{node(worker)}: healthy" in probe.output
