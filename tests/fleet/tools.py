"""The MCP server under test: tools that leave one line in an outside ledger for each thing they really do.

`FLEET_LEDGER` names the ledger. With `FLEET_AUTH` set, callers are "alice" and "bob": what their tokens begin with.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit, MCPServer, Resolve
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmptyResult,
    InputRequiredResult,
    Request,
    SamplingMessage,
    TextContent,
)
from pydantic import AnyHttpUrl, BaseModel
from redis.asyncio import Redis

import mcptasks
from mcptasks import Tasks
from mcptasks.observe.export import exporting

LEDGER: Final = Path(os.environ["FLEET_LEDGER"])


def note(key: str, event: str, **more: Any) -> None:
    """The ledger has one more line; lines of different processes do not tear each other."""
    line = {"key": key, "event": event, "pid": os.getpid(), "at": time.time(), **more}
    with LEDGER.open("ab", buffering=0) as ledger:
        ledger.write(json.dumps(line).encode() + b"\n")


def noted(key: str, event: str) -> int:
    """How often the event stands in the ledger."""
    lines = (json.loads(line) for line in LEDGER.read_text().splitlines()) if LEDGER.exists() else ()
    return sum(line["key"] == key and line["event"] == event for line in lines)


def there(path: str) -> bool:
    """The test made the file."""
    return Path(path).exists()


class Tokens:
    """Everybody's token is their name, and may have a secret behind a `#`."""

    async def verify_token(self, token: str) -> AccessToken | None:
        name = token.partition("#")[0]
        return AccessToken(token=token, client_id=name, scopes=["tools"], subject=name) if name else None


@asynccontextmanager
async def lifespan(server: MCPServer[Any]) -> AsyncGenerator[dict[str, Any]]:
    """Entered once per process that runs tools or serves them."""
    note("lifespan", "entered")
    yield {"opened_by": os.getpid()}
    note("lifespan", "left")


def _auth() -> dict[str, Any]:
    if not os.environ.get("FLEET_AUTH"):
        return {}
    here = AnyHttpUrl("http://127.0.0.1:9/mcp")
    return {"auth": AuthSettings(issuer_url=here, resource_server_url=here), "token_verifier": Tokens()}


tasks = Tasks()
mcp = MCPServer("fleet-under-test", extensions=[tasks], lifespan=lifespan, **_auth())

#: As async servers have them: made at import, at home on the first event loop that uses it.
shared_client = Redis.from_url(os.environ.get("MCPTASKS_REDIS_URL", "redis://127.0.0.1:9"), decode_responses=True)

_left_behind: set[asyncio.Task[None]] = set()


class PingPong(Request[None, Literal["ping/pong"]]):
    """A request of the server's own to its client."""

    method: Literal["ping/pong"] = "ping/pong"
    params: None = None


class Answer(BaseModel):
    """What every question here asks for."""

    value: str


async def ask(ctx: Context, question: str) -> str:
    """The client's answer in text."""
    answer = await ctx.elicit(question, Answer)
    return answer.data.value if isinstance(answer, AcceptedElicitation) else answer.action


# ------------------------------------------------------------------------------------------------ plain work


@mcp.tool()
async def plain(key: str) -> str:
    """Never a task."""
    note(key, "run")
    return "plain"


@mcp.tool()
@tasks.durable()
async def ledger(key: str) -> str:
    """The smallest task."""
    note(key, "run")
    return f"ran {key}"


@mcp.tool()
@tasks.durable()
async def ledger_slow(key: str, seconds: float, ctx: Context) -> str:
    """Works on in small pieces with progress; says how it began and how it ended."""
    note(key, "begin")
    end = time.monotonic() + seconds
    done = 0
    try:
        while time.monotonic() < end:
            await asyncio.sleep(0.05)
            done += 1
            await ctx.report_progress(done, None, "at it")
    except asyncio.CancelledError:
        note(key, "stopped")
        raise
    note(key, "end")
    return f"worked {key}"


@mcp.tool()
@tasks.durable()
async def gate(key: str, path: str) -> str:
    """Works until the file is there: the test decides when."""
    note(key, "begin")
    while not there(path):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    note(key, "end")
    return f"passed {key}"


# ------------------------------------------------------------------------------------------------ questions


