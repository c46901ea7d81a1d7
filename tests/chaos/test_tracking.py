"""Tracking while everything around it is killed: trackers, submitters, and the task servers with their workers."""

from __future__ import annotations

import functools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.settings import Settings
from tests.chaos.herd import Member
from tests.chaos.remotes import REMOTES, Remote, submitter, tracker
from tests.fleet.system import ROOT
from tests.requirements import covers
from tests.support.tracking import TrackPeek

TASKS: Final = 200
#: Submits a second. Where no call may be cut off the server is killed behind them only, so they come faster.
RATE: Final = 6.0
RATE_FIRST: Final = 12.0
#: Kills at least, of the server among them, and seconds between two.
KILLS: Final = 10
SERVER_KILLS: Final = 2
PAUSE_S: Final = (2.0, 4.0)
#: Generous, because the machine is shared.
SETTLE_S: Final = 240.0
_LOOK_S: Final = 0.05
_ENDS: Final = ("completed", "failed", "cancelled")


#: Of submitters to whom every call that is given up is a task for a person.
_PATIENT: Final = {
    "MCPTASKS_TRACK_CALL_MS": "60000",
    "MCPTASKS_TRACK_LEASE_MS": "200000",
    "MCPTASKS_TRACK_INTENT_MS": "130000",
}


class Cast:
    """Processes that are started again whenever they have died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._envs: dict[str, dict[str, str]] = {}
        self.members: list[Member] = []
        #: By name, how often each was killed.
        self.killed: Counter[str] = Counter()

    def add(self, member: Member, env: dict[str, str]) -> None:
        """The member is starting."""
        self._envs[member.name] = env
        self.members.append(member)
        self._fill(member)

    def _fill(self, member: Member) -> None:
        member.fill(self._envs[member.name], self._folder)

    def kill(self, member: Member) -> None:
        """It got `kill -9`, and is starting again."""
        assert member.proc is not None
        member.proc.kill()
        self.killed[member.name] += 1
        self._fill(member)

    def until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """The condition holds; nobody has died by himself meanwhile, but a submitter that is through."""
        deadline = time.monotonic() + within_s
        while not condition():
            for member in self.members:
                proc = member.proc
                if proc is not None and proc.exit_code not in (None, 0):
                    raise AssertionError(f"{member.name} ended by itself ({proc.exit_code}):\n{proc.output[-4000:]}")
            assert time.monotonic() < deadline, f"waited {within_s:g} s in vain until {what}"
            time.sleep(_LOOK_S)


@contextmanager
def cast(folder: Path) -> Generator[Cast]:
    """A cast, none of which lives after the block."""
    made = Cast(folder)
    try:
        yield made
    finally:
        for member in made.members:
            if member.proc is not None:
                member.proc.kill()


def tracking_environment(settings: Settings, remote: Remote, folder: Path) -> dict[str, str]:
    """What trackers see."""
    ours = {"driver": "tasks", "honours_key": remote.honours_key, "timeout": 25, "max_concurrency": 16}
    servers = folder / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"remote": {"url": remote.url, "mcptasks": ours}}}))
    return {
        **{name: value for name, value in remote.env.items() if not name.startswith(("MCPTASKS_", "FASTMCP_"))},
        "PYTHONPATH": str(ROOT),
        "MCPTASKS_REDIS_URL": settings.redis_url,
        "MCPTASKS_PREFIX": settings.prefix,
        "MCPTASKS_TRACK_SERVERS": str(servers),
        # As long belongs what a killed one had in hand to it; above three calls, which take a while on a busy machine.
        "MCPTASKS_TRACK_CALL_MS": "4000",
        "MCPTASKS_TRACK_LEASE_MS": "13000",
        "MCPTASKS_TRACK_INTENT_MS": "9000",
        "MCPTASKS_TRACK_DELIVERY_MS": "1000",
        "MCPTASKS_TRACK_LOOK_MS": "200",
        "TRACKING_TOLD": str(folder / "told.jsonl"),
    }


def submitting_environment(tracking: dict[str, str], remote: Remote) -> dict[str, str]:
    """What submitters see: a call that is given up too early is a task for a person where keys are not kept to."""
    patience = {} if remote.honours_key else _PATIENT
    order = {"tool": remote.tool, "tasks": TASKS, "rate": RATE if remote.honours_key else RATE_FIRST}
    return {
        **tracking,
        **patience,
        "SUBMIT": json.dumps({**order, "began": time.time()}),
    }


@pytest.mark.slow
@covers("D1", "D2", "D6", "D01", "D09")
@pytest.mark.parametrize("kind", REMOTES)
def test_two_hundred_tasks_reach_their_end_and_are_told_although_everything_is_killed(
    kind: str, settings: Settings, valkey: EmbeddedValkey, raw: redis.Redis, tmp_path: Path
) -> None:
    """Issue 6: 200 tasks on a server of each kind: each ends, once there, and is told under one id.

    Killed are two trackers, the task server and its worker, and the submitting process.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    (tmp_path / "remote").mkdir()
    with (
        EmbeddedValkey(tmp_path / "remote") as store,
        redis.Redis.from_url(store.url, decode_responses=True) as remote_raw,
        cast(tmp_path) as processes,
    ):
        remote = REMOTES[kind](store, remote_raw, tmp_path)
        trackers, sender = [tracker("tracker-1"), tracker("tracker-2")], submitter()
        for member in (remote.server, remote.worker):
            processes.add(member, remote.env)
        env = tracking_environment(settings, remote, tmp_path)
        for member in trackers:
            processes.add(member, env)
        processes.until(lambda: all(member.ready for member in processes.members), "all are up", 120)
        processes.add(sender, submitting_environment(env, remote))
        storm(processes, chance, remote, trackers, sender)
        told, peek = tmp_path / "told.jsonl", TrackPeek(raw, settings.prefix)
        processes.until(lambda: owed(peek) == [0, 0], f"no polls and no news are outstanding (seed {seed})", SETTLE_S)
        account(told, remote, peek, seed)
        assert set(processes.killed) >= {"tracker-1", "tracker-2", "remote-server", "remote-worker"}, processes.killed
    print(f"killed: {dict(processes.killed)}")


