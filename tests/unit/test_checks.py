"""The verdicts of `mcptasks doctor` (issue 2 part 7: what it checks, and that it says what to do about each)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from mcptasks.cli import checks, fleet_checks
from mcptasks.cli.checks import Package
from mcptasks.cli.fleet_checks import DurableTool
from mcptasks.cli.subject import unreadable_urls
from mcptasks.cli.verdict import Check, Status, exit_code, span
from mcptasks.fleet.health import Redelivery, Rule, Survey, Worker
from mcptasks.settings import Settings
from mcptasks.store.connection import UNREADABLE, address
from mcptasks.store.probe import Backlog, Facts, Server, Trouble
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.sealing import Sealing

OK, WARN, FAIL, SKIPPED = Status.OK, Status.WARN, Status.FAIL, Status.SKIPPED

GB: Final = 10**9
MIN: Final = 60_000
HOUR: Final = 60 * MIN

SERVER: Final = Server(
    software="Valkey",
    version="9.1.2",
    replica=False,
    cluster=False,
    appendonly=True,
    appendfsync="everysec",
    save="",
    disk_error=False,
    maxmemory=GB,
    maxmemory_policy="noeviction",
    used_memory=GB // 10,
    machine_memory=4 * GB,
    evicted=0,
    keys=100,
    keys_for_ever=6,
)
BACKLOG: Final = Backlog(
    unsent=0,
    oldest_ms=None,
    oldest_queue="",
    running=3,
    unlimited=0,
    overdue_leases=0,
    overdue_expiry=0,
    overdue_unsent=0,
    sweeper="box:7",
    closed=None,
    workers={},
    sealing=Sealing(keys=0, tried=4, plain=4, older=0, locked=0),
)
FACTS: Final = Facts(round_trip_ms=0.3, clock_skew_ms=12, server=SERVER, backlog=BACKLOG)
PULSE: Final = WorkerPulse(at_ms=1, host="h", pid=2, slots=4, active=1, received=9, waiting=0, deaf_ms=0)
STUCK: Final = replace(PULSE, stuck={"report": 2})
WORKER: Final = Worker(name="w1@box", pool="prefork", slots=4, queues=frozenset({"mcptasks"}), ours=True)
TOOL: Final = DurableTool(name="report", queue="mcptasks", hard_limit_ms=15 * MIN, unlimited=False, in_rounds=False)


def sealing(**other: int) -> Sealing:
    return replace(Sealing(keys=1, tried=4, plain=0, older=0, locked=0), **other)


def server(**other: Any) -> Server:
    return replace(SERVER, **other)


def backlog(**other: Any) -> Backlog:
    return replace(BACKLOG, **other)


def worker(**other: Any) -> Worker:
    return replace(WORKER, **other)


def tool(**other: Any) -> DurableTool:
    return replace(TOOL, **other)


def settings(**other: Any) -> Settings:
    # Not from this machine's environment.
    return Settings.model_construct(**other)


def store(facts: Facts | Trouble, prefix: str = "mcptasks:") -> Check:
    return checks.store(facts, "redis://h/0", prefix)


def store_of(**other: Any) -> Check:
    return store(replace(FACTS, server=server(**other)))


def broker(trouble: str, *, is_store: bool = False) -> Check:
    return fleet_checks.broker(Survey(trouble=trouble), "amqp://h//", is_store=is_store)


def workers(*found: Worker, shared: tuple[str, ...] = ()) -> Check:
    return fleet_checks.workers(Survey(workers=found, shared_names=shared), "server:mcp")


def limits(rule: Redelivery, *tools: DurableTool, countdowns_ms: tuple[int, ...] = (2_000, MIN)) -> Check:
    return fleet_checks.limits(rule, tools, countdowns_ms)


VISIBLE: Final = Redelivery(Rule.VISIBILITY, HOUR)
RABBIT: Final = Redelivery(Rule.CONSUMER, 30 * MIN)

#: What was found -> the verdict, words of what is said, words of what to do ("" where nothing is to be done).
VERDICTS: Final = [
    # -- versions
    (checks.versions([Package("mcp", "2.3.0", ">=2.3,<3"), Package("rich", "14", "")], ["mcp"]), OK, "mcp 2.3.0", ""),
    (checks.versions([Package("celery", "5.8.0", "<5.8,>=5.7")], []), FAIL, "celery 5.8.0 (wanted: <5.8,>=5.7)", "pip"),
    (checks.versions([Package("redis", "", ">=8")], []), FAIL, "redis is missing", "pip"),
    (checks.versions([Package("Python", "3.13.0rc1", ">=3.11")], ["Python"]), OK, "Python 3.13.0rc1", ""),
    # -- settings
    (checks.settings(settings()), OK, "leases of 15 s", ""),
    (checks.bad_settings(["MCPTASKS_TTL_MS: no"]), FAIL, "MCPTASKS_TTL_MS: no", "environment variables"),
    (checks.settings(settings(sweep_ms=16_000)), WARN, "sweep_ms (16 s) is over lease_ms (15 s)", "Change one"),
    (checks.settings(settings(sweep_ms=6_000)), WARN, "sweep_ms (6 s) is over resend_ms (5 s)", "Change one"),
    (checks.settings(settings(ttl_ms=14_000)), WARN, "lease_ms (15 s) is over ttl_ms (14 s)", "Change one"),
    (checks.settings(settings(poll_ms=6_000)), WARN, "poll_ms (6 s) is over poll_parked_ms (5 s)", "Change one"),
    (checks.settings(settings(store_timeout_ms=2_500)), WARN, "twice, is not below the 5 s", "Change one"),
    (checks.settings(settings(lease_ms=7_000, renew_ms=3_500, store_timeout_ms=2_400)), OK, "leases of 7 s", ""),
    (checks.settings(settings(lease_ms=4_000, renew_ms=2_000)), WARN, "together fill lease_ms", "Change one"),
    # -- store
    (store(FACTS), OK, "Valkey 9.1.2 at redis://h/0, 0.3 ms away", ""),
    (store(replace(FACTS, server=None)), WARN, "may not ask what it is", "INFO and CONFIG GET"),
    (store_of(software="Redis", version="6.0.16"), FAIL, "too old", "6.2"),
    (store_of(software="Redis", version="6.2.0"), OK, "Redis 6.2.0", ""),
    (store_of(software="Redis", version="10.0.1"), OK, "Redis 10.0.1", ""),
    (store_of(replica=True), FAIL, "takes no writes", "primary"),
    (store_of(cluster=True), FAIL, "one slot", "hash tag"),
    (store(replace(FACTS, server=server(cluster=True)), "{mcp}:"), OK, "Valkey", ""),
    (store(replace(FACTS, round_trip_ms=120.4)), WARN, "120 ms away: far", "close to the store"),
    *((store(trouble), FAIL, f"redis://h/0 {trouble}", " ") for trouble in Trouble),
    # -- persistence
    (checks.persistence(SERVER), OK, "a crash loses nothing, a power cut a second or two", ""),
    (checks.persistence(server(appendfsync="always")), OK, "nothing is lost", ""),
    (checks.persistence(server(appendfsync=None)), OK, "may not be read", ""),
    (checks.persistence(server(appendfsync="no")), WARN, "a power cut loses", "appendfsync everysec"),
    (checks.persistence(server(appendonly=False)), WARN, "loses every task", "appendonly yes"),
    (checks.persistence(server(appendonly=False, save="60 1000")), WARN, "snapshot (save 60 1000)", "appendonly yes"),
    (checks.persistence(server(appendonly=False, save=None)), WARN, "since the last snapshot", "appendonly yes"),
    (checks.persistence(server(disk_error=True)), FAIL, "last write to its disk failed", "disk"),
    # -- eviction (case A17)
    (checks.eviction(SERVER), OK, "noeviction", ""),
    (checks.eviction(server(evicted=5)), OK, "noeviction", ""),
    (checks.eviction(server(maxmemory_policy="allkeys-lru")), WARN, "allkeys-lru throws tasks away", "noeviction"),
    (checks.eviction(server(maxmemory_policy="volatile-ttl")), WARN, "as soon as memory is full", "noeviction"),
    (checks.eviction(server(maxmemory_policy="allkeys-lru", maxmemory=0)), WARN, "once somebody sets", "noeviction"),
    (checks.eviction(server(maxmemory_policy="allkeys-lru", evicted=1_234)), FAIL, "away 1,234 keys", "noeviction"),
    # -- memory
    (checks.memory(SERVER), OK, "100.0 MB of 1.0 GB used (10%)", ""),
    (checks.memory(server(used_memory=GB * 8 // 10)), WARN, "(80%)", "Raise maxmemory"),
    (checks.memory(server(used_memory=GB * 95 // 100)), FAIL, "(95%)", "Raise maxmemory"),
    (checks.memory(server(maxmemory=0)), OK, "no maxmemory, the machine has 4.0 GB", ""),
    (checks.memory(server(maxmemory=0, used_memory=2 * GB)), WARN, "2.0 GB used, no maxmemory", "Set maxmemory"),
    (checks.memory(server(maxmemory=0, machine_memory=0)), OK, "100.0 MB used, no maxmemory", ""),
    # -- clock
    (checks.clock(FACTS), OK, "agree within 12 ms", ""),
    (checks.clock(replace(FACTS, clock_skew_ms=-5_000)), OK, "agree within 5 s", ""),
    (checks.clock(replace(FACTS, clock_skew_ms=7_000)), WARN, "this machine is 7 s behind the store", "NTP"),
    (checks.clock(replace(FACTS, clock_skew_ms=-7_000)), WARN, "7 s ahead of the store; tasks do not care", "NTP"),
    # -- expiry
    (checks.expiry(SERVER, BACKLOG, []), OK, "6 of the database's 100 keys never expire", ""),
    (checks.expiry(SERVER, BACKLOG, ["archive"]), OK, "nor do tasks of archive", ""),
    (checks.expiry(server(keys=9_000, keys_for_ever=2_000), None, []), WARN, "up to 1,000 tasks", "ttl"),
    (checks.expiry(SERVER, replace(BACKLOG, unlimited=2), []), OK, "2 task(s) without a ttl among them", ""),
    (checks.expiry(SERVER, replace(BACKLOG, unlimited=1_000), []), WARN, ": 1,000 tasks that stay", "ttl"),
    # -- encryption
    (checks.encryption(BACKLOG.sealing), OK, "off: what callers and tools say is stored as plain text", ""),
    (checks.encryption(sealing(keys=1)), OK, "on, 1 key(s); 4 task(s) looked at can be opened", ""),
    (checks.encryption(sealing(keys=2, older=3)), OK, "can be opened, 3 with an older key", ""),
    (checks.encryption(sealing(keys=1, plain=2)), OK, "can be opened, 2 in plain text, from before", ""),
    (checks.encryption(sealing(keys=1, locked=3)), FAIL, "3 of 4 tasks looked at cannot be opened", "ENCRYPTION_KEYS"),
    (checks.encryption(sealing(keys=0, locked=1)), FAIL, "1 of 4 tasks looked at cannot be opened", "ENCRYPTION_KEYS"),
    # -- admission, outbox, overdue, sweeper
    (checks.admission(BACKLOG, 0), OK, "new tasks are accepted", ""),
    (checks.admission(backlog(unsent=9), 10), OK, "new tasks are accepted", ""),
    (checks.admission(backlog(unsent=10), 10), WARN, "10 wait, and queue_max is 10", "MCPTASKS_QUEUE_MAX"),
    (checks.admission(backlog(closed="upgrade"), 0), WARN, "refused: upgrade", "mcptasks admission open"),
    (checks.outbox(BACKLOG), OK, "no task waits", ""),
    (checks.outbox(backlog(unsent=2)), OK, "2 task(s) wait", ""),
    (
        checks.outbox(backlog(unsent=2, oldest_ms=900, oldest_queue="q")),
        OK,
        "or a retry, the oldest for 900 ms in queue q",
        "",
    ),
    (checks.outbox(backlog(unsent=9, oldest_ms=12 * MIN, oldest_queue="q")), WARN, "for 12 min in queue q", "queue q"),
    (checks.overdue(BACKLOG), OK, "nothing is overdue; 3 task(s) run", ""),
    (checks.overdue(backlog(overdue_leases=2, sweeper=None)), FAIL, "2 lease(s) of dead workers", "Start a worker"),
    (checks.overdue(backlog(overdue_expiry=1, overdue_unsent=4)), WARN, "1 task(s) past their ttl, 4 message", "box:7"),
    (checks.sweeper(BACKLOG), OK, "box:7 sweeps", ""),
    (fleet_checks.stuck({"w1": PULSE}), OK, "no tool goes on", ""),
    (
        fleet_checks.stuck({"w1": STUCK, "w2": PULSE, "w3": replace(STUCK, stuck={"report": 1, "crawl": 1})}),
        WARN,
        "still running in w1, w3 although their tasks have ended: report (3), crawl (1)",
        "until they end they keep a thread each",
    ),
    (
        fleet_checks.stuck({"w1": STUCK, "w2": replace(PULSE, held_by="crawl")}),
        FAIL,
        "crawl holds the event loop of w2",
        "Restart that worker",
    ),
    (checks.sweeper(backlog(sweeper=None, running=0)), WARN, "no worker sweeps", "Start a worker"),
    (checks.sweeper(backlog(sweeper=None)), FAIL, "3 task(s) are unfinished", "Start a worker"),
    # -- broker
    (broker(""), OK, "amqp://h// answers", ""),
    (broker("", is_store=True), OK, "the store's server", ""),
    (broker("refuses connections"), FAIL, "amqp://h// refuses connections", "MCPTASKS_BROKER_URL"),
    (broker("refuses connections", is_store=True), FAIL, "refuses connections", "store first"),
    # -- profile
    (fleet_checks.profile([], only_json=True), OK, "as mcptasks makes it", ""),
    (fleet_checks.profile(["task_time_limit"], only_json=True), WARN, "changes task_time_limit", "durable(time_limit"),
    (fleet_checks.profile(["accept_content"], only_json=False), FAIL, "more than JSON", "could run code"),
    # -- workers, queues, pool
    (workers(WORKER), OK, "1 answers: w1@box", ""),
    (workers(*(worker(name=f"w{n}") for n in range(7))), OK, "7 answer: w0, w1, w2, w3, w4 and 2 more", ""),
    (workers(), FAIL, "no worker answers", "mcptasks worker server:mcp"),
    (workers(worker(ours=False)), FAIL, "no worker answers; 1 of other applications", "mcptasks worker server:mcp"),
    (workers(WORKER, shared=("w1@box",)), WARN, "several call themselves w1@box", "--name"),
    (fleet_checks.queues([WORKER], [TOOL]), OK, "every queue has a worker: mcptasks", ""),
    (fleet_checks.queues([WORKER], []), OK, "no durable tool", ""),
    (fleet_checks.queues([WORKER], [TOOL, tool(queue="gpu")]), FAIL, "serves queue gpu (tools: report)", "-Q gpu"),
    (fleet_checks.queues([WORKER, worker(queues=None)], [tool(queue="gpu")]), SKIPPED, "did not say in time", ""),
    (fleet_checks.pool([WORKER, worker(pool="threads")]), OK, "1 x prefork, 1 x threads; 8 run(s) at a time", ""),
    (fleet_checks.pool([worker(slots=1)]), WARN, "one long run holds up all others", "--concurrency"),
    (fleet_checks.pool([worker(pool="gevent")]), WARN, "not made for gevent", "--pool threads"),
    # -- limits (case A01)
    (limits(Redelivery(Rule.NEVER), tool(hard_limit_ms=None)), OK, "no run is limited; the broker redelivers no", ""),
    (limits(Redelivery(Rule.UNKNOWN), TOOL), SKIPPED, "not known when", "redelivers"),
    (limits(VISIBLE, TOOL), OK, "the longest run takes 15 min; all below visibility_timeout (60 min)", ""),
    (limits(VISIBLE, TOOL, tool(name="x", hard_limit_ms=HOUR)), WARN, "60 min): runs of x", "visibility_timeout"),
    (limits(VISIBLE, TOOL, tool(name="y", hard_limit_ms=None)), WARN, "runs of y", "ack_emulation"),
    (limits(VISIBLE, TOOL, countdowns_ms=(HOUR,)), WARN, "the countdown of 60 min", "visibility_timeout"),
    (limits(VISIBLE, TOOL, countdowns_ms=()), OK, "15 min", ""),
    (limits(RABBIT, tool(name="z", hard_limit_ms=31 * MIN)), WARN, "the default): runs of z", "consumer_timeout"),
    (limits(RABBIT, TOOL), OK, "below consumer_timeout (30 min, the default)", ""),
    # -- rounds
    (fleet_checks.rounds(0, [TOOL]), OK, "no call of a durable tool takes several rounds", ""),
    (fleet_checks.rounds(1, [tool(in_rounds=True)]), OK, "a shared key seals what clients carry", ""),
    (fleet_checks.rounds(3, [TOOL]), OK, "and 2 more open(s)", ""),
    (
        fleet_checks.rounds(0, [TOOL, tool(name="a", in_rounds=True)]),
        WARN,
        "calls of a that take",
        "REQUEST_STATE_KEYS",
    ),
]


@pytest.mark.parametrize(
    ("check", "status", "found", "advice"), VERDICTS, ids=[f"{check.check}: {found}" for check, _, found, _ in VERDICTS]
)
def test_each_fact_gets_its_verdict_and_what_to_do(check: Check, status: Status, found: str, advice: str) -> None:
    assert check.status is status
    assert found in check.found
    assert advice in check.advice
    assert bool(check.advice) == bool(advice)


def test_whatever_is_wrong_comes_with_advice() -> None:
    """A warning nobody can act on only teaches people to look away."""
    assert [
        check for check, *_ in VERDICTS if check.status in (WARN, FAIL) and not check.advice.endswith((".", "mcp"))
    ] == []


@pytest.mark.parametrize(
    ("statuses", "plain", "strict"),
    [((OK, SKIPPED), 0, 0), ((OK, WARN), 0, 1), ((WARN, FAIL), 1, 1), ((), 0, 0)],
)
def test_the_exit_code_is_1_for_failures_and_when_strict_for_warnings(
    statuses: tuple[Status, ...], plain: int, strict: int
) -> None:
    report = [Check("x", status, "found") for status in statuses]
    assert exit_code(report, strict=False) == plain
    assert exit_code(report, strict=True) == strict


def test_a_check_for_machines_has_only_text() -> None:
    assert Check("store", FAIL, "gone", "Start it.").as_json() == {
        "check": "store",
        "status": "fail",
        "found": "gone",
        "advice": "Start it.",
    }


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.26, "0.3 ms"),
        (120.4, "120 ms"),
        (1_000, "1 s"),
        (90_000, "90 s"),
        (2 * MIN, "2 min"),
        (25 * HOUR, "25 h"),
        (72 * HOUR, "3 days"),
    ],
)
def test_durations_are_told_in_the_unit_people_would_use(ms: float, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    "url",
    [
        "redis://:ge/heim@h:6379/0",
        "redis://:12/heim@h:6379/0",
        "redis://user:ge#heim@h/0",
        "redis://user:ge?heim@h/0",
        ":heim@h:6379",
        "user:heim@h:6379",
        "redis://h:heim/0",
        "redis://[heim/0",
    ],
)
def test_of_a_url_that_cannot_be_read_nothing_is_shown(url: str) -> None:
    """Any part of it may be the password; doctor names the variable instead."""
    assert address(url) == UNREADABLE
    for variable in ("redis_url", "broker_url"):
        [problem] = unreadable_urls(settings(**{variable: url}))
        assert problem.startswith(f"MCPTASKS_{variable.upper()} cannot be read")
        assert "heim" not in problem


def test_every_address_of_a_broker_with_spares_is_read() -> None:
    assert unreadable_urls(settings(broker_url="amqp://u:p@a//;amqp://u:p@b//")) == []
    assert len(unreadable_urls(settings(broker_url="amqp://u:p@a//;amqp://u:p/q@b//"))) == 1
