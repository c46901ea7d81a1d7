"""What the tests of artifacts share: their links in a result, their bytes through `resources/read`, their files."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from mcptasks.links import SIZE
from mcptasks.settings import MIB, Settings
from tests.support.raw_client import RawClient, Reply


def links(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The result's links, by name."""
    return {block["name"]: block for block in state["result"]["content"] if block["type"] == "resource_link"}


async def read(client: RawClient, uri: str) -> Reply:
    """`resources/read`."""
    return await client.send("resources/read", {"uri": uri}, headers={"Mcp-Name": uri})


async def read_bytes(client: RawClient, uri: str, *, part: int = MIB) -> bytes:
    """The whole of it, in parts."""
    gathered, size = bytearray(), 1
    while len(gathered) < size:
        [contents] = (await read(client, f"{uri}?offset={len(gathered)}&length={part}")).result["contents"]
        size = contents["_meta"][SIZE]
        gathered += base64.b64decode(contents["blob"])
    return bytes(gathered)


def files_of(settings: Settings) -> list[Path]:
    """All that lies in the place of artifacts."""
    return [path for path in Path(settings.artifacts_url).rglob("*") if path.is_file() and path.name != ".gitignore"]