@mcp.tool()
@tasks.durable()
async def ask1(key: str, x: int, ctx: Context) -> str:
    """One question; the result has the argument and the answer."""
    note(key, "run", x=x)
    answer = await ask(ctx, f"{key}?")
    note(key, "answered", answer=answer)
    return f"{x} {answer}"


@mcp.tool()
@tasks.durable()
async def ask_briefly(key: str, then: Literal["fail", "cancel"], ctx: Context) -> str:
    """One question that is open for three seconds."""
    note(key, "run")
    with mcptasks.input_timeout("3s", then=then):
        return await ask(ctx, f"{key}?")


@mcp.tool()
@tasks.durable(hold="20s")
async def ask1_held(key: str, ctx: Context) -> str:
    """One question, waited for on the worker."""
    note(key, "run")
    answer = await ask(ctx, f"{key}?")
    note(key, "answered", answer=answer)
    return answer


@mcp.tool()
@tasks.durable(hold="700ms")
async def ask_held_often(key: str, ctx: Context) -> str:
    """Three questions, one after the other."""
    note(key, "run")
    return " ".join([await ask(ctx, f"{key} {n}?") for n in range(3)])


@mcp.tool()
@tasks.durable()
async def ask_same_twice(key: str, ctx: Context) -> str:
    """The same question text twice in a row."""
    note(key, "run")
    return f"{await ask(ctx, 'ok?')} {await ask(ctx, 'ok?')}"


@mcp.tool()
@tasks.durable()
async def ask_by_returning(key: str, ctx: Context) -> str | InputRequiredResult:
    """A guard that uses its own key "ok" for two questions, one after the other."""
    state, answer = ctx.request_state, (ctx.input_responses or {}).get("ok")
    given = answer.content["value"] if isinstance(answer, ElicitResult) and answer.content else None
    note(key, "run", state=state, given=given)
    match state:
        case None:
            return _returned("first?", "1")
        case "1":
            return _returned("second?", f"2 {given}")
        case _:
            return f"{state.removeprefix('2 ')} {given}"


def _returned(question: str, state: str) -> InputRequiredResult:
    schema = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
    request = ElicitRequest(params=ElicitRequestFormParams(message=question, requested_schema=schema))
    return InputRequiredResult(input_requests={"ok": request}, request_state=state)


def name_it(key: str) -> Elicit[Answer]:
    """The question of `ask_by_resolver`."""
    return Elicit(f"{key}?", Answer)


@mcp.tool()
@tasks.durable()
async def ask_by_resolver(key: str, given: Annotated[Answer, Resolve(name_it)]) -> str:
    """A parameter that the client's answer fills."""
    note(key, "run")
    return given.value


@mcp.tool()
@tasks.durable()
async def ask_the_model(key: str, ctx: Context) -> str:
    """Asks the client's model."""
    note(key, "run")
    message = SamplingMessage(role="user", content=TextContent(type="text", text=key))
    answer = await ctx.session.create_message([message], max_tokens=9)  # pyright: ignore[reportDeprecated]
    return answer.content.text if isinstance(answer.content, TextContent) else ""


@mcp.tool()
@tasks.durable()
async def ask_for_roots(key: str, ctx: Context) -> str:
    """Asks which folders the client has."""
    note(key, "run")
    found = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
    return " ".join(str(root.uri) for root in found.roots)


@mcp.tool()
@tasks.durable()
async def fan2(key: str, ctx: Context) -> str:
    """Two questions at once."""
    note(key, "run")
    one, two = await asyncio.gather(ask(ctx, "one?"), ask(ctx, "two?"))
    return f"{one} {two}"


@mcp.tool()
@tasks.durable(max_attempts=5)
async def charge_ask_charge(key: str, die_after: str, ctx: Context) -> str:
    """Two charges by step with a question between them; dies once after the step (or the answer) it is told."""

    async def charge(what: str) -> str:
        note(key, f"charge {what}")
        return what

    note(key, "run")
    first = await mcptasks.step("charge", charge, "a")
    _die_once(key, die_after == "a")
    answer = await ask(ctx, f"charge {key} again?")
    _die_once(key, die_after == "answer")
    second = await mcptasks.step("charge", charge, "b")
    _die_once(key, die_after == "b")
    return f"{first} {answer} {second}"


def _die_once(key: str, now: bool) -> None:
    if now and not noted(key, "died"):
        note(key, "died")
        os.kill(os.getpid(), signal.SIGKILL)


