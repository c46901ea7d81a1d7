"""The lone process of `isolation`: `python -m mcptasks.fleet.lone_run APP`, its order on standard input."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

from celery.app.utils import find_app

from mcptasks.dispatch import TASK_NAME, Publisher
from mcptasks.fleet.app import WORKER
from mcptasks.fleet.execute import perform_claimed
from mcptasks.fleet.isolation import end_with_parent, read_order, report_ends, report_word
from mcptasks.fleet.portal import Portal
from mcptasks.observe import tracing
from mcptasks.observe.export import exporting
from mcptasks.observe.logs import about


async def run(portal: Portal, task_id: str, token: int, trace: Mapping[str, str]) -> str:
    """The word that the claimed run came to."""
    claim = await portal.store.reload(task_id)
    if claim is None or claim.token != token:
        return "stale"
    with tracing.continuing(trace), about(task_id, claim.record.tool):
        return await perform_claimed(portal, claim)


def main() -> None:
    """The run is over, and the parent knows what it came to."""
    order, ready = read_order(), threading.Event()
    # Watched from the start: the parent may die while the app is imported.
    end_with_parent(ready, lambda: portal.shutdown.end_cold())
    sys.path.insert(0, os.getcwd())
    app = find_app(sys.argv[1])
    app.finalize()
    portal: Portal = app.tasks[TASK_NAME].portal
    portal.alone = True
    exporting.begin(WORKER)
    report_ends()
    future = portal.start(run, portal, order["task_id"], order["token"], order["trace"])
    ready.set()
    report_word(future.result())
    if isinstance(portal.dispatcher, Publisher):
        portal.dispatcher.close()
    exporting.close()
    # Not an orderly end: a stuck tool's thread would hold it for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
