"""Tools that ask in line. Live only an older client on a connection with a way back can answer them."""

from __future__ import annotations

import uuid
from typing import Any, Final, Literal

import anyio
import anyio.from_thread
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel, Field

from tests.support.kinds.shelf import LEGACY, Differs, Reply, Shelf
from tests.support.tools import Word, ask_both, ask_first, ask_twice

SHELF: Final = Shelf("Asking in line")
ALL: Final = (Reply.ACCEPT, Reply.DECLINE, Reply.CANCEL)
OLD: Final = (LEGACY,)

SHELF.asks("one question", live_on=OLD, replies=ALL)(ask_first)
SHELF.asks("two at once", live_on=OLD, replies=ALL)(ask_both)
SHELF.asks("the same one twice", live_on=OLD)(ask_twice)


class Form(BaseModel):
    """Every kind of field that a question may have."""

    word: str = Field(min_length=1)
    count: int = Field(default=3, ge=1)
    share: float = 0.5
    sure: bool = False
    size: Literal["small", "large"] = "small"
    tags: list[Literal["a", "b"]] = ["a"]


def _message(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(type="text", text=text))


@SHELF.asks("a form with every kind of field, filled in as far as it must be", live_on=OLD)
async def long_form(ctx: Context[Any]) -> dict[str, Any]:
    answer = await ctx.elicit("Fill it in, please", Form)
    return answer.data.model_dump(mode="json") if answer.action == "accept" else {}


@SHELF.asks("three questions, each with the answer before it", live_on=OLD)
async def chain(ctx: Context[Any]) -> str:
    said: list[str] = []
    for _ in range(3):
        answer = await ctx.elicit(f"{len(said)} so far: {' '.join(said)}", Word)
        said.append(answer.data.word if answer.action == "accept" else answer.action)
    return " ".join(said)


@SHELF.asks("a question in a loop until it is answered well", live_on=OLD)
async def until_good(ctx: Context[Any]) -> int:
    for asked in range(1, 4):
        answer = await ctx.elicit(f"Word number {asked}", Word)
        if answer.action == "accept" and asked == 2:
            return asked
    return 0


@SHELF.asks("a page to visit", live_on=OLD, replies=ALL)
async def goes_to_a_url(ctx: Context[Any]) -> str:
    return (await ctx.elicit_url("Log in there", "https://id.example/login", "e-1")).action


@SHELF.asks("a model to speak", live_on=OLD)
async def samples(ctx: Context[Any]) -> str:
    answer = await ctx.session.create_message([_message("A joke, please")], max_tokens=9)  # pyright: ignore[reportDeprecated]
    return getattr(answer.content, "text", "?")


@SHELF.asks("a model to speak, with all there is to say to it", live_on=OLD)
async def samples_with_care(ctx: Context[Any]) -> str:
    answer = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
        [_message("A poem, please"), SamplingMessage(role="assistant", content=TextContent(type="text", text="On?"))],
        max_tokens=50,
        system_prompt="Be brief",
        temperature=0.2,
        stop_sequences=["END"],
        metadata={"k": 1},
        related_request_id=ctx.request_id,
    )
    return f"{answer.role} {answer.model} {getattr(answer.content, 'text', '?')}"


@SHELF.asks("the client's folders", live_on=OLD)
async def lists_roots(ctx: Context[Any]) -> list[str]:
    listed = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
    return [str(root.uri) for root in listed.roots]


@SHELF.asks("all three kinds one after the other", live_on=OLD)
async def asks_everything(ctx: Context[Any]) -> str:
    first = await ctx.elicit("First?", Word)
    second = await ctx.session.create_message([_message(first.action)], max_tokens=9)  # pyright: ignore[reportDeprecated]
    third = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
    return f"{first.action} {getattr(second.content, 'text', '?')} {len(third.roots)}"


@SHELF.asks("a question of a sync tool", live_on=OLD)
def sync_asks(ctx: Context[Any]) -> str:
    answer = anyio.from_thread.run(ctx.elicit, "From a thread?", Word)
    return answer.data.word if answer.action == "accept" else answer.action


@SHELF.asks("questions in a task group", live_on=OLD)
async def asks_in_group(ctx: Context[Any]) -> list[str]:
    said: dict[int, str] = {}

    async def branch(number: int) -> None:
        answer = await ctx.elicit(f"{number} of the group", Word)
        said[number] = answer.data.word if answer.action == "accept" else answer.action

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(branch, number)
    return [said[number] for number in range(3)]


@SHELF.asks("a question through session.elicit_form", live_on=OLD)
async def asks_by_session(ctx: Context[Any]) -> str:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    answer = await ctx.session.elicit_form("By hand?", schema, ctx.request_id)
    return str((answer.content or {}).get("word"))


@SHELF.asks("a question inside another tool", live_on=OLD, needs=("ask_first",))
async def nested_asks(ctx: Context[Any]) -> Any:
    return await ctx.mcp_server.call_tool("ask_first", {}, ctx)


@SHELF.asks("a question with progress before and after it", live_on=OLD)
async def asks_between(ctx: Context[Any]) -> str:
    await ctx.report_progress(1, 2, "before")
    answer = await ctx.elicit("Go on?", Word)
    await ctx.report_progress(2, 2, "after")
    return answer.action


@SHELF.asks("a question under a time-out of the tool's own", live_on=OLD)
async def asks_in_time(ctx: Context[Any]) -> str:
    with anyio.fail_after(30):
        return (await ctx.elicit("In time?", Word)).action


@SHELF.asks("a question whose errors the tool catches", live_on=OLD)
async def catches_all(ctx: Context[Any]) -> str:
    try:
        answer = await ctx.elicit("Caught?", Word)
    except Exception as exc:  # what an author writes who trusts nobody
        return f"caught {type(exc).__name__}"
    finally:
        await ctx.report_progress(1)
    return answer.action


@SHELF.asks("a protocol error after a question", live_on=OLD)
async def asks_then_fails(ctx: Context[Any]) -> str:
    answer = await ctx.elicit("And then?", Word)
    raise MCPError(-32050, f"after {answer.action}", {"k": 1})


@SHELF.asks("a ping of the client", live_on=OLD)
async def pings(ctx: Context[Any]) -> str:
    return str(await ctx.session.send_ping())


@SHELF.asks(
    "a page with a new id in each run",
    live_on=OLD,
)
async def new_page_id(ctx: Context[Any]) -> str:
    return (await ctx.elicit_url("Log in there", "https://id.example/login", str(uuid.uuid4()))).action


@SHELF.asks(
    "a page with a new URL in each run",
    live_on=OLD,
    differs=Differs(
        live="accept",
        task="The task cannot go on: the tool came to the question 'Pay there' where an earlier run of it had",
        why="What was paid on the page of the first run would be looked for under the id of the second. The task fails "
        "and says so. Make the id with `mcptasks.idempotency_key()`, or in a step.",
    ),
)
async def new_page_url(ctx: Context[Any]) -> str:
    payment = str(uuid.uuid4())
    return (await ctx.elicit_url("Pay there", f"https://pay.example/?id={payment}", payment)).action


@SHELF.asks(
    "a question to a client that cannot be asked",
    live_on=OLD,
    replies=(Reply.UNABLE,),
    differs=Differs(
        live="-32600 Elicitation not supported",
        task="-32021 Client did not declare the elicitation capability this tool needs",
        why="Live the client itself refuses. A task may not ask what its client did not declare (SEP-2663), and says "
        "which capability is missing, at once.",
    ),
)
async def asks_in_vain(ctx: Context[Any]) -> str:
    return (await ctx.elicit("Which word?", Word)).action
