"""Tools of every kind that an MCP server can have. They know nothing of tasks; `CALLS` says how each is called."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypedDict

import anyio.from_thread
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Audio, Context, Image, ListRoots, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, CreateMessageResult, ListRootsResult, ResourceLink, SamplingMessage, TextContent
from pydantic import BaseModel, Field

from mcptasks import Tasks, step
from tests.support.tools import Word, ask_both, ask_by_resolver, ask_by_returning, ask_first, ask_twice


@dataclass
class Library:
    """What the lifespan makes."""

    name: str


@asynccontextmanager
async def lifespan(_server: MCPServer[Library]) -> AsyncGenerator[Library]:
    """The server's lifespan, entered where the tools run."""
    yield Library("city library")


class Colour(enum.Enum):
    """An argument of a closed set."""

    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """An argument and a result with an alias and a constraint."""

    x_axis: float = Field(alias="xAxis")
    y: float | None = None


class Opaque:
    """A result that no JSON can carry; it looks the same in every process."""

    def __repr__(self) -> str:
        return "<opaque>"


class Row(TypedDict):
    """A result as a typed dict."""

    city: str
    count: int


@dataclass
class Pair:
    """A result as a dataclass."""

    left: int
    right: str


def _sampled() -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text="A line, please"))
    return Sample([message], max_tokens=9)


def _rooted() -> ListRoots:
    return ListRoots()


def register(mcp: MCPServer[Any], tasks: Tasks) -> None:
    """Every tool is on the server, durable where the server knows tasks."""

    def tool(**options: Any) -> Any:
        return lambda fn: mcp.tool(**options)(tasks.durable()(fn))

    @tool()
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @tool()
    def sync_add(a: int, b: int = 1) -> dict[str, int]:
        return {"sum": a + b}

    @tool()
    async def untyped(value: Any):
        return value

    @tool()
    async def nothing() -> None:
        return None

    @tool()
    async def text() -> str:
        return "zwölf \u2028 lines \U0001f600"

    @tool()
    async def flag(on: bool) -> bool:
        return on

    @tool()
    async def model(point: Point, colour: Colour = Colour.RED) -> Point:
        return Point(xAxis=point.x_axis * 2, y=1.5 if colour is Colour.BLUE else None)

    @tool()
    async def typed_dict() -> Row:
        return {"city": "Ulm", "count": 3}

    @tool()
    async def plain_dataclass() -> Pair:
        return Pair(1, "two")

    @tool()
    async def many_points() -> list[Point]:
        return [Point(xAxis=1), Point(xAxis=2, y=0.0)]

    @tool()
    async def literal(which: Literal["a", "b"]) -> Literal["a", "b"]:
        return which

    @tool()
    async def picture() -> Image:
        return Image(data=b"\x89PNG not really", format="png")

    @tool()
    async def sound() -> Audio:
        return Audio(data=b"RIFF not really", format="wav")

    @tool()
    async def mixed() -> list[Any]:
        return ["a", Image(data=b"\xff\xd8", format="jpeg"), {"x": [1, 2.0, None]}, 7]

    @tool()
    async def link() -> ResourceLink:
        return ResourceLink(type="resource_link", name="a", uri="res://a", mime_type="text/plain")

    @tool()
    async def whole_result() -> CallToolResult:
        content = TextContent(type="text", text="hi")
        return CallToolResult(content=[content], structured_content={"k": [1, {}]}, _meta={"com.example/m": 1})

    @tool()
    async def error_result() -> CallToolResult:
        content = TextContent(type="text", text="no such city")
        return CallToolResult(content=[content], structured_content={"code": "E17"}, is_error=True)

    @tool()
    async def tool_error() -> str:
        raise ToolError("no such file")

    @tool()
    def sync_tool_error() -> str:
        raise ToolError("no such file either")

    @tool()
    async def crash() -> str:
        raise RuntimeError("postgres://user:secret@host is down")

    @tool()
    async def protocol_error() -> str:
        raise MCPError(-32050, "out of paper", {"tray": 2})

    @tool()
    async def broken_output() -> Point:
        return {"nope": 1}  # type: ignore[return-value]

    @tool()
    async def nested(ctx: Context[Any]) -> Any:
        return await ctx.mcp_server.call_tool("add", {"a": 1}, ctx)

    @tool()
    async def nested_crash(ctx: Context[Any]) -> str:
        await ctx.mcp_server.call_tool("crash", {}, ctx)
        return "never"

    @tool()
    async def where(ctx: Context[Library]) -> str:
        return ctx.request_context.lifespan_context.name

    @tool()
    async def who(ctx: Context[Any]) -> dict[str, Any]:
        token = get_access_token()
        info = ctx.session.client_params.client_info if ctx.session.client_params else None
        return {
            "subject": token.subject if token else None,
            "client": info.name if info else None,
            "tenant": (ctx.headers or {}).get("x-tenant"),
            "version": ctx.protocol_version,
            "can_elicit": ctx.client_capabilities is not None and ctx.client_capabilities.elicitation is not None,
        }

    @tool()
    async def reads(ctx: Context[Any]) -> str:
        return "".join(str(part.content) for part in await ctx.read_resource("res://a"))

    @tool()
    async def talkative(ctx: Context[Any]) -> str:
        await ctx.info("starting")  # pyright: ignore[reportDeprecated]
        for done in range(3):
            await ctx.report_progress(done, 3, "working")
        return "done"

    @tool()
    async def numbers() -> dict[str, Any]:
        return {"big": 9007199254740993, "huge": 10**30, "least": -(2**63), "one": 1.0, "small": 1e-7, "e": [[], {}]}

    @tool()
    async def odd_types() -> dict[str, Any]:
        when = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
        return {"when": when, "price": decimal.Decimal("1.10"), "id": uuid.UUID(int=7), "set": {1}, "pair": (1, 2)}

    @tool()
    async def raw_bytes() -> dict[str, str]:
        return {"data": base64.b64encode(bytes(range(256))).decode()}

    @tool()
    async def keyed() -> dict[int, str]:
        return {1: "one", 2: "two"}

    @tool()
    async def not_serializable() -> Any:
        return {"value": Opaque()}

    @tool()
    async def generator() -> Any:
        return (n for n in range(3))

    @tool(structured_output=False)
    async def unstructured() -> dict[str, int]:
        return {"n": 1}

    @tool(name="renamed", title="Renamed", description="A tool with another name")
    async def original_name(spelling: Annotated[str, Field(max_length=5)]) -> str:
        return spelling

    @tool()
    async def in_steps(items: list[int]) -> int:
        return sum([await step("double", lambda n=n: n * 2) for n in items])

    @tool()
    async def samples(ctx: Context[Any]) -> str:
        message = SamplingMessage(role="user", content=TextContent(type="text", text="A joke, please"))
        answer = await ctx.session.create_message([message], max_tokens=9)  # pyright: ignore[reportDeprecated]
        return getattr(answer.content, "text", "?")

    @tool()
    async def lists_roots(ctx: Context[Any]) -> list[str]:
        listed = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        return [str(root.uri) for root in listed.roots]

    @tool()
    async def goes_to_a_url(ctx: Context[Any]) -> str:
        return (await ctx.elicit_url("Log in there", "https://id.example/login", "e-1")).action

    @tool()
    def sync_asks(ctx: Context[Any]) -> str:
        answer = anyio.from_thread.run(ctx.elicit, "From a thread?", Word)
        return answer.data.word if answer.action == "accept" else answer.action

    @tool()
    async def resolves_all(
        poem: Annotated[CreateMessageResult, Resolve(_sampled)], roots: Annotated[ListRootsResult, Resolve(_rooted)]
    ) -> str:
        return f"{getattr(poem.content, 'text', '?')} {len(roots.roots)}"

    for asking in (ask_first, ask_both, ask_twice, ask_by_resolver, ask_by_returning):
        tool()(asking)

    @mcp.resource("res://a")
    def resource_a() -> str:
        return "the resource"


