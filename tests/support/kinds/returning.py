"""Tools that ask by their parameters (resolvers) or by returning their questions (guards)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from mcp.server.mcpserver import (
    AcceptedElicitation,
    CancelledElicitation,
    Context,
    DeclinedElicitation,
    Elicit,
    ElicitationResult,
    ListRoots,
    Resolve,
    Sample,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

from tests.support.kinds.shelf import LEGACY, MODERN, Differs, Reply, Shelf
from tests.support.tools import Word, ask_by_resolver, ask_by_returning

SHELF: Final = Shelf("Asking by parameters, or by returning")
ALL: Final = (Reply.ACCEPT, Reply.DECLINE, Reply.CANCEL)
NEW: Final = (MODERN,)
OLD: Final = (LEGACY,)

# ------------------------------------------------------------------------------------------------ resolvers


class Stock(BaseModel):
    """What a resolver finds out by itself."""

    title: str
    copies: int


async def check_stock(title: str) -> Stock:
    """Asks nobody."""
    return Stock(title=title, copies=len(title) % 2)


def confirm(title: str, stock: Annotated[Stock, Resolve(check_stock)]) -> Word | Elicit[Word]:
    """Asks only when it must."""
    return Word(word="there") if stock.copies else Elicit(f"No {title}. Wait?", Word)


def which() -> Elicit[Word]:
    """Asks always."""
    return Elicit("Which word?", Word)


def after(first: Annotated[Word, Resolve(which)]) -> Elicit[Word]:
    """Asks with what was answered before."""
    return Elicit(f"After {first.word}?", Word)


def poem() -> Sample:
    """Asks the model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="A line, please"))
    return Sample([message], max_tokens=9)


def folders() -> ListRoots:
    """Asks for the client's folders."""
    return ListRoots()


def refuses(title: str) -> Stock:
    """Will not have it."""
    raise ToolError(f"no such book: {title}")


@SHELF.asks("resolvers that need not ask", {"title": "Dune!"})
async def all_known(title: str, word: Annotated[Word, Resolve(confirm)]) -> str:
    return word.word


@SHELF.asks("a resolver that must ask, on top of one that need not", {"title": "Dune"})
async def not_all_known(title: str, word: Annotated[Word, Resolve(confirm)]) -> str:
    return word.word


SHELF.asks("a parameter that the client's answer fills", {"suffix": "!"}, replies=ALL)(ask_by_resolver)


@SHELF.asks("resolvers one after the other")
async def resolved_in_turn(second: Annotated[Word, Resolve(after)], first: Annotated[Word, Resolve(which)]) -> str:
    return f"{first.word} {second.word}"


@SHELF.asks("a resolver whose refusal the tool sees", replies=ALL)
async def sees_refusal(word: Annotated[ElicitationResult[Word], Resolve(which)]) -> str:
    match word:
        case AcceptedElicitation(data=Word(word=said)):
            return said
        case DeclinedElicitation() | CancelledElicitation():
            return f"no word: {word.action}"


@SHELF.asks("resolvers for the model and for folders")
async def resolves_all(
    line: Annotated[CreateMessageResult, Resolve(poem)], roots: Annotated[ListRootsResult, Resolve(folders)]
) -> str:
    return f"{getattr(line.content, 'text', '?')} {len(roots.roots)}"


@SHELF.asks("a resolver and a question in line", live_on=OLD)
async def resolves_then_asks(first: Annotated[Word, Resolve(which)], ctx: Context[Any]) -> str:
    answer = await ctx.elicit(f"After {first.word}, in line?", Word)
    return f"{first.word} {answer.action}"


@SHELF.asks("a sync tool with a resolver")
def sync_resolved(word: Annotated[Word, Resolve(which)]) -> str:
    return word.word


@SHELF.asks("a resolver that fails", {"title": "Dune"})
async def resolver_fails(title: str, stock: Annotated[Stock, Resolve(refuses)]) -> str:
    return stock.title


# ------------------------------------------------------------------------------------------------ guards


def _form(message: str) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=Word.model_json_schema()))


def _said(ctx: Context[Any], key: str) -> str:
    answer = (ctx.input_responses or {})[key]
    content = getattr(answer, "content", None)
    return str((content or {}).get("word")) if isinstance(content, dict | None) else str(getattr(content, "text", "?"))


SHELF.asks("a question returned, with state", {"suffix": "!"}, live_on=NEW)(ask_by_returning)


@SHELF.asks("several questions returned at once", live_on=NEW)
async def returns_many(ctx: Context[Any]) -> str | InputRequiredResult:
    if not ctx.input_responses:
        message = SamplingMessage(role="user", content=TextContent(type="text", text="Capital?"))
        sampling = CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=9))
        return InputRequiredResult(
            input_requests={"word": _form("Word?"), "model": sampling, "roots": ListRootsRequest()}
        )
    roots = ctx.input_responses["roots"]
    assert isinstance(roots, ListRootsResult)
    return f"{_said(ctx, 'word')} {_said(ctx, 'model')} {len(roots.roots)}"


@SHELF.asks("the same key in several rounds", live_on=NEW, replies=(Reply.ACCEPT, Reply.DECLINE))
async def returns_again(ctx: Context[Any]) -> str | InputRequiredResult:
    so_far = (ctx.request_state or "").split()
    if ctx.input_responses:
        so_far.append(_said(ctx, "word"))
    if len(so_far) < 3:
        return InputRequiredResult(
            input_requests={"word": _form(f"{len(so_far)} so far?")}, request_state=" ".join(so_far)
        )
    return " ".join(so_far)


@SHELF.asks("rounds with state and no question", live_on=NEW)
async def returns_state(ctx: Context[Any]) -> str | InputRequiredResult:
    count = int(ctx.request_state or 0)
    return f"after {count}" if count == 3 else InputRequiredResult(request_state=str(count + 1))


@SHELF.asks(
    "one more thing, for ever",
    live_on=NEW,
    differs=Differs(
        live="for more than 10 rounds",
        task="which is the limit",
        why="Live the client gives up after ten rounds. A task fails after `MCPTASKS_REPLAYS_MAX` runs from the top "
        "(1000); a client that knows no tasks is told after `MCPTASKS_BRIDGE_ROUNDS` (10), and the task goes on.",
    ),
)
async def asks_for_ever(ctx: Context[Any]) -> InputRequiredResult:
    return InputRequiredResult(input_requests={"more": _form("More?")}, request_state="again")


@SHELF.asks("a page to visit, returned", live_on=NEW, replies=ALL)
async def returns_url(ctx: Context[Any]) -> str | InputRequiredResult:
    if not ctx.input_responses:
        page = ElicitRequestURLParams(message="Log in", url="https://id.example/login", elicitation_id="e-9")
        return InputRequiredResult(input_requests={"login": ElicitRequest(params=page)})
    return str(getattr(ctx.input_responses["login"], "action", "?"))


@SHELF.asks("a sync tool that returns its question", live_on=NEW)
def sync_returns(ctx: Context[Any]) -> CallToolResult | InputRequiredResult:
    if not ctx.input_responses:
        return InputRequiredResult(input_requests={"word": _form("Word?")})
    return CallToolResult(content=[TextContent(type="text", text=_said(ctx, "word"))])
