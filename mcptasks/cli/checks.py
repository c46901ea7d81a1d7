"""What `mcptasks doctor` makes of the facts about the installation and its store. No IO, so every verdict is a test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from packaging.specifiers import SpecifierSet
from rich.filesize import decimal

from mcptasks.cli.verdict import Check, Status, span
from mcptasks.settings import Settings
from mcptasks.store.probe import Backlog, Facts, Server, Trouble
from mcptasks.store.sealing import Sealing

OLDEST_STORE: Final = (6, 2)
#: Each call of a durable tool waits for one round trip, a run for a handful.
FAR_MS: Final = 50
SKEW_MS: Final = 5_000
#: Shares of `maxmemory`, and of the machine's memory where there is no such limit.
MEMORY_WARN, MEMORY_FAIL, MACHINE_WARN = 0.80, 0.95, 0.40
#: A task that waits longer has been sent again as often as it ever will be within that time.
WAITS_MS: Final = 5 * 60_000
#: Tasks that never expire are somebody's choice, until they are many.
MANY_FOR_EVER: Final = 1_000
#: A task has at least its record and its call.
KEYS_OF_A_TASK: Final = 2
#: What a server may take to answer a client whose store is away; the store is tried twice.
PROMISED_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Package:
    """A thing the installation needs: what is there ("" for nothing), and the versions that will do."""

    name: str
    installed: str
    wanted: str

    @property
    def will_do(self) -> bool:
        """It is there, in one of those versions."""
        return bool(self.installed) and SpecifierSet(self.wanted).contains(self.installed, prereleases=True)


def versions(packages: Sequence[Package], shown: Sequence[str]) -> Check:
    """Whether everything installed is of a version this library is made for."""
    wrong = [package for package in packages if not package.will_do]
    if wrong:
        found = ", ".join(f"{p.name} {p.installed or 'is missing'} (wanted: {p.wanted or 'any'})" for p in wrong)
        return Check("versions", Status.FAIL, found, "Install what fits: pip install --upgrade mcptasks.")
    return Check("versions", Status.OK, ", ".join(f"{p.name} {p.installed}" for p in packages if p.name in shown))


def bad_settings(problems: Sequence[str]) -> Check:
    """The settings cannot mean anything."""
    advice = "Correct these environment variables; mcptasks/settings.py lists them all with their meaning."
    return Check("settings", Status.FAIL, "; ".join(problems), advice)


#: Durations of which the first must not be over the second, and what happens if it is.
_BELOW: Final = (
    ("sweep_ms", "lease_ms", "dead workers are noticed late"),
    ("sweep_ms", "resend_ms", "lost messages are sent again late"),
    ("lease_ms", "ttl_ms", "tasks expire before a dead worker is noticed"),
    ("poll_ms", "poll_parked_ms", "clients ask more often while a person thinks"),
)


def settings(config: Settings) -> Check:
    """Whether the settings contradict each other."""
    value = config.model_dump()
    wrong = [
        f"{small} ({span(value[small])}) is over {large} ({span(value[large])}): {effect}"
        for small, large, effect in _BELOW
        if value[small] > value[large]
    ]
    if config.store_timeout_ms + config.renew_ms >= config.lease_ms:
        wrong.append("store_timeout_ms and renew_ms together fill lease_ms: one slow answer of the store costs a run")
    if 2 * config.store_timeout_ms >= PROMISED_MS:
        wrong.append(f"store_timeout_ms, twice, is not below the {span(PROMISED_MS)} in which clients get an error")
    if wrong:
        advice = "Change one of each pair; their variables are MCPTASKS_ and the name in capitals."
        return Check("settings", Status.WARN, "; ".join(wrong), advice)
    lease, renew, sweep = span(config.lease_ms), span(config.renew_ms), span(config.sweep_ms)
    return Check("settings", Status.OK, f"consistent: leases of {lease}, renewed every {renew}, swept every {sweep}")


_CURES: Final = {
    Trouble.SILENT: "See whether its process or machine is frozen or overloaded, or a firewall swallows packets.",
    Trouble.REFUSED: "Start Valkey or Redis there, or set MCPTASKS_REDIS_URL to where it runs (rediss:// for TLS).",
    Trouble.UNKNOWN_HOST: "Correct the host in MCPTASKS_REDIS_URL, or mend the name service of this machine.",
    Trouble.LOGIN: "Put a user and password it accepts into MCPTASKS_REDIS_URL, special characters percent-encoded.",
    Trouble.LOADING: "Wait until it has loaded; a large append-only file takes about a second per 100 MB.",
    Trouble.TLS: "Use rediss:// only where the server speaks TLS with a certificate that this machine trusts.",
    Trouble.STRANGER: "Set MCPTASKS_REDIS_URL to Redis or Valkey; another program listens on that port.",
    Trouble.URL: "Set MCPTASKS_REDIS_URL to redis://user:password@host:port/database (rediss:// for TLS).",
    Trouble.OTHER: "Look into the server's own log.",
}


def store(facts: Facts | Trouble, where: str, prefix: str) -> Check:
    """Whether the store is there and of a kind that can hold tasks."""
    if isinstance(facts, Trouble):
        return Check("store", Status.FAIL, f"{where} {facts}", _CURES[facts])
    server, distance = facts.server, f"{span(facts.round_trip_ms)} away"
    if server is None:
        advice = "Allow the user INFO and CONFIG GET, or run doctor as a user who may."
        return Check("store", Status.WARN, f"{where} answers, {distance}; this user may not ask what it is", advice)
    found = f"{server.software} {server.version} at {where}, {distance}"
    if _version(server.version) < OLDEST_STORE:
        return Check("store", Status.FAIL, f"{found}: too old", "Upgrade it to Valkey, or to Redis 6.2 or newer.")
    if server.replica:
        advice = "Set MCPTASKS_REDIS_URL to the primary."
        return Check("store", Status.FAIL, f"{found}: a replica, which takes no writes", advice)
    if server.cluster and not re.search(r"\{[^}]+\}", prefix):
        advice = "Set MCPTASKS_PREFIX to a hash tag such as {mcp}: and MCPTASKS_BROKER_URL to a server without cluster."
        return Check("store", Status.FAIL, f"{found}: a cluster, where a task's keys need one slot", advice)
    if facts.round_trip_ms > FAR_MS:
        advice = "Move servers and workers close to the store: every call of a tool waits for it."
        return Check("store", Status.WARN, f"{found}: far", advice)
    return Check("store", Status.OK, found)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def persistence(server: Server) -> Check:
    """What a crash of the store, or a power cut, would lose."""
    if server.disk_error:
        advice = "Free or repair the disk that holds its data; until then it may refuse every write."
        return Check("persistence", Status.FAIL, "the last write to its disk failed", advice)
    if not server.appendonly:
        lost = {None: "all since the last snapshot", "": "every task"}.get(
            server.save, f"all since the last snapshot (save {server.save})"
        )
        advice = "CONFIG SET appendonly yes, and the same in its configuration file (see deploy/valkey.conf)."
        return Check("persistence", Status.WARN, f"appendonly is no: a restart of the store loses {lost}", advice)
    match server.appendfsync:
        case "no":
            advice = "CONFIG SET appendfsync everysec, and the same in its configuration file."
            found = "appendonly yes, appendfsync no: a power cut loses what the kernel held back, about 30 s"
            return Check("persistence", Status.WARN, found, advice)
        case None:
            return Check("persistence", Status.OK, "appendonly yes (appendfsync may not be read here)")
        case "always":
            return Check("persistence", Status.OK, "appendonly yes, appendfsync always: nothing is lost")
        case fsync:
            found = f"appendonly yes, appendfsync {fsync}: a crash loses nothing, a power cut a second or two"
            return Check("persistence", Status.OK, found)


def eviction(server: Server) -> Check:
    """Whether the store may delete accepted tasks to make room (case A17)."""
    policy = server.maxmemory_policy
    advice = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file."
    if policy == "noeviction":
        return Check(
            "eviction", Status.OK, "maxmemory-policy noeviction: a full store refuses new tasks and keeps the old"
        )
    if server.evicted:
        found = f"maxmemory-policy {policy} has thrown away {server.evicted:,} keys since the server started"
        return Check("eviction", Status.FAIL, found, advice)
    when = "as soon as memory is full" if server.maxmemory else "once somebody sets maxmemory"
    return Check("eviction", Status.WARN, f"maxmemory-policy {policy} throws tasks away without a word {when}", advice)


def memory(server: Server) -> Check:
    """How far the store is from refusing tasks, or from the kernel's OOM killer."""
    used, limit = server.used_memory, server.maxmemory
    if not limit:
        found = f"{decimal(used)} used, no maxmemory"
        if not server.machine_memory:
            return Check("memory", Status.OK, found)
        found += f", the machine has {decimal(server.machine_memory)}"
        if used < MACHINE_WARN * server.machine_memory:
            return Check("memory", Status.OK, found)
        advice = "Set maxmemory to half of the machine, or give it more: rewriting its log may need as much again."
        return Check("memory", Status.WARN, found, advice)
    share = used / limit
    found = f"{decimal(used)} of {decimal(limit)} used ({share:.0%})"
    if share < MEMORY_WARN:
        return Check("memory", Status.OK, found)
    advice = "Raise maxmemory, shorten the ttl of tools with large results, or wait for tasks to expire."
    return Check("memory", Status.FAIL if share >= MEMORY_FAIL else Status.WARN, found, advice)