def storm(processes: Cast, chance: random.Random, remote: Remote, trackers: Sequence[Member], sender: Member) -> None:
    """All tasks are submitted, and everybody was killed: in turns of chance, each once per round."""

    def submitted() -> bool:
        return sender.proc is not None and sender.proc.exit_code == 0

    round_: list[Member] = []
    while not submitted() or processes.killed.total() < KILLS or processes.killed[remote.server.name] < SERVER_KILLS:
        pause = time.monotonic() + chance.uniform(*PAUSE_S)
        processes.until(functools.partial(_is_over, pause), "the next kill", 60)
        may = [*trackers, remote.worker]
        if remote.honours_key or submitted():
            may.append(remote.server)
        if remote.honours_key and not submitted():
            may.append(sender)
        round_ = [member for member in round_ if member in may] or chance.sample(may, len(may))
        victim = round_.pop()
        # One that is only starting does nothing that a kill could hurt.
        if victim.ready:
            processes.kill(victim)


def _is_over(deadline: float) -> bool:
    return time.monotonic() > deadline


def lines(told: Path) -> list[dict[str, Any]]:
    """What the consumer was told, oldest first."""
    return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []


def done(told: Path) -> dict[str, str]:
    """By label, the task that was told to be completed."""
    return {
        line["result"]["content"][0]["text"].partition(":")[0]: line["task_id"]
        for line in lines(told)
        if line["kind"] == "completed"
    }


def owed(peek: TrackPeek) -> list[int]:
    """How many polls and news are outstanding."""
    return [peek.raw.zcard(peek.keys.due), peek.raw.zcard(peek.keys.outbox("book"))]


def account(told: Path, remote: Remote, peek: TrackPeek, seed: int) -> None:
    """Each task ended once, was told under one id, and was made once at its server."""
    ends: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for line in lines(told):
        if line["kind"] in _ENDS:
            ends[line["task_id"]].add((line["event_id"], line["kind"]))
    assert [found for found in ends.values() if len(found) != 1] == [], seed
    finished = done(told)
    kinds = Counter(line["kind"] for line in lines(told))
    records = [peek.fields(line["task_id"]) for line in lines(told) if line["kind"] != "completed"]
    why = [(found.get("reason"), found.get("msg"), found.get("failure")) for found in records]
    assert set(finished) == {f"job {n}" for n in range(TASKS)}, (seed, kinds, why)
    assert set(ends) == set(finished.values()), (seed, kinds)
    records = list(peek.raw.scan_iter(f"{peek.keys.prefix}task:{{*}}", count=1_000))
    assert {peek.raw.hget(record, "status") for record in records} == {"completed"}, seed
    assert len(records) == TASKS, seed
    assert peek.raw.zcard(peek.keys.dead) == 0, seed
    assert remote.tasks() == TASKS, seed
    if remote.effects is not None:
        made = remote.made_for()
        assert len(made) == TASKS and {len(task_ids) for task_ids in made.values()} == {1}, seed
