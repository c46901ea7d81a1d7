"""What is measured, one function per measure; each takes a server's port. All but `own_client` use the load driver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.driver import PATIENCE_S, Client, Samples, WrongAnswer, check_sum, connected, now_ms, spread
from benchmarks.services import ROOT


async def plain(port: int, concurrency: int, count: int) -> Samples:
    """The floor: `tools/call` of the same tool, not durable, until its result."""
    async with connected(port, concurrency) as clients:

        async def op(client: Client, number: int) -> None:
            await client.plain_add(number, 1)

        return await spread(clients, count, op)


async def create(port: int, concurrency: int, count: int) -> Samples:
    """`tools/call` until the task's handle. The worker runs the tasks meanwhile; they have ended on return."""
    async with connected(port, concurrency) as clients:
        samples, handles = await _create_many(clients, count)
        await _all_complete(clients, handles)
        return samples


async def get(port: int, concurrency: int, count: int) -> Samples:
    """`tasks/get` of completed tasks, result inlined, each task read a few times."""
    async with connected(port, concurrency) as clients:
        _, handles = await _create_many(clients, max(1, count // 8))
        await _all_complete(clients, handles)

        async def op(client: Client, number: int) -> None:
            expected = number % len(handles)
            task = await client.get(handles[expected]["taskId"])
            check_sum(task["result"], expected)

        return await spread(clients, count, op)


async def complete(port: int, concurrency: int, count: int) -> Samples:
    """`tools/call` until `tasks/get` shows the result."""
    async with connected(port, concurrency) as clients:

        async def op(client: Client, number: int) -> None:
            handle = await client.create("add", {"a": number, "b": 0})
            check_sum((await client.until(handle["taskId"], "completed"))["result"], number)

        return await spread(clients, count, op)


async def answer(port: int, concurrency: int, count: int, *, tool: str = "ask", think_s: float = 0) -> Samples:
    """`tasks/update` of a task that waits for an answer, until `tasks/get` shows the result; asking is not timed.

    `think_s` passes between the question and its answer.
    """
    async with connected(port, concurrency) as clients:

        async def op(client: Client, number: int) -> float:
            handle = await client.create(tool, {})
            parked = await client.until(handle["taskId"], "input_required")
            await asyncio.sleep(think_s)
            said = f"answer {number}"
            responses = {key: {"action": "accept", "content": {"value": said}} for key in parked["inputRequests"]}
            started = now_ms()
            await client.answer(handle["taskId"], responses)
            done = await client.until(handle["taskId"], "completed")
            took = now_ms() - started
            if said not in str(done["result"]["content"]):
                raise WrongAnswer(f"the answer got lost: {done['result']}")
            return took

        return await spread(clients, count, op)


async def own_client(command: Sequence[str | Path], port: int, count: int) -> Samples:
    """Call to result as the system's own client gives it, polling as that client likes, in a process of its own.

    Raises:
        WrongAnswer: the client failed; with the end of what it printed.
    """
    process = await asyncio.create_subprocess_exec(
        *command, str(port), str(count), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise WrongAnswer(f"{command[-1]} failed:\n{err.decode()[-2000:]}")
    took: list[float] = json.loads(out)
    return Samples(took, sum(took))


async def burst(port: int, concurrency: int, count: int) -> Samples:
    """`count` tasks created at once by `concurrency` clients, until the last has ended. No polling in between.

    `wall_ms` runs from the first call to the end of the last task; `ms` are the creations.
    """
    async with connected(port, concurrency) as clients:
        began = now_ms()
        samples, handles = await _create_many(clients, count)
        ended = await _all_complete(clients, handles)
        return Samples(samples.ms, ended - began)


async def create_backlog(port: int, concurrency: int, count: int) -> list[dict[str, Any]]:
    """The handles of `count` new tasks, which nobody has waited for."""
    async with connected(port, concurrency) as clients:
        _, handles = await _create_many(clients, count)
        return handles


async def drain(port: int, handles: Sequence[dict[str, Any]]) -> float:
    """When the last of these tasks was first seen completed, on the `now_ms` clock; all have the right result."""
    async with connected(port, 4) as clients:
        return await _all_complete(clients, handles)


async def _create_many(clients: Sequence[Client], count: int) -> tuple[Samples, list[dict[str, Any]]]:
    handles: list[dict[str, Any]] = [{} for _ in range(count)]

    async def op(client: Client, number: int) -> None:
        handles[number] = await client.create("add", {"a": number, "b": 0})

    return await spread(clients, count, op), handles


async def _all_complete(clients: Sequence[Client], handles: Sequence[dict[str, Any]]) -> float:
    """Waits for the newest first: what is seen completed at first sight after that was completed by then."""
    last = await clients[0].until(handles[-1]["taskId"], "completed")
    check_sum(last["result"], len(handles) - 1)
    ended = now_ms()

    async def op(client: Client, number: int) -> None:
        nonlocal ended
        expected = len(handles) - 1 - number
        task = await client.get(handles[expected]["taskId"])
        if task["status"] != "completed":
            task = await client.until(handles[expected]["taskId"], "completed")
            ended = max(ended, now_ms())
        check_sum(task["result"], expected)

    await spread(clients, len(handles), op)
    return ended
