"""Signals that end a command, heard where an event loop runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator

import pytest

from mcptasks.cli.interrupts import interrupt_on_termination


@pytest.fixture
def ctrl_c() -> Generator[None]:
    """Ctrl-C is Python's own, whatever the test's runner does with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_termination_in_an_event_loop_cancels_its_main_task() -> None:
    """Raised wherever the loop happens to be, it once ended in a callback, and the demo went on to its end."""
    heard: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            heard.append("went on")
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    with interrupt_on_termination(), pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert heard == ["went on", "cancelled"]


@pytest.mark.usefixtures("ctrl_c")
def test_a_termination_elsewhere_is_a_keyboard_interrupt() -> None:
    """As Ctrl-C is."""
    with interrupt_on_termination(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
