"""A client that traces itself: `python -m tests.fleet.traced_client URL KEY GATE`. It answers once GATE exists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from opentelemetry import trace

from mcptasks.observe.export import exporting
from tests.fleet.system import answer, client, outcome, questions, start
from tests.support.waiting import wait_until

#: The id of a trace of which the sampler wants nothing.
UNSAMPLED: Final = 0xA


async def main(url: str, key: str, gate: Path) -> None:
    """A task that nobody records has ended; another one was started, parked, answered and has its result."""
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(UNSAMPLED, 1, is_remote=False))):
        async with client(url) as connection:
            print(await outcome(await start(connection, "ledger", key="unsampled")), flush=True)
    with trace.get_tracer("tests").start_as_current_span("an agent's turn"):
        async with client(url) as connection:
            handle = await start(connection, "ask1", key=key, x=7)
            await questions(handle)
            print("asked", handle.task_id, flush=True)
            await to_thread.run_sync(lambda: wait_until(gate.exists, description="the client may answer", within_s=90))
            await answer(handle, "secret answer")
            print("result:", await outcome(handle), flush=True)


if __name__ == "__main__":
    exporting.begin("client")
    anyio.run(main, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
