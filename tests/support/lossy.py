"""A way to the store on which the answer to one script gets lost: the script has run, and nobody hears of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

from mcptasks.settings import Settings
from mcptasks.store.scripts import SCRIPTS

#: The connection is cut, or stays and is silent.
Loss: TypeAlias = Literal["cut", "silence"]

_CHUNK = 65_536


class LossyWay:
    """Passes everything on between clients and the store, but for the answers that it was told to lose."""

    def __init__(self) -> None:
        self._sha, self._how = b"", "cut"
        #: How many answers were lost.
        self.lost = 0

    def lose(self, script: str, how: Loss) -> None:
        """The answer to the script's next call will not arrive; the store knows the script already."""
        self._sha, self._how = hashlib.sha1(SCRIPTS[script].source.encode()).hexdigest().encode(), how

    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, port: int) -> None:
        """One connection, from its beginning to its end."""
        store, to_store = await asyncio.open_connection("127.0.0.1", port)
        doomed = asyncio.Event()

        async def there() -> None:
            while data := await client.read(_CHUNK):
                if self._sha and self._sha in data:
                    self._sha = b""
                    doomed.set()
                to_store.write(data)

        async def back() -> None:
            while data := await store.read(_CHUNK):
                if not doomed.is_set():
                    to_client.write(data)
                    continue
                self.lost += 1
                if self._how == "cut":
                    return
                doomed.clear()

        ways = {asyncio.ensure_future(there()), asyncio.ensure_future(back())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            to_store.close()
            to_client.close()


@asynccontextmanager
async def lossy(settings: Settings) -> AsyncGenerator[tuple[LossyWay, Settings]]:
    """A way that loses nothing yet, and the settings of who goes by it."""
    way, port = LossyWay(), int(settings.redis_url.rpartition(":")[2].partition("/")[0])
    carrying: set[asyncio.Task[None]] = set()

    async def accept(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carrying.add(task)
        await way.carry(client, to_client, port)
        carrying.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield way, settings.model_copy(update={"redis_url": url})
    finally:
        server.close()
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
