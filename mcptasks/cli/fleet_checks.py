"""What `mcptasks doctor` makes of the facts about the broker and the workers. No IO, so every verdict is a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcptasks.cli.verdict import Check, Status, span
from mcptasks.fleet.health import Redelivery, Rule, Survey, Worker
from mcptasks.store.registry import WorkerPulse

POOLS: Final = ("prefork", "threads")
#: Names in one line; more would only hide the message.
SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTool:
    """What matters here of a tool's policy."""

    name: str
    queue: str
    #: So long after its start a run is over, whatever it does; None: no limit.
    hard_limit_ms: int | None
    unlimited: bool
    #: Calls of it may take several rounds between client and server.
    in_rounds: bool


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def broker(survey: Survey, where: str, *, is_store: bool) -> Check:
    """Whether Celery's broker answers."""
    place = f"the store's server ({where})" if is_store else where
    if not survey.trouble:
        return Check("broker", Status.OK, f"{place} answers Celery")
    advice = (
        "Mend the store first." if is_store else "Start it, or correct MCPTASKS_BROKER_URL; the store keeps all tasks."
    )
    return Check("broker", Status.FAIL, f"{place} {survey.trouble}", advice)


def profile(changed: Sequence[str], *, only_json: bool) -> Check:
    """Whether the Celery app keeps the options that `tasks.bind` gave it."""
    if not only_json:
        advice = 'Leave accept_content at ["json"]: whoever can write to the broker could run code in the workers.'
        return Check("profile", Status.FAIL, "the Celery app accepts more than JSON", advice)
    if changed:
        advice = "Remove these from the app; limits of runs belong into @tasks.durable(time_limit=...)."
        return Check("profile", Status.WARN, f"the Celery app changes {_some(changed)}", advice)
    return Check("profile", Status.OK, "the Celery app is as mcptasks makes it")


def workers(survey: Survey, target: str) -> Check:
    """Whether somebody would run a task."""
    mine = [worker.name for worker in survey.workers if worker.ours]
    if not mine:
        others = f"; {len(survey.workers)} of other applications do" if survey.workers else ""
        advice = f"Start one: mcptasks worker {target}"
        return Check("workers", Status.FAIL, f"no worker answers{others}", advice)
    found = f"{len(mine)} answer{'s' if len(mine) == 1 else ''}: {_some(mine)}"
    if survey.shared_names:
        advice = "Give each worker a --name of its own: remote control and Flower take them for one."
        return Check("workers", Status.WARN, f"{found}; several call themselves {_some(survey.shared_names)}", advice)
    return Check("workers", Status.OK, found)


def queues(found: Sequence[Worker], tools: Sequence[DurableTool]) -> Check:
    """Whether every tool's queue has a worker."""
    served: set[str] = set()
    for worker in found:
        if worker.queues is None:
            return Check("queues", Status.SKIPPED, f"{worker.name} did not say in time which queues it serves")
        served |= worker.queues
    wanted = sorted({tool.queue for tool in tools})
    if missing := [queue for queue in wanted if queue not in served]:
        lost = [tool.name for tool in tools if tool.queue in missing]
        advice = f"Start a worker with -Q {','.join(missing)}, or one without -Q, which serves every queue."
        found_text = f"no worker serves queue {_some(missing)} (tools: {_some(lost)})"
        return Check("queues", Status.FAIL, found_text, advice)
    return Check("queues", Status.OK, f"every queue has a worker: {_some(wanted)}" if wanted else "no durable tool")


def pool(found: Sequence[Worker]) -> Check:
    """What the workers run tools in, and how many at a time."""
    kinds = Counter(worker.pool for worker in found)
    slots = sum(worker.slots for worker in found)
    text = f"{', '.join(f'{count} x {kind}' for kind, count in sorted(kinds.items()))}; {slots} run(s) at a time"
    if strange := sorted(kinds.keys() - set(POOLS)):
        advice = "Use --pool threads for tools that wait for others, --pool prefork for those that compute."
        return Check("pool", Status.WARN, f"{text}: mcptasks is not made for {_some(strange)}", advice)
    if slots == 1:
        advice = "Raise --concurrency or start more workers."
        return Check("pool", Status.WARN, f"{text}: one long run holds up all others", advice)
    return Check("pool", Status.OK, text)


