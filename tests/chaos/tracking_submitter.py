"""A process that submits the tracked tasks of one run, each in its turn, and may be killed at any moment.

It remembers nothing: started again it goes through all keys from the first, and those that are known send nothing.
`SUBMIT` is JSON: {"tool", "tasks", "began", "rate"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from mcptasks.tracker import SubmitUncertain, Tracker
from mcptasks.tracker.remote import RemoteUnavailable

#: After a call that surely did not reach its server.
_AGAIN_S = 0.5


async def submit(tracker: Tracker, order: dict[str, Any], n: int) -> None:
    """The server has taken the call, or it may have: then the fleet knows. What surely failed has been tried anew."""
    await asyncio.sleep(order["began"] + n / order["rate"] - time.time())
    arguments = {"label": f"job {n}", "seconds": 0.5 + n * 37 % 100 / 50}
    while True:
        try:
            await tracker.submit("remote", order["tool"], arguments, key=f"job {n}", notify=["book"])
        except RemoteUnavailable:
            await asyncio.sleep(_AGAIN_S)
        except SubmitUncertain:
            return
        else:
            return


async def main() -> None:
    """Every task is submitted."""
    order = json.loads(os.environ["SUBMIT"])
    async with Tracker() as tracker, asyncio.TaskGroup() as group:
        print("submitting", flush=True)
        for n in range(order["tasks"]):
            group.create_task(submit(tracker, order, n))
    print("all are submitted", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
