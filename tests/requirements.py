"""What the project owes, as a list, and how a test says what it proves; `tests/unit/test_requirements.py` checks both.

P: duties of the Tasks extension (SEP-2663, protocol 2026-07-28), and our own rule where its text leaves a choice.
R, N, T, W, D: behaviours that comparable systems have and this one therefore has too.
A to F: faults that others shipped, each with the outcome that is right here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

T = TypeVar("T")

_DUTIES: Final = {
    # -- negotiation
    "P01": "server/discover advertises the extension with an empty object, and no capabilities.tasks",
    "P02": "a declaration counts for the request that carries it and for no other",
    "P03": "a required tool without the declaration: -32021 that names the extension",
    "P04": "tasks/get, update, cancel, listening to taskIds undeclared: -32021, and the task is untouched",
    "P05": "the server alone decides; an old `task` hint changes nothing, whatever it holds",
    "P06": "tasks/list and tasks/result do not exist; clients of older versions never see a task",
    # -- shapes
    "P10": "CreateTaskResult is flat, with resultType task and no payload",
    "P11": "the Task's fields: ttlMs always, optional ones absent instead of null, ISO 8601 times, integers",
    "P12": "tasks/get is complete and carries exactly the payload of its status",
    "P13": "tasks/update and tasks/cancel answer an empty complete result",
    "P14": "resultType is complete on everything else; no related-task meta in an inlined result",
    # -- creation
    "P20": "a handle leaves only when tasks/get would find it, on any server of the store",
    "P21": "questions asked before a task exists are settled on the request, and the task's result reflects them",
    "P22": "arguments are validated first; a bad call gets the live answer byte for byte, and no task",
    "P23": "the same idempotency key, caller and arguments: the same task; other arguments: refused",
    "P24": "task ids carry at least 128 random bits",
    # -- life
    "P30": "working to input_required and back, either to a terminal status, and nothing leaves a terminal one",
    "P31": "failed only for JSON-RPC errors, with code, message and data; a tool error is completed",
    "P32": "the inlined result is what the live call would have returned",
    "P33": "readable for the whole ttl; overdue: failed as expired; ended: kept one more ttl; null: kept for ever",
    "P34": "pollIntervalMs is short while things move and longer while a person is waited for",
    "P35": "lastUpdatedAt changes when a client could see a difference, and never because of a read",
    # -- input
    "P40": "a question's key is unique in its task's life",
    "P41": "answers to unknown, answered or closed keys are ignored; a subset is accepted, the rest stays open",
    "P42": "an accepted answer that breaks its requestedSchema: -32602, nothing of that call is stored",
    "P43": "the first valid answer of a key wins, also among concurrent ones",
    "P44": "only what the client declared is asked, else the task fails with -32021",
    # -- cancel
    "P50": "a cancel is stored before it is acknowledged, and idempotent, also on an ended task",
    "P51": "cancel is cooperative: the tool may clean up, complete or fail, and each is recorded as what it was",
    "P52": "queued or parked: cancelled at once; running: async at the next await, sync at the next check, then grace",
    "P53": "notifications/cancelled cancels no task",
    # -- errors and security
    "P60": "unknown, expired and foreign ids get one answer, -32602, in get, update and cancel",
    "P61": "a wrong Mcp-Name on tasks/*: -32020 and HTTP 400; encoded values decoded; missing: fine unless strict",
    "P62": "store away: -32603 within seconds, no half-made task, plain tools go on",
    # -- push
    "P70": "listening to taskIds: acknowledged with the caller's own ids; then the full task as tasks/get has it",
    "P71": "no progress and no log message on a listener's stream",
    "P72": "the state at the time of listening is sent once, so that nothing is missed in between",
    "P80": "every tasks/* request and every task listened to is checked against the caller's identity",
    "P81": "without authentication the id is the secret: the server logs no full id at INFO or above",
}

_BEHAVIOURS: Final = {
    "R1": "a seed task is returned once a get would find it; ttl by default, given, or unlimited",
    "R2": "get, update, cancel; an unknown id is an error in all three",
    "R3": "several questions may be open at once; all are listed, partial answers are accepted",
    "R4": "a tool can set the status message and ask whether it was cancelled",
    "R5": "after a cancel a tool may stop, fail for its own reason or finish; clean-up runs",
    "R6": "a cancel wakes a tool that waits for input",
    "R7": "overdue work is failed as expired and stopped; abandoned tasks are swept too",
    "R8": "the tool sees who called and with which request id",
    "R9": "a shutdown leaves no orphan",
    "N1": "per tool never, when possible or always; or a function of params and caller per call",
    "N2": "the call is persisted with the first snapshot, under its idempotency key where it has one",
    "N3": "a hook decides which identity is kept; never tokens or transports",
    "N4": "retries: an exact list of delays, kept with the task, never early, used up only by asking; then it fails",
    "N5": "the same event twice commits once; completion and cancel race safely",
    "N6": "leases are renewed and fenced: a stale worker's late writes are refused",
    "N7": "at least once, and the docs say what repeats",
    "N8": "replay: the same key and question gives the stored answer; another question under it is an error",
    "N9": "a run has no transport and no request to answer to",
    "N11": "a stress workload of its own: writers race every pair of transitions; exact invariants, timings described",
    "T1": "closed admission refuses new calls before any record exists, with its reason; admitted ones go on",
    "T2": "what was admitted is active until it ends, also before it starts; listed in lexical order",
    "T3": "cancel all: the reason becomes the status message, the count is told, admission stays as it is",
    "T4": "drained means that the last admitted task has written its end; no gap in which it only looks so",
    "T5": "a refused or failed creation leaves nothing reserved, and every end releases what was",
    "D1": "submit: the handle is kept before it returns, or the remote task is cancelled; a tracked one is not touched",
    "D2": "polls follow clamped hints, back off after errors, wait a minute for a person, end with it, and are leased",
    "D3": "a protocol error ends a tracked task, a network error does not; sizes are bounded, numbers exact",
    "D4": "one bad task, poll, cancel or notification stops no sibling and no later phase",
    "D5": "a cancel is stored and delivered by the fleet, retried from when the call ended",
    "D6": "news are told at least once under one id, the newest in place of older ones; refused ones are dead letters",
    "D7": "start polls what is due at once; stop cancels a hung poll and is clean",
    "W1": "tasks survive restarts and a completed record is byte-identical after one",
    "W2": "admission with a caller-chosen key is crash-safe and replays to the accepted task",
    "W3": "a run whose worker died is run again within its attempts, or failed; a live one is not robbed",
    "W4": "the limit that came first names the reason; a person's time counts against none; a stuck run frees its slot",
    "W5": "a cancel says what it did: ended it, asked for it, or came too late",
    "W6": "a timeline per task: bounded, keeps its head, coalesces runs of progress, says how many were omitted",
    "W7": "what is large goes to files, with a reference and a summary; no id or name leads out of their place",
    "W8": "lists (newest first), counts and prefixes of ids show a caller his own; what has no owner, operators alone",
    "W9": "every record has a schema version, and a newer one is refused, never misread",
    "W10": "a store failure is never reported as success; a finished run waits and writes when the store is back",
}

_CASES: Final = {
    "A01": "a redelivered message starts no second run",
    "A03": "a task whose message vanished is run all the same",
    "A05": "a job that kills its worker is given up after its attempts",
    "A07": "waiting tasks cost a worker neither memory nor messages, however many there are",
    "A08": "a cancel that no worker heard still stops the task",
    "A09": "after any fault of its store a worker works again, or says that it does not",
    "A10": "with the broker away a durable call fails or is kept, quickly, and nothing is half made",
    "A13": "Flower lists every worker and finds a task's run by its id; nothing depends on Flower",
    "A15": "clients made at import serve every call of a worker process, whose loop is one for its life",
    "A16": "an unknown, foreign or expired id is an error, never a task that still runs",
    "A17": "a store that refuses writes costs no accepted task and no result",
    "B01": "a task is found through any server, by its caller only",
    "B03": "a resumed tool never runs with other arguments",
    "B04": "a cancel reaches the running body",
    "B06": "one runner per task; after a crash or stall the old one's writes are refused",
    "B08": "identity, headers, progress, log and questions work after the request is gone",
    "B09": "no token is stored unasked; sealed, nobody's words can be read; without its key no task is run",
    "C01": "task methods are closed to requests that do not declare the extension",
    "C02": "relics of the 2025 design neither work nor disturb",
    "C03": "tool errors are completed, protocol errors failed, bad calls make no task",
    "C05": "the raw bytes of every answer satisfy the schema in all five statuses",
    "C06": "cancels and updates after the end change nothing",
    "C08": "a late duplicate answer never satisfies a later question",
    "C09": "an accepted answer is kept over restarts, and the task moves on with the last one",
    "C12": "a call that is sent again starts nothing again, where its client says that it is the same",
    "C13": "a task lives for its ttl and not beyond: its calls, its run and its messages learn of the end",
    "C14": "a client that cannot answer is not asked; the tool hears it at once",
    "D01": "a remote task whose handle could not be kept is found again or cancelled",
    "D03": "one bad poll ends nothing: only an answer about the task does",
    "D04": "odd hints neither storm nor freeze a poller",
    "D06": "a question is asked once per key, answered once, and withdrawn when its task ends",
    "D08": "repeated cancels are one; without a tracker the caller is told so, and a later one delivers it",
    "D09": "an end is told at least once under one id; a dead target's are dead letters; a hanging one delays itself",
    "D11": "of several open calls, one that ends sends no other again, and each gets its own result",
    "E01": "what stands before a question runs again, a step does not; the docs say how often, and tests count it",
    "E03": "answers bind by key; a tool that is not the one of its record fails once, with a message that names both",
    "E05": "a question that can be seen can be answered, and no answer to it is lost",
    "E06": "an answer moves a task on at once, however long it has waited and however many wait beside it",
    "E07": "limits count the tool's own time, not a person's; they are kept in every pool, whatever the tool does",
    "E08": "a deploy while a task waits costs no task: a worker that has its tool gets it, or it fails with the name",
    "E10": "a retry or a lost worker after an answer does not ask again",
    "F01": "NaN and infinities: every byte stream is strict JSON, and the task ends",
    "F03": "a lone surrogate costs one character, not the task",
    "F05": "digits, floats, empty lists and objects survive every hop",
    "F07": "payloads over a limit end with an answer that names the limit",
    "F09": "a result that cannot be serialized ends the task as the live call would",
    "F10": "times carry a zone and never run back; a task ends by the store's clock, whatever another process's says",
    "F11": "odd ids: -32602, fast, without a scan",
}

REQUIREMENTS: Final[Mapping[str, str]] = MappingProxyType(_DUTIES | _BEHAVIOURS | _CASES)


def covers(*ids: str) -> Callable[[T], T]:
    """The decorated test (or every test of the decorated class) proves these requirements. Write the ids as literals.

    Raises:
        KeyError: one of them does not exist.
    """
    unknown = sorted(set(ids) - REQUIREMENTS.keys())
    if unknown or not ids:
        raise KeyError(f"no such requirement: {', '.join(unknown) or 'none was named'} (see tests/requirements.py)")
    return lambda test: test
