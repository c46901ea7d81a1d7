"""A task server for `benchmarks.tracking`: knows every task id, each works for ever. Prints its URL."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from tests.support.stub_server import StubServer
from tests.support.stub_steps import Task, working


class Tasks(dict[str, Task]):
    """Makes each task when it is first asked for."""

    def get(self, task_id: str, _: Any = None) -> Task:
        """The task, whether it was there or not."""
        if task_id not in self:
            self[task_id] = Task(task_id, "export", {}, deque([working()]))
        return self[task_id]


def main(hint_ms: int) -> Any:
    """Serves until it is killed."""
    with StubServer(keeps_log=False) as stub:
        stub.tasks, stub.hint, stub.pushes = Tasks(), hint_ms, False
        print(stub.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(600_000)