@mcp.tool()
@tasks.durable(time_limit="3s", cancel_grace="500ms")
async def work_ask_work(key: str, seconds: float, ctx: Context) -> str:
    """Works before and after a question; its time limit is for work only."""
    await asyncio.sleep(seconds)
    answer = await ask(ctx, f"{key}?")
    await asyncio.sleep(seconds)
    return answer


@mcp.tool()
@tasks.durable(time_limit="3s", cancel_grace="500ms", hold="20s")
async def work_ask_work_held(key: str, seconds: float, ctx: Context) -> str:
    """As `work_ask_work`, on its worker all the time."""
    return await work_ask_work(key, seconds, ctx)


# ------------------------------------------------------------------------------------------------ bad ends


@mcp.tool()
@tasks.durable()
def kill_self(key: str, signum: int) -> str:
    """Kills the process it runs in, every time."""
    note(key, "run")
    os.kill(os.getpid(), signum)
    time.sleep(60)
    return "survived"


@mcp.tool()
@tasks.durable()
def leave_slowly(key: str, seconds: float) -> str:
    """Its process takes its time to end, as one whose traces go to a collector that hangs."""
    note(key, "run")
    exporting.close = lambda: time.sleep(seconds)
    return f"ran {key}"


@mcp.tool()
@tasks.durable()
def exit_sync(key: str) -> str:
    """sys.exit from a sync tool."""
    note(key, "run")
    sys.exit(3)


@mcp.tool()
@tasks.durable()
async def exit_async(key: str) -> str:
    """sys.exit from an async tool."""
    note(key, "run")
    sys.exit(3)


@mcp.tool()
@tasks.durable()
def memory_sync(key: str) -> str:
    """MemoryError from a sync tool."""
    note(key, "run")
    raise MemoryError


@mcp.tool()
@tasks.durable()
async def memory_async(key: str) -> str:
    """MemoryError from an async tool."""
    note(key, "run")
    raise MemoryError


# ------------------------------------------------------------------------------------------------ cancels and limits


@mcp.tool()
@tasks.durable()
def loop_sync(key: str) -> str:
    """A cooperative sync loop."""
    note(key, "begin")
    while not mcptasks.cancelled():
        time.sleep(0.02)
        note(key, "tick")
    note(key, "stopped")
    mcptasks.raise_if_cancelled()
    return "unreachable"


@mcp.tool()
@tasks.durable()
async def ignore_cancel(key: str, path: str) -> str:
    """Swallows its cancel and works on until the file is there."""
    note(key, "begin")
    while not there(path):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note(key, "ignored")
    note(key, "end")
    return "finished anyway"


@mcp.tool()
@tasks.durable(cancel_grace="300ms")
async def ignore_cancel_within_grace(key: str, path: str) -> str:
    """As `ignore_cancel`, with a policy that does not wait for it."""
    return await ignore_cancel(key, path)


@mcp.tool()
@tasks.durable(time_limit="500ms", cancel_grace="300ms")
async def over_time(key: str) -> str:
    """An async tool that would take for ever."""
    note(key, "begin")
    await asyncio.Event().wait()
    return "unreachable"


Way = Literal["returns", "gives in", "obeys", "ignores"]


async def _as_told(key: str, way: Way, path: str, seconds: float) -> str:
    """Returns after so long; or waits for the file, and returns at an interruption, obeys or ignores it."""
    note(key, "begin")
    end = time.monotonic() + seconds
    while not there(path) and not (way == "returns" and time.monotonic() > end):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note(key, "told")
            if way == "obeys":
                raise
            if way == "gives in":
                break
    return "returned"


@mcp.tool()
@tasks.durable(idle_limit="1500ms", time_limit="3s", cancel_grace="500ms")
async def watched(key: str, way: Way, path: str, ctx: Context, seconds: float = 0, counts: bool = False) -> str:
    """Has every limit there is; tells rising numbers, or the same one over and over."""

    async def report() -> None:
        for n in range(1_000):
            await ctx.report_progress(n if counts else 1, None, f"still at it {n}")
            await asyncio.sleep(0.1)

    reporting = asyncio.create_task(report())
    try:
        return await _as_told(key, way, path, seconds)
    finally:
        reporting.cancel()


@mcp.tool()
@tasks.durable(idle_limit="500ms", cancel_grace="300ms")
def idle_sync(key: str, way: Way, path: str) -> str:
    """A sync tool that does nothing; it looks whether it is to stop, or never."""
    note(key, "begin")
    while not there(path) and not (way == "obeys" and mcptasks.cancelled()):
        time.sleep(0.02)
    note(key, "end")
    return "late"


