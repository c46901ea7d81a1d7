"""What can come out of a tool as content blocks."""

from __future__ import annotations

from typing import Annotated, Any, Final

from mcp.server.mcpserver import Audio, Image
from mcp_types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

from tests.support.kinds.arguments import Point
from tests.support.kinds.shelf import Shelf

SHELF: Final = Shelf("Results: content")


@SHELF.tool("a picture")
async def picture() -> Image:
    return Image(data=b"\x89PNG not really", format="png")


@SHELF.tool("a sound")
async def sound() -> Audio:
    return Audio(data=b"RIFF not really", format="wav")


@SHELF.tool("text, pictures and data in one list")
async def mixed() -> list[Any]:
    return ["a", Image(data=b"\xff\xd8", format="jpeg"), {"x": [1, 2.0, None]}, 7]


@SHELF.tool("content blocks as such")
async def blocks() -> list[ContentBlock]:
    return [
        TextContent(type="text", text="for people", annotations=Annotations(audience=["user"], priority=0.5)),
        ImageContent(type="image", data="iVBO", mime_type="image/png"),
        AudioContent(type="audio", data="UklG", mime_type="audio/wav"),
    ]


@SHELF.tool("a link to a resource")
async def link() -> ResourceLink:
    return ResourceLink(type="resource_link", name="a", uri="res://a", mime_type="text/plain", size=12)


@SHELF.tool("embedded resources, text and binary")
async def embedded() -> list[EmbeddedResource]:
    text = TextResourceContents(uri="res://text", mime_type="text/markdown", text="# Title")
    blob = BlobResourceContents(uri="res://blob", mime_type="application/octet-stream", blob="AAEC")
    return [EmbeddedResource(type="resource", resource=text), EmbeddedResource(type="resource", resource=blob)]


@SHELF.tool("a whole result with metadata")
async def whole_result() -> CallToolResult:
    content = TextContent(type="text", text="hi")
    return CallToolResult(content=[content], structured_content={"k": [1, {}]}, _meta={"com.example/m": 1})


@SHELF.tool("a whole result that promises its data")
async def promised_result() -> Annotated[CallToolResult, Point]:
    content = TextContent(type="text", text="at 1")
    return CallToolResult(content=[content], structured_content={"xAxis": 1.0, "y": None})


@SHELF.tool("a whole result without content")
async def empty_result() -> CallToolResult:
    return CallToolResult(content=[])


@SHELF.tool(
    "a tool with annotations, an icon and metadata",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    icons=[Icon(src="https://example.com/i.png", mime_type="image/png", sizes=["48x48"])],
    meta={"com.example/cost": 3},
)
async def decorated() -> str:
    return "as listed"
