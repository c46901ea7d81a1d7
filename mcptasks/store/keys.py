"""Every key, in one place.

A task's own keys share the hash tag `{task_id}`: they live and die as one unit. The fleet's indexes have none of
it. One script touches both, so on a cluster-enabled store the prefix itself must be a hash tag ("{mcp}:"), which puts
everything into one slot; Celery's Redis transport cannot use a cluster anyway.

| key                        | type  | holds                                                            |
|----------------------------|-------|------------------------------------------------------------------|
| task:{id}                  | hash  | the record, open questions (`q:<key>`) and their limits (`d:`)   |
| task:{id}:call             | text  | arguments and submission context (JSON), until it has ended, and |
|                            |       | with a failed task as long as that, to retry it                  |
| task:{id}:journal          | hash  | asked `k:`, answers `a:`, steps `s:`, timers `t:`, guard `mrtr`  |
| task:{id}:artifacts        | hash  | name of an artifact -> its digest, size, file and kind            |
| task:{id}:result           | text  | its result or error (JSON), once it has ended                    |
| task:{id}:timeline         | list  | what happened, where the record does not tell it by itself       |
| idem:<sha256>              | text  | task id and arguments digest of an idempotency key               |
| unsent                     | zset  | task that waits for a worker or a time -> its (next) message     |
| leases                     | zset  | running task -> when its worker is taken for dead                |
| expiry                     | zset  | unfinished task -> when its time, or that of a question, is up   |
| countdowns                 | zset  | parked task -> when its countdown message is due                 |
| artifacts                  | zset  | task that has a folder of files -> when these are to be removed   |
| list:active                | zset  | unfinished task -> when it was created                           |
| list:<end>                 | zset  | task that is completed, failed or cancelled -> the same          |
| list:owner:<digest>:...    | zset  | the four of one caller                                           |
| list:tool:<tool>:...       | zset  | the four of one tool                                             |
| ids                        | zset  | "id owner-digest tool" of every task, in the order of ids        |
| drops                      | zset  | every task -> when Redis drops its keys                          |
| admission                  | hash  | present while new tasks are refused: `reason`                    |
| workers                    | hash  | node name -> the worker's own word on its health (JSON)          |
| sweeper                    | text  | which worker sweeps now                                          |
| tally                      | text  | how many unfinished tasks there were some seconds ago (JSON)     |
| wakes                      | channel: `cancel <id>`, `answer <id>`, `lost <id> <token>`       |
| task:{id}                  | channel, too: `<revision>` or `<revision> progress` of a change that clients can see |
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Final

#: The moment in `drops` of a task that Redis never drops, as indexes.lua writes it.
NEVER: Final = 9_000_000_000_000_000


def owner_digest(owner: str) -> str:
    """What stands for an owner in names of keys: 128 bits, because owners are identities, of any length."""
    digest = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).digest()[:16]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Keys:
    """The names below one prefix."""

    prefix: str

    def task(self, task_id: str) -> str:
        """The record's hash."""
        return f"{self.prefix}task:{{{task_id}}}"

    def call(self, task_id: str) -> str:
        """What was called."""
        return f"{self.task(task_id)}:call"

    def journal(self, task_id: str) -> str:
        """What a replay needs."""
        return f"{self.task(task_id)}:journal"

    def artifacts_of(self, task_id: str) -> str:
        """The artifacts that the task has written."""
        return f"{self.task(task_id)}:artifacts"

    def result(self, task_id: str) -> str:
        """What came of it."""
        return f"{self.task(task_id)}:result"

    def timeline(self, task_id: str) -> str:
        """What happened to it."""
        return f"{self.task(task_id)}:timeline"

    def idem(self, owner: str, tool: str, key: str) -> str:
        """One idempotency key, scoped to caller and tool; hashed, because callers choose it freely."""
        scope = json.dumps([owner, tool, key])
        return f"{self.prefix}idem:{hashlib.sha256(scope.encode()).hexdigest()}"

    @property
    def unsent(self) -> str:
        """The outbox."""
        return f"{self.prefix}unsent"

    @property
    def leases(self) -> str:
        """The running tasks' deadlines."""
        return f"{self.prefix}leases"

    @property
    def expiry(self) -> str:
        """The unfinished tasks' ends of time."""
        return f"{self.prefix}expiry"

    @property
    def countdowns(self) -> str:
        """The fleet-wide budget of countdown messages."""
        return f"{self.prefix}countdowns"

    @property
    def ids(self) -> str:
        """Every task's id, and to whom it belongs."""
        return f"{self.prefix}ids"

    @property
    def drops(self) -> str:
        """The tasks' last moments."""
        return f"{self.prefix}drops"

    @property
    def tasks(self) -> str:
        """The list of all tasks; like every list it is a key with `active` or an end behind it."""
        return f"{self.prefix}list:"

    @property
    def active(self) -> str:
        """All tasks that were admitted and have not ended."""
        return f"{self.tasks}active"

    def tasks_of_owner(self, owner: str) -> str:
        """The list of one caller's tasks."""
        return f"{self.tasks}owner:{owner_digest(owner)}:"

    def tasks_of_tool(self, tool: str) -> str:
        """The list of one tool's tasks."""
        return f"{self.tasks}tool:{tool}:"

    @property
    def artifacts(self) -> str:
        """The tasks whose files must be removed when they are gone, which Redis tells nobody."""
        return f"{self.prefix}artifacts"

    @property
    def admission(self) -> str:
        """Why new tasks are refused; absent while they are admitted."""
        return f"{self.prefix}admission"

    @property
    def workers(self) -> str:
        """The workers' words on their own health."""
        return f"{self.prefix}workers"

    @property
    def sweeper(self) -> str:
        """The lease of the one active sweeper."""
        return f"{self.prefix}sweeper"

    @property
    def tally(self) -> str:
        """What a process that is scraped has counted, for the others."""
        return f"{self.prefix}tally"

    @property
    def wakes(self) -> str:
        """The channel that wakes running and held tasks."""
        return f"{self.prefix}wakes"