def clock(facts: Facts) -> Check:
    """How far this machine's clock is from the store's, which is the one that counts."""
    skew = facts.clock_skew_ms
    if abs(skew) <= SKEW_MS:
        return Check("clock", Status.OK, f"this machine and the store agree within {span(max(abs(skew), 1))}")
    side = "behind" if skew > 0 else "ahead of"
    found = (
        f"this machine is {span(abs(skew))} {side} the store; tasks do not care (the store's clock rules), "
        "but log lines and Celery's countdowns do"
    )
    return Check("clock", Status.WARN, found, "Synchronise the clocks of both machines (chrony or another NTP client).")


def expiry(server: Server, backlog: Backlog | None, unlimited: Sequence[str]) -> Check:
    """How much stays for ever. `unlimited`: the tools whose tasks do, as far as they are known."""
    count = server.keys_for_ever // KEYS_OF_A_TASK if backlog is None else backlog.unlimited
    found = f"{server.keys_for_ever:,} of the database's {server.keys:,} keys never expire (the broker needs a few)"
    if backlog is not None and count:
        found += f", {count:,} task(s) without a ttl among them"
    if unlimited:
        found += f"; nor do tasks of {', '.join(unlimited)}"
    if count < MANY_FOR_EVER:
        return Check("expiry", Status.OK, found)
    advice = "Give tools a ttl instead of unlimited=True, and keep other applications out of this database."
    at_most = "" if backlog else "up to "
    return Check("expiry", Status.WARN, f"{found}: {at_most}{count:,} tasks that stay in memory for ever", advice)