@mcp.tool()
@tasks.durable(idle_limit="500ms", cancel_grace="300ms")
async def idle_on_the_loop(key: str, path: str) -> str:
    """An async tool that does nothing and never yields: nothing on its loop can stop it."""
    note(key, "begin")
    while not there(path):
        time.sleep(0.02)  # noqa: ASYNC251 - the fault under test
    note(key, "end")
    return "late"


@mcp.tool()
@tasks.durable(idle_limit="1s")
async def idle_ask(key: str, ctx: Context) -> str:
    """Asks; a person's time is not idle."""
    note(key, "run")
    return await ask(ctx, f"{key}?")


@mcp.tool()
@tasks.durable(on_worker_lost="fail")
async def only_once(key: str) -> str:
    """Must not be begun twice."""
    note(key, "begin")
    await asyncio.Event().wait()
    return "unreachable"


@mcp.tool()
@tasks.durable(time_limit="500ms", cancel_grace="300ms")
def over_time_sync(key: str, path: str) -> str:
    """A sync tool that looks at nothing and ends only when the file is there."""
    note(key, "begin")
    while not there(path):
        time.sleep(0.02)
    note(key, "end")
    return "late"


@mcp.tool()
@tasks.durable(time_limit="500ms", cancel_grace="300ms")
async def blocks_the_loop(key: str, path: str) -> str:
    """An async tool that never yields: nothing on its loop can stop it."""
    note(key, "begin")
    while not there(path):
        time.sleep(0.02)  # noqa: ASYNC251 - the fault under test
    note(key, "end")
    return "late"


# ------------------------------------------------------------------------------------------------ surroundings


@mcp.tool()
@tasks.durable()
async def confide(key: str, ctx: Context) -> str:
    """Everything that is said here is nobody else's: argument, token, message, step, question, answer, result."""
    token = get_access_token()
    note("confide", "run")
    await ctx.report_progress(1, 2, f"MSG-789 {key}")
    receipt = await mcptasks.step("receipt", lambda: f"STEP-567 {key}")
    answer = await ask(ctx, f"Q-345 {key}?")
    return f"RES-678 {key} {receipt} {answer} {None if token is None else token.token}"


@mcp.tool()
@tasks.durable()
async def surroundings(key: str, ctx: Context) -> dict[str, Any]:
    """Who called, with which headers, in which process; tells progress and asks on the way."""
    token = get_access_token()
    await ctx.report_progress(1, 2, "looked around")
    await ctx.info("a log line")  # pyright: ignore[reportDeprecated] - tools still do
    answer = await ask(ctx, f"{key}?")
    note(key, "run")
    return {
        "caller": None if token is None else token.client_id,
        "token": None if token is None else token.token,
        "headers": dict(ctx.headers or {}),
        "opened_by_me": ctx.request_context.lifespan_context["opened_by"] == os.getpid(),
        "answer": answer,
    }


@mcp.tool()
@tasks.durable()
async def needs_a_session(key: str, ctx: Context) -> str:
    """Asks its client something that a task cannot relay."""
    await ctx.session.send_request(cast("Any", PingPong()), EmptyResult)
    return "answered"


@mcp.tool()
@tasks.durable()
async def count_up(key: str) -> int:
    """Counts with the module's own client."""
    count = await shared_client.incr(f"fleet-count:{key}")
    await shared_client.expire(f"fleet-count:{key}", 600)
    note(key, "run")
    return count


@mcp.tool()
@tasks.durable()
async def wait_for_push(key: str) -> str:
    """Waits on the module's own client in mid-protocol."""
    note(key, "begin")
    popped = await shared_client.blpop([f"fleet-push:{key}"], 60)
    return str(popped)


@mcp.tool()
@tasks.durable()
async def leaves_a_task_behind(key: str, ctx: Context) -> str:
    """Returns while a background task of its own goes on, and goes on reporting."""

    async def on() -> None:
        done = 0
        while True:
            done += 1
            note(key, "left behind")
            await ctx.report_progress(done, None, "from the grave")
            await asyncio.sleep(0.05)

    background = asyncio.create_task(on())
    _left_behind.add(background)
    await asyncio.sleep(0.1)
    return "returned"


celery = tasks.bind(mcp)