def stuck(workers: Mapping[str, WorkerPulse]) -> Check:
    """Whether a tool goes on in a worker although its task has ended, because nothing can stop it there."""
    if held := {name: pulse.held_by for name, pulse in workers.items() if pulse.held_by}:
        found = ", ".join(f"{tool} holds the event loop of {name}" for name, tool in sorted(held.items()))
        advice = "Restart that worker: no other task runs in it. A tool that computes or blocks must be sync (def)."
        return Check("stuck", Status.FAIL, found, advice)
    counts = Counter[str]()
    for pulse in workers.values():
        counts.update(pulse.stuck)
    if not counts:
        return Check("stuck", Status.OK, "no tool goes on after its task has ended")
    where = _some(sorted(name for name, pulse in workers.items() if pulse.stuck))
    runs = _some([f"{tool} ({count})" for tool, count in counts.most_common()])
    advice = (
        "Have these look at mcptasks.cancelled(), or run them with --pool prefork, where their process is replaced; "
        "until they end they keep a thread each, and a restart of the worker frees it."
    )
    return Check("stuck", Status.WARN, f"still running in {where} although their tasks have ended: {runs}", advice)


def limits(rule: Redelivery, tools: Sequence[DurableTool], countdowns_ms: Sequence[int]) -> Check:
    """Whether anything takes longer than the broker's patience with an unacknowledged message (case A01)."""
    bounded = [tool.hard_limit_ms for tool in tools if tool.hard_limit_ms is not None]
    longest = f"the longest run takes {span(max(bounded))}" if bounded else "no run is limited"
    free = len(tools) - len(bounded)
    if bounded and free:
        longest += f", {free} tool(s) have no limit"
    if rule.rule is Rule.NEVER:
        return Check("limits", Status.OK, f"{longest}; the broker redelivers nothing (ack_emulation is off)")
    if rule.rule is Rule.UNKNOWN:
        advice = "Keep time limits and countdowns below the time after which your broker redelivers."
        return Check("limits", Status.SKIPPED, "it is not known when this broker redelivers", advice)
    bound = f"{rule.rule} ({span(rule.after_ms)}{', the default' if rule.rule is Rule.CONSUMER else ''})"
    over = [tool.name for tool in tools if tool.hard_limit_ms is None or tool.hard_limit_ms >= rule.after_ms]
    late = [f"the countdown of {span(max(countdowns_ms))}"] if max(countdowns_ms, default=0) >= rule.after_ms else []
    if not over and not late:
        return Check("limits", Status.OK, f"{longest}; all below {bound}")
    found = " and ".join([*late, *([f"runs of {_some(over)}"] if over else [])])
    return Check("limits", Status.WARN, f"not below {bound}: {found}", _PATIENCE[rule.rule])


def rounds(keys: int, tools: Sequence[DurableTool]) -> Check:
    """Whether any server process can go on with what a client brings back to it from another one.

    `keys`: how many MCPTASKS_REQUEST_STATE_KEYS there are.
    """
    if keys:
        others = f", and {keys - 1} more open(s) what is still under way" if keys > 1 else ""
        return Check("rounds", Status.OK, f"a shared key seals what clients carry from round to round{others}")
    taken = [tool.name for tool in tools if tool.in_rounds]
    if not taken:
        return Check("rounds", Status.OK, "no call of a durable tool takes several rounds, so no key is needed")
    found = f"no shared key: calls of {_some(taken)} that take several rounds end at the server process they began at"
    advice = (
        "With several server processes set MCPTASKS_REQUEST_STATE_KEYS on all of them, to the same secret of at least "
        '32 bytes: python -c "import secrets; print(secrets.token_hex(32))". A single one needs none, nor do servers '
        "that share RequestStateSecurity(keys=[...]) in their own code."
    )
    return Check("rounds", Status.WARN, found, advice)


_PATIENCE: Final = {
    Rule.VISIBILITY: "Set ack_emulation to False in broker_transport_options as mcptasks does, or raise "
    "visibility_timeout: such messages reach a second worker, which drops them but loses time.",
    Rule.CONSUMER: "Raise consumer_timeout in rabbitmq.conf above the longest run, or give these tools a time_limit "
    "below it: RabbitMQ cuts a worker off that is over it.",
}