#: (tool, arguments) of calls that ask nobody: the modern live call is the measure.
QUIET: Final[list[tuple[str, dict[str, Any]]]] = [
    ("add", {"a": 2}),
    ("add", {"a": "2", "b": "3"}),
    ("sync_add", {"a": 1}),
    ("untyped", {"value": {"n": 1.0, "e": [], "o": {}, "t": None, "s": "ß"}}),
    ("untyped", {"value": 9007199254740993}),
    ("nothing", {}),
    ("text", {}),
    ("flag", {"on": True}),
    ("model", {"point": {"xAxis": 1.5}, "colour": "blue"}),
    ("model", {"point": '{"xAxis": 2}'}),
    ("typed_dict", {}),
    ("plain_dataclass", {}),
    ("many_points", {}),
    ("literal", {"which": "b"}),
    ("picture", {}),
    ("sound", {}),
    ("mixed", {}),
    ("link", {}),
    ("whole_result", {}),
    ("error_result", {}),
    ("tool_error", {}),
    ("sync_tool_error", {}),
    ("crash", {}),
    ("protocol_error", {}),
    ("broken_output", {}),
    ("nested", {}),
    ("nested_crash", {}),
    ("where", {}),
    ("who", {}),
    ("reads", {}),
    ("talkative", {}),
    ("numbers", {}),
    ("odd_types", {}),
    ("raw_bytes", {}),
    ("keyed", {}),
    ("not_serializable", {}),
    ("generator", {}),
    ("unstructured", {}),
    ("renamed", {"spelling": "abc"}),
    ("in_steps", {"items": [1, 2, 3]}),
]

#: Calls that never become a task; the answer must be the live one all the same.
REFUSED: Final[list[tuple[str, dict[str, Any]]]] = [
    ("add", {}),
    ("add", {"a": "x"}),
    ("model", {"point": {}}),
    ("renamed", {"spelling": "too long"}),
    ("literal", {"which": "c"}),
    ("no_such_tool", {}),
]

#: Tools that ask by returning, which the modern live protocol serves too.
RETURNING: Final[list[tuple[str, dict[str, Any]]]] = [
    ("ask_by_resolver", {"suffix": "!"}),
    ("ask_by_returning", {"suffix": "!"}),
    ("resolves_all", {}),
]

#: Tools that ask in line, which live only an older client on a duplex connection can answer.
ASKING: Final[list[tuple[str, dict[str, Any]]]] = [
    ("ask_first", {}),
    ("ask_both", {}),
    ("ask_twice", {}),
    ("samples", {}),
    ("lists_roots", {}),
    ("goes_to_a_url", {}),
    ("sync_asks", {}),
]
