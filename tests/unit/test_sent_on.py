"""A message that a worker does not act on and sends once more is the message that it got."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Final

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu.message import Message
from mcp.server.mcpserver import MCPServer

from mcptasks.dispatch import TASK_NAME, Publisher
from mcptasks.fleet.app import make_app, serve_tasks
from mcptasks.fleet.portal import Portal
from mcptasks.model import Hint
from mcptasks.settings import Settings

#: Not the default queue: a worker of that one alone might not even have the tool.
HINT: Final = Hint(task_id="t1", run=3, tool="report", queue="slow", hard_limit_s=16.0)


class Outbox:
    """Keeps what is to be sent."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hint: Hint) -> None:
        self.hints.append(hint)

    def envelope(self, hint: Hint) -> None:
        """Nothing is pushed by a script here."""


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def app(settings: Settings, outbox: Outbox) -> Generator[Celery]:
    """The app of a worker that was told to stop a moment ago."""
    app, portal = make_app(settings), Portal(settings, MCPServer("idle"), outbox)
    serve_tasks(app, portal, [settings.queue, HINT.queue])
    portal.shutdown.begin(3_600_000)
    yield app
    assert portal.close()


@pytest.mark.parametrize("hint", [HINT, replace(HINT, look=2)], ids=["for a run", "a parked task's re-check"])
def test_a_worker_that_goes_down_sends_a_message_on_as_it_came(app: Celery, outbox: Outbox, hint: Hint) -> None:
    """Through the real publisher, broker and request: what the hint is made of again must have travelled with it."""
    publisher = Publisher(app, broker_is_store=False)
    publisher.send(hint)
    publisher.close()
    with app.connection_for_read() as connection:
        received = connection.default_channel.basic_get(hint.queue)
        assert isinstance(received, Message), "it is in its own queue"
        task = app.tasks[TASK_NAME]
        Request(received, app=app, task=task, hostname="w@test", decoded=False).execute()
    assert outbox.hints == [hint]