def admission(backlog: Backlog, queue_max: int) -> Check:
    """Whether new tasks are accepted."""
    if backlog.closed is not None:
        found = f"an operator has new tasks refused: {backlog.closed}"
        return Check("admission", Status.WARN, found, "Run mcptasks admission open when the reason is gone.")
    if queue_max and backlog.unsent >= queue_max:
        found = f"new tasks are refused: {backlog.unsent:,} wait, and queue_max is {queue_max:,}"
        return Check("admission", Status.WARN, found, "Start more workers, or raise MCPTASKS_QUEUE_MAX.")
    return Check("admission", Status.OK, "new tasks are accepted")


def encryption(sealing: Sealing) -> Check:
    """Whether this process can open what is stored (case B09)."""
    if sealing.locked:
        found = f"{sealing.locked} of {sealing.tried} tasks looked at cannot be opened: no key here opens their calls"
        advice = (
            "Give every server, worker and shell the same MCPTASKS_ENCRYPTION_KEYS, older keys behind the first, until "
            "their tasks are gone; workers without the key put such tasks off and fail them in the end."
        )
        return Check("encryption", Status.FAIL, found, advice)
    if not sealing.keys:
        return Check("encryption", Status.OK, "off: what callers and tools say is stored as plain text")
    others = {"with an older key": sealing.older, "in plain text, from before": sealing.plain}
    rest = "".join(f", {count} {how}" for how, count in others.items() if count)
    found = f"on, {sealing.keys} key(s); {sealing.tried} task(s) looked at can be opened{rest}"
    return Check("encryption", Status.OK, found)


def outbox(backlog: Backlog) -> Check:
    """Whether tasks wait for a worker for long."""
    if not backlog.unsent:
        return Check("outbox", Status.OK, "no task waits for a worker or a retry")
    found = f"{backlog.unsent:,} task(s) wait for a worker or a retry"
    if backlog.oldest_ms is None:
        return Check("outbox", Status.OK, found)
    found += f", the oldest for {span(max(backlog.oldest_ms, 0))} in queue {backlog.oldest_queue}"
    if backlog.oldest_ms < WAITS_MS:
        return Check("outbox", Status.OK, found)
    advice = f"Start (more) workers for queue {backlog.oldest_queue}; if some are idle, their logs say why."
    return Check("outbox", Status.WARN, found, advice)


def overdue(backlog: Backlog) -> Check:
    """Whether anybody moves on what nobody else does."""
    kinds = {
        "lease(s) of dead workers": backlog.overdue_leases,
        "task(s) past their ttl": backlog.overdue_expiry,
        "message(s) to be sent again": backlog.overdue_unsent,
    }
    late = [f"{count:,} {kind}" for kind, count in kinds.items() if count]
    if not late:
        return Check("overdue", Status.OK, f"nothing is overdue; {backlog.running:,} task(s) run")
    if backlog.sweeper is None:
        found = f"{', '.join(late)}, and no worker sweeps"
        return Check("overdue", Status.FAIL, found, "Start a worker (mcptasks worker TARGET): one of them sweeps.")
    advice = f"Look for errors in the log of {backlog.sweeper}, which sweeps; after an outage wait a minute first."
    return Check("overdue", Status.WARN, f"{', '.join(late)}: the sweep is behind", advice)


def sweeper(backlog: Backlog) -> Check:
    """Whether a worker has the sweep."""
    if backlog.sweeper is not None:
        return Check("sweeper", Status.OK, f"{backlog.sweeper} sweeps")
    advice = "Start a worker (mcptasks worker TARGET); where one runs, its log says why it cannot sweep."
    work = backlog.unsent + backlog.running
    found = f"no worker sweeps{f', and {work:,} task(s) are unfinished' if work else ''}"
    return Check("sweeper", Status.FAIL if work else Status.WARN, found, advice)
