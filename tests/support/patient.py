"""How a waiting client pauses that shall be told of what happens."""

from __future__ import annotations

import asyncio

from mcptasks.client.polling import QUIET_MS, Bell, pause


class Patient:
    """Pauses as they are, but whoever is told of changes never asks by itself."""

    def __init__(self) -> None:
        #: A wait relies on what it is told, and has looked at all of that.
        self.relies = asyncio.Event()

    async def __call__(self, delay_ms: int, bell: Bell, heard: int) -> None:
        if delay_ms < QUIET_MS:
            await pause(delay_ms, bell, heard)
        else:
            # A push that came while it polled ends this pause at once, and one more poll follows.
            if bell.rings <= heard:
                self.relies.set()
            await bell.wait(heard)
