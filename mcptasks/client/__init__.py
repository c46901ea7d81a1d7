"""For callers of task servers.

async with Client(url, extensions=[TasksClient()]) as client:
    result = await client.call_tool("build_report", {"topic": "q3"})        # waits, answers, returns

async with connect(url) as connection:
    handle = await TasksClient.start(connection.client, "build_report", {"topic": "q3"}, idempotency_key="q3")
    async for task in handle.changes():
        print(task.status, task.status_message)
    async with progress_bar(handle):
        result = await handle.result()
"""

from mcptasks.client.bar import progress_bar
from mcptasks.client.connect import Connection, connect
from mcptasks.client.errors import TaskCancelled, TaskFailed, TaskRefused, TaskUnreachable
from mcptasks.client.extension import TasksClient
from mcptasks.client.handle import TaskHandle
from mcptasks.observe.timeline import Entry, Timeline
from mcptasks.progress import Progress

__all__ = [
    "Connection",
    "Entry",
    "Progress",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TaskRefused",
    "TaskUnreachable",
    "TasksClient",
    "Timeline",
    "connect",
    "progress_bar",
]
