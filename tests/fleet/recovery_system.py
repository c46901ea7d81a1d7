"""Fleets whose server has the tools of `recovery_tools.py`, and what keeps their workers up."""

from __future__ import annotations

import threading
from typing import Any, Final, Self

import pytest

from mcptasks.cli.worker import worker_argv
from tests.fleet.system import Fleet, Proc
from tests.support.waiting import wait_until

#: Tests of one group stay on one test process, so that what they share is started once (`--dist loadgroup`).
on_recovering: Final = pytest.mark.xdist_group("one recovering server for all")

TARGET: Final = "tests.fleet.recovery_tools:mcp"
CELERY: Final = "tests.fleet.recovery_tools:celery"


#: What tools that end their process end it with.
EXIT_CODE: Final = 17

#: Leases that run out and Pythons that start, one after the other, on a machine that has other things to do.
SOME_DEATHS_S: Final = 180.0


class RecoveryFleet(Fleet):
    """A fleet with the tools that retry, die and refuse to stop."""

    def environment(self, **more: str) -> dict[str, str]:
        """What the fleet's processes see; a name with an empty value is not there at all."""
        return {name: value for name, value in super().environment(**more).items() if value}

    def start_server(self, **env: str) -> Proc:
        """A server process is starting on a free port."""
        return self.start("serve", TARGET, "--port", "0", **env)

    def start_worker(self, pool: str = "threads", *, concurrency: int = 4, **env: str) -> Proc:
        """A worker is starting."""
        name = f"w{self.started}"
        argv = worker_argv(CELERY, pool=pool, concurrency=concurrency, name=f"{name}@test", log_level="INFO")
        return self._start(f"worker-{name}", [*argv, "--without-mingle"], env)


class Supervised:
    """One worker that is started again whenever it ends, as every deployment has it."""

    def __init__(self, fleet: Fleet, pool: str, *, concurrency: int, **env: str) -> None:
        self._fleet, self._pool, self._concurrency, self._env = fleet, pool, concurrency, env
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor")
        #: Every incarnation, oldest first.
        self.lives: list[Proc] = []

    def __enter__(self) -> Self:
        self._live()
        self._fleet.ready(self.lives[0])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def deaths(self) -> int:
        """How often it was started again."""
        return len(self.lives) - 1

    def _live(self) -> None:
        self.lives.append(self._fleet.start_worker(self._pool, concurrency=self._concurrency, **self._env))

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            if self.lives[-1].exit_code is not None:
                self._live()


def await_event(fleet: Fleet, key: str, event: str, *, times: int = 1) -> dict[str, Any]:
    """As `Ledger.await_event`, for what takes a few deaths."""

    def line() -> dict[str, Any] | None:
        found = [line for line in fleet.ledger.of(key) if line["event"] == event]
        return found[times - 1] if len(found) >= times else None

    return wait_until(line, description=f"{event!r} of {key} happened {times} time(s)", within_s=SOME_DEATHS_S)
