"""Contract tests of the SDK: one for each function of `mcptasks/seams.py`, one for each fact that the code leans on.

A failure here after an upgrade of `mcp` says what moved and what to do, before anything else breaks without a word.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import math
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import anyio
import pytest
import uvicorn
from mcp import Client
from mcp.client import ClientExtension, ClientSession, ResultClaim
from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import (
    Context,
    Elicit,
    Extension,
    MCPServer,
    MethodBinding,
    RequestStateBoundary,
    RequestStateSecurity,
    Resolve,
    require_client_extension,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, NAME_BEARING_METHODS, decode_header_value
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
    ListToolsRequest,
    ListToolsResult,
    Request,
    RequestParams,
    Result,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)
from mcp_types import methods as sdk_methods
from mcp_types.methods import serialize_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import get_protocol_members

from mcptasks import seams
from mcptasks.model import CLIENT_CAPABILITIES, CLIENT_INFO
from mcptasks.wire import EXTENSION, MODERN, GetTask, TaskIdParams

pytestmark = pytest.mark.anyio

VERSION: Final = "2026-07-28"
EVERYTHING: Final[dict[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class Channel:
    """A `DispatchContext` that notes everything and accepts every question."""

    def __init__(self) -> None:
        self.transport = TransportContext(kind="test", can_send_request=True, headers=None)
        self.can_send_request = True
        self.request_id = 7
        self.message_metadata = ServerMessageMetadata(request_context=None)
        self.cancel_requested = anyio.Event()
        self.seen: list[str] = []

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        self.seen.append(method)
        answers: dict[str, dict[str, Any]] = {
            "elicitation/create": {"action": "accept", "content": {"ok": True}},
            "roots/list": {"roots": []},
            "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"},
        }
        return answers[method]

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        self.seen.append(method)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.seen.append(f"progress {progress:g}")


class Anything(Result):
    """A result of which every member is kept."""

    model_config = ConfigDict(extra="allow")


def make(**options: Any) -> MCPServer[Any]:
    """A server with one tool."""
    mcp = MCPServer[Any]("seams", log_level="CRITICAL", **options)

    async def add(a: int) -> int:
        return a + 1

    mcp.add_tool(add)
    return mcp


def session_of(channel: Channel, *, version: str = VERSION, meta: dict[str, Any] | None = None) -> ServerSession:
    """Our session over that channel."""
    return seams.make_session(
        channel, version=version, client_info={"name": "c", "version": "1"}, capabilities=EVERYTHING, meta=meta
    )


def call_of(
    channel: Channel, tool: str, **arguments: Any
) -> tuple[ServerRequestContext[Any, Any], CallToolRequestParams]:
    """What the SDK's own handler of `tools/call` takes."""
    params = CallToolRequestParams(name=tool, arguments=arguments)
    context: ServerRequestContext[Any, Any] = ServerRequestContext(
        session=session_of(channel),
        lifespan_context={},
        protocol_version=VERSION,
        method="tools/call",
        params=params.model_dump(by_alias=True, exclude_none=True),
        request_id=7,
    )
    return context, params


# ------------------------------------------------------------------------------------------------ seams.py


def test_get_tool_finds_the_registered_tool_with_its_function_and_argument_model() -> None:
    """Private `MCPServer._tool_manager`."""
    mcp = make()
    tool = seams.get_tool(mcp, "add")
    why = "MCPServer._tool_manager moved: keep an own Tool.from_function(...) per durable function"
    assert isinstance(tool, Tool), why
    assert tool.is_async, why
    assert tool.fn_metadata.validate_arguments({"a": "3"}) == {"a": 3}, why
    with pytest.raises(ValidationError):
        tool.fn_metadata.validate_arguments({"a": "x"})
    assert seams.get_tool(mcp, "nope") is None, why


def test_tools_lists_them_all_with_their_functions() -> None:
    """Private `MCPServer._tool_manager`; `bind` reads the policies off the functions."""
    assert [tool.fn.__name__ for tool in seams.tools(make())] == ["add"], "as get_tool: keep own Tool objects"


async def test_call_like_live_gives_what_the_live_handler_gives() -> None:
    """Private `MCPServer._lowlevel_server`: masking, validation and errors are the SDK's own, nothing is restated."""
    mcp = make()

    @mcp.tool()
    def shout(text: str) -> str:
        raise ToolError(f"no {text}")

    @mcp.tool()
    async def crash() -> str:
        raise RuntimeError("a secret")

    @mcp.tool()
    async def refuse() -> str:
        raise MCPError(-32050, "refused", {"n": 1})

    why = "the composed tools/call handler moved: use MCPServer.call_tool and restate its error mapping in seams.py"

    async def call(name: str, **arguments: Any) -> CallToolResult:
        result = await seams.call_like_live(mcp, *call_of(Channel(), name, **arguments))
        assert isinstance(result, CallToolResult), why
        return result

    assert (await call("add", a=1)).structured_content == {"result": 2}, why
    async with Client(mcp) as client:
        for name, arguments in (("shout", {"text": "x"}), ("crash", {}), ("add", {"a": "x"}), ("unknown", {})):
            live = await client.call_tool(name, arguments)
            detached = await call(name, **arguments)
            assert detached.is_error, why
            assert detached.content == live.content, why
    with pytest.raises(MCPError) as refused:
        await call("refuse")
    assert (refused.value.error.code, refused.value.error.data) == (-32050, {"n": 1}), why


async def test_call_like_live_runs_other_extensions_and_says_that_it_is_a_run() -> None:
    """Our own interceptor must let the run through, and only while it lasts; a sync tool in its thread knows too."""
    seen: list[tuple[str, bool]] = []

    class Inner(Extension):
        identifier = "com.example/inner"

        async def intercept_tool_call(
            self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
        ) -> HandlerResult:
            seen.append(("interceptor", seams.running.get()))
            return await call_next(ctx)

    mcp = make(extensions=[Inner()])

    @mcp.tool()
    def where() -> str:
        seen.append(("thread", seams.running.get()))
        return "there"

    await seams.call_like_live(mcp, *call_of(Channel(), "where"))
    assert seen == [("interceptor", True), ("thread", True)], "interceptors or context variables are lost in a run"
    assert not seams.running.get()


async def test_call_like_live_reads_an_interceptors_wire_form() -> None:
    """An interceptor may answer with a dict; the runtime wants the model."""

    class Short(Extension):
        identifier = "com.example/short"

        async def intercept_tool_call(
            self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
        ) -> HandlerResult:
            return {"content": [{"type": "text", "text": "cached"}], "isError": False}

    result = await seams.call_like_live(make(extensions=[Short()]), *call_of(Channel(), "add", a=1))
    assert isinstance(result, CallToolResult)
    assert result.content[0].model_dump()["text"] == "cached"


class Name(BaseModel):
    """What the resolver below asks for."""

    ok: bool


def may_ask(a: int) -> Elicit[Name] | Name:
    """Asks where a is odd."""
    return Elicit("Odd?", Name) if a % 2 else Name(ok=False)


async def test_open_questions_runs_the_resolvers_and_never_the_body() -> None:
    """Undocumented `resolve_arguments`, `Tool.resolved_params`, `Tool.resolver_plans`; private `_subscriptions`."""
    mcp, bodies = make(), list[int]()

    async def resolved(a: int, name: Annotated[Name, Resolve(may_ask)]) -> None:
        bodies.append(a)

    mcp.add_tool(resolved)
    tool = seams.get_tool(mcp, "resolved")
    why = "the part of Tool.run before the body moved: leave the questions of resolvers to the task"
    assert tool is not None and tool.resolved_params, why
    asked = await seams.open_questions(mcp, tool, *call_of(Channel(), "resolved", a="1"))
    assert isinstance(asked, InputRequiredResult) and asked.input_requests and asked.request_state, why
    assert await seams.open_questions(mcp, tool, *call_of(Channel(), "resolved", a=2)) is None, why
    context, params = call_of(Channel(), "resolved", a="1")
    params.request_state = asked.request_state
    params.input_responses = dict.fromkeys(asked.input_requests, ElicitResult(action="accept", content={"ok": True}))
    assert await seams.open_questions(mcp, tool, context, params) is None, why
    assert bodies == []


def test_a_guard_is_known_by_its_annotation() -> None:
    """Undocumented `returns_input_required`, which the SDK itself refuses mixed tools by."""
    mcp = make()

    async def guard() -> str | InputRequiredResult:
        return ""

    mcp.add_tool(guard)
    kinds = [(tool.name, seams.is_guard(tool)) for tool in seams.tools(mcp)]
    assert kinds == [("add", False), ("guard", True)], "returns_input_required moved: read the annotation ourselves"


def test_share_request_state_changes_the_keys_and_nothing_else_of_the_servers_policy() -> None:
    """Private `RequestStateBoundary._security`."""

    def bind(ctx: ServerRequestContext[Any, Any]) -> str | None:
        return "me"

    why = "RequestStateBoundary moved: the user must pass request_state_security=RequestStateSecurity(keys=...)"
    theirs = RequestStateSecurity(keys=["x" * 32], ttl=7, bind_principal=bind, audience="all of us")
    one, two = make(request_state_security=theirs), make()
    places = [type(each) for each in one.middleware]
    for mcp in (one, two):
        seams.share_request_state(mcp, ["a" * 32, "b" * 32])
    assert [type(each) for each in one.middleware] == places, why
    [mine], [other] = (
        [found._security for found in mcp.middleware if isinstance(found, RequestStateBoundary)]  # pyright: ignore[reportPrivateUsage]
        for mcp in (one, two)
    )
    assert (mine.ttl, mine.bind_principal, mine.audience) == (7, bind, "all of us"), why
    assert (other.ttl, other.audience) == (600, None), why
    assert other.codec.unseal(mine.codec.seal(b"state")) == b"state", why


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_make_session_sends_everything_a_tool_may_say_through_our_channel() -> None:
    """Undocumented use of `ServerSession` and `Connection.from_envelope(outbound=)`."""
    mcp = make()

    @mcp.tool()
    async def talk(ctx: Context) -> str:
        session = ctx.request_context.session
        await session.elicit("Sure?", {"type": "object", "properties": {}})
        await session.list_roots()  # pyright: ignore[reportDeprecated]
        await session.create_message(messages=[], max_tokens=1)  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(1, 2, "half")
        await ctx.info("said")  # pyright: ignore[reportDeprecated]
        return "done"

    channel = Channel()
    result = await seams.call_like_live(mcp, *call_of(channel, "talk"))
    why = "a way from the tool to its client goes around the channel: see mcptasks/runtime/channel.py"
    assert isinstance(result, CallToolResult)
    assert not result.is_error, (why, result.content)
    said = ["elicitation/create", "roots/list", "sampling/createMessage", "progress 1", "notifications/message"]
    assert channel.seen == said, f"{why}; on the modern wire log messages must be asked for in `request_meta`"


def test_make_sessions_constructors_have_the_parameters_we_use() -> None:
    """Both are exported, their direct use is not documented."""
    why = "mend seams.make_session; if there is no way left, write an own class with ServerSession's public methods"
    assert list(inspect.signature(ServerSession.__init__).parameters) == [
        "self",
        "request_outbound",
        "connection",
        "request_meta",
    ], why
    assert list(inspect.signature(Connection.from_envelope).parameters) == [
        "protocol_version",
        "client_info",
        "client_capabilities",
        "outbound",
    ], why


def test_client_info_of_a_session_with_and_without_one() -> None:
    """It is optional on the modern wire."""
    assert (found := seams.client_info_of(session_of(Channel()))) is not None
    assert found.name == "c"
    nobody = seams.make_session(Channel(), version=VERSION, client_info=None, capabilities=EVERYTHING, meta=None)
    assert seams.client_info_of(nobody) is None, "client_params is built without clientInfo now: read it from there"
    assert nobody.client_capabilities is not None, "capabilities got lost with clientInfo: read ctx.meta instead"


async def test_lifespan_can_be_entered_outside_any_transport() -> None:
    """Once per worker process."""
    events: list[str] = []

    @asynccontextmanager
    async def opened(server: MCPServer[Any]) -> AsyncGenerator[str]:
        events.append("in")
        yield "state"
        events.append("out")

    why = "MCPServer.settings.lifespan moved: find the function that was given as lifespan="
    async with seams.lifespan(make(lifespan=opened)) as state:
        assert (state, events) == ("state", ["in"]), why
    assert events == ["in", "out"], why
    async with seams.lifespan(make()) as state:
        assert state == {}, why


# ------------------------------------------------------------------------------------------------ shapes we rebuild


async def test_serve_on_serves_the_client_of_two_streams_until_its_input_ends() -> None:
    """With the lifespan around it, and nothing of the process's own standard streams."""
    events: list[str] = []

    @asynccontextmanager
    async def opened(server: MCPServer[Any]) -> AsyncGenerator[None]:
        events.append("in")
        yield
        events.append("out")

    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "pin", "version": "1"}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    stdout = io.StringIO()
    with anyio.fail_after(10):
        await seams.serve_on(make(lifespan=opened), io.StringIO(request + "\n"), stdout)
    answers = [json.loads(line) for line in stdout.getvalue().splitlines()]
    why = "MCPServer.run_stdio_async does it another way now: do as it does, with our streams"
    assert [(answer["id"], answer["result"]["protocolVersion"]) for answer in answers] == [(1, "2025-11-25")], why
    assert events == ["in", "out"], why


def test_a_dispatch_context_has_the_members_that_our_channel_has() -> None:
    """`mcptasks.runtime.channel.TaskChannel` stands in for it."""
    assert set(get_protocol_members(DispatchContext)) == {
        "transport",
        "can_send_request",
        "request_id",
        "message_metadata",
        "cancel_requested",
        "progress",
        "notify",
        "send_raw_request",
    }, "give TaskChannel the new member, and decide what it does in a task"


def test_a_server_session_has_the_public_methods_we_know() -> None:
    """All of them go through the channel."""
    public = {name for name, _ in inspect.getmembers(ServerSession) if not name.startswith("_")}
    assert public == {
        "can_send_request",
        "check_client_capability",
        "client_capabilities",
        "client_params",
        "create_message",
        "elicit",
        "elicit_form",
        "elicit_url",
        "list_roots",
        "protocol_version",
        "report_progress",
        "send_elicit_complete",
        "send_log_message",
        "send_notification",
        "send_ping",
        "send_progress_notification",
        "send_prompt_list_changed",
        "send_request",
        "send_resource_list_changed",
        "send_resource_updated",
        "send_tool_list_changed",
    }, "a new way to talk to the client: decide what it does in a task, and add it to the channel's tests"


def test_a_request_context_has_the_fields_we_fill() -> None:
    """`mcptasks.runtime.detached.context` builds one."""
    assert {field.name for field in dataclasses.fields(ServerRequestContext)} == {
        "session",
        "lifespan_context",
        "protocol_version",
        "method",
        "params",
        "request_id",
        "meta",
        "request",
        "close_sse_stream",
        "close_standalone_sse_stream",
    }, "fill the new field in detached.context, or decide that a run has none"


def test_tool_params_and_returned_questions_have_the_fields_we_fill_and_read() -> None:
    """The multi-round trip of resolvers and guards."""
    params = CallToolRequestParams.model_validate(
        {"name": "t", "requestState": "s", "inputResponses": {"k": {"action": "decline"}}}, by_name=False
    )
    why = "the multi-round fields moved: detached.call_params and ToolPass must follow"
    assert params.request_state == "s", why
    assert params.input_responses is not None and set(params.input_responses) == {"k"}, why
    assert {"input_requests", "request_state"} <= InputRequiredResult.model_fields.keys(), why


def test_the_metadata_keys_of_the_client_are_the_sdks() -> None:
    """`mcptasks.model` may not import the SDK and spells them itself."""
    assert (CLIENT_INFO, CLIENT_CAPABILITIES) == (CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY), (
        "change the two constants in mcptasks/model.py, and keep reading the old ones from stored tasks"
    )


# ------------------------------------------------------------------------------------------------ the server's wire


class Answers(Extension):
    """Answers every tool call with a task."""

    identifier = EXTENSION

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        return {"resultType": "task", "taskId": "t", "status": "working", "ttlMs": None}

    def methods(self) -> list[MethodBinding]:
        return [MethodBinding("tasks/get", TaskIdParams, self.get, protocol_versions=MODERN)]

    async def get(self, ctx: ServerRequestContext[Any, Any], params: TaskIdParams) -> HandlerResult:
        require_client_extension(ctx, EXTENSION)
        return {"taskId": params.task_id}


async def test_a_task_result_passes_on_the_modern_wire_with_its_nulls() -> None:
    """The server sends plain dicts, because a model's exclude_none would drop `ttlMs: null`."""
    async with Client(make(extensions=[Answers()])) as client:
        raw = await client.session.send_request(
            CallToolRequest(params=CallToolRequestParams(name="add", arguments={"a": 1})), Anything
        )
    sent = raw.model_dump(by_alias=True)
    why = "the SDK checks or rewrites extension results now: see _serialize in mcp/server/runner.py"
    assert (sent["resultType"], sent["taskId"]) == ("task", "t"), why
    assert "ttlMs" in sent and sent["ttlMs"] is None, why


async def test_a_task_result_never_reaches_a_legacy_wire() -> None:
    """Which is why the extension looks at the protocol version before it answers so (P06)."""
    async with Client(make(extensions=[Answers()]), mode="legacy") as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("add", {"a": 1})
    assert refused.value.error.code == -32603, "legacy clients may now be sent a task: keep our own gate all the same"


async def test_a_method_bound_to_modern_versions_is_unknown_to_older_ones() -> None:
    """P06 rests on MethodBinding(protocol_versions=)."""
    async with Client(make(extensions=[Answers()]), mode="legacy") as client:
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(GetTask(params=TaskIdParams(task_id="t")), Anything)
    assert refused.value.error.code == -32601, "check the protocol version in every tasks/* handler of ours"


async def test_a_missing_declaration_is_the_sdks_error_with_what_is_required() -> None:
    """P03, P04 rest on require_client_extension."""
    async with Client(make(extensions=[Answers()])) as client:
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(GetTask(params=TaskIdParams(task_id="t")), Anything)
    error = refused.value.error
    assert (error.code, error.data) == (
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    ), "build the error in mcptasks/server/extension.py ourselves"
    assert error.code == -32021


def test_the_modern_versions_are_those_we_tested() -> None:
    """A new one is served at once; this is the reminder to look."""
    assert MODERN_PROTOCOL_VERSIONS == (VERSION,) or set(MODERN_PROTOCOL_VERSIONS) == {VERSION}, (
        "a new protocol version: run the conformance suite against it, then add it here"
    )


def test_the_middleware_list_is_live_and_the_boundary_of_request_states_is_in_it() -> None:
    """`serve` appends ours after the server was made; `params.request_state` is plain text below the boundary."""
    mcp = make()
    why = "MCPServer.middleware is no live list any more: hand ours over where the server is made"

    async def ours(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        return await call_next(ctx)

    mcp.middleware.append(ours)
    assert ours in mcp.middleware, why
    assert any(isinstance(one, RequestStateBoundary) for one in mcp.middleware), (
        "request states reach us sealed now: unseal them in server/rounds.py"
    )


async def test_middleware_sees_every_call_and_may_change_its_params() -> None:
    """P05 rests on it: an old `task` hint is dropped before anything can object to it."""
    mcp = make()

    async def one_more(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call" and ctx.params is not None:
            ctx = dataclasses.replace(ctx, params={**ctx.params, "arguments": {"a": 41}})
        return await call_next(ctx)

    mcp.middleware.append(one_more)
    async with Client(mcp) as client:
        result = await client.call_tool("add", {"a": 1})
    assert result.structured_content == {"result": 42}, "validation moved in front of middleware: see _forget_task_hint"


async def test_a_requests_meta_is_a_mapping_with_vendor_keys_and_the_clients_envelope() -> None:
    """Idempotency keys, trace context and the client's capabilities are read from it."""
    seen: list[dict[str, Any]] = []
    mcp = make()

    async def look(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            seen.append(dict(ctx.meta or {}))
        return await call_next(ctx)

    mcp.middleware.append(look)
    async with Client(mcp) as client:
        await client.call_tool("add", {"a": 1}, meta={"mcptasks/idempotencyKey": "k", "traceparent": "00-1"})
    meta = seen[0]
    why = "ctx.meta has another shape: see submission.take and submission.idempotency_key"
    assert (meta["mcptasks/idempotencyKey"], meta["traceparent"]) == ("k", "00-1"), why
    assert isinstance(meta[CLIENT_CAPABILITIES], dict), why


def test_a_result_is_serialized_for_its_version_with_its_type() -> None:
    """`mcptasks.runtime.results.to_wire` must give what the SDK's runner gives."""
    dumped = CallToolResult(content=[]).model_dump(by_alias=True, mode="json", exclude_none=True)
    wire = serialize_server_result("tools/call", VERSION, dumped)
    assert wire == {"content": [], "isError": False, "resultType": "complete"}, (
        "the runner's serializer moved: compare results.to_wire with _serialize in mcp/server/runner.py"
    )
    with pytest.raises(ValidationError):
        serialize_server_result("tools/call", "2025-11-25", {"resultType": "task", "taskId": "t"})


def test_an_elicitation_has_no_row_among_the_results_of_modern_clients() -> None:
    """That is why a detached `ctx.elicit` works at the modern version: send_request passes over the missing row."""
    assert ("elicitation/create", VERSION) not in sdk_methods.CLIENT_RESULTS, (
        "answers of detached elicitations are validated now: check that the shape we store passes, then drop this"
    )


# ------------------------------------------------------------------------------------------------ headers, identity


def test_the_sdk_does_not_look_at_the_name_header_of_task_methods() -> None:
    """We do it (P61)."""
    assert dict(NAME_BEARING_METHODS) == {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}, (
        "the SDK took over: drop the check in TasksExtension._gate"
    )


def test_a_name_header_is_decoded_by_the_sdk() -> None:
    """Names that no header can carry are sent as base64."""
    assert (MCP_NAME_HEADER, HEADER_MISMATCH) == ("mcp-name", -32020)
    assert decode_header_value("plain") == "plain"
    assert decode_header_value("=?base64?dCDDqQ==?=") == "t é", "decode it ourselves in TasksExtension._gate"


def test_a_caller_is_the_triple_that_the_sdk_itself_binds_sessions_to() -> None:
    """Owners are stored as that triple: another one would lose every caller's tasks."""
    token = AccessToken(token="s", client_id="c", scopes=[], subject="u", claims={"iss": "i"})
    assert principal_components(token) == ("c", "i", "u"), (
        "owner strings change: keep the old triple in mcptasks/server/owner.py for the tasks that exist"
    )


def test_the_callers_identity_can_be_set_without_its_token() -> None:
    """A run sees who called; the token was never kept (invariant 10)."""
    token = AccessToken(token="s", client_id="c", scopes=["a"], subject="u", claims={"iss": "i"})
    kept = token.model_dump(mode="json", exclude={"token"})
    reset = auth_context_var.set(AuthenticatedUser(AccessToken.model_validate({**kept, "token": ""})))
    try:
        seen = get_access_token()
    finally:
        auth_context_var.reset(reset)
    assert seen == token.model_copy(update={"token": ""}), "auth_context_var or AccessToken moved: see detached.caller"
    assert AccessToken.model_fields.keys() == {
        "token",
        "client_id",
        "scopes",
        "expires_at",
        "resource",
        "subject",
        "claims",
    }, "a new field of AccessToken is stored with every task: make sure that it is no secret, then add it here"


# ------------------------------------------------------------------------------------------------ push, client


def test_a_subscriptions_filter_keeps_extension_keys() -> None:
    """`taskIds` in subscriptions/listen."""
    found = SubscriptionFilter.model_validate({"taskIds": ["a"], "toolsListChanged": True})
    assert found.model_dump(by_alias=True, exclude_none=True) == {"taskIds": ["a"], "toolsListChanged": True}, (
        "taskIds must be read from the raw params now"
    )


def test_the_sdk_does_not_know_task_notifications() -> None:
    """The client extension binds them itself."""
    assert ("notifications/tasks", VERSION) not in sdk_methods.SERVER_NOTIFICATIONS, (
        "the SDK took over: NotificationBinding goes quiet, use the SDK's own model"
    )


def test_the_sdks_client_has_what_ours_builds_on() -> None:
    """`mcptasks.client`."""
    why = "see mcptasks/client/polling.py and questions.py"
    assert list(inspect.signature(ClientSession.dispatch_input_request).parameters) == ["self", "ctx", "request"], why
    assert "request_read_timeout_seconds" in inspect.signature(ClientSession.send_request).parameters, why
    assert {"result_type", "model", "resolve"} <= set(inspect.signature(ResultClaim).parameters), why
    assert callable(ClientExtension.claims), why


async def test_a_request_may_wait_for_ever() -> None:
    """Although the client has a time-out of its own."""
    async with Client(make(), read_timeout_seconds=30) as client:
        listed = await client.session.send_request(
            ListToolsRequest(params=None), ListToolsResult, request_read_timeout_seconds=math.inf
        )
    assert [tool.name for tool in listed.tools] == ["add"], "give long requests a large number instead of inf"


def test_a_request_type_names_the_member_that_its_header_mirrors() -> None:
    """`name_param` of the requests in mcptasks/wire.py."""

    class Named(Request[RequestParams, str]):
        method: str = "x/y"
        params: RequestParams
        name_param = "taskId"

    assert Request.name_param is None, "the SDK's client finds the Mcp-Name of a request in another way"
    assert Named.name_param == "taskId"


# ------------------------------------------------------------------------------------------------ push, server


def test_uvicorn_can_be_asked_whether_it_was_told_to_end() -> None:
    """Its signal handler is a method of the server, which has the answer (`mcptasks/server/closing.py`)."""
    server = uvicorn.Server(uvicorn.Config("nobody:app"))
    why = "streams that listen to tasks must be ended in another way, or uvicorn waits for them until it is killed"
    with server.capture_signals():
        assert getattr(signal.getsignal(signal.SIGTERM), "__self__", None) is server, why
        assert server.should_exit is False, why


async def test_the_sdk_lets_a_middleware_answer_subscriptions_listen() -> None:
    """`MethodBinding` refuses the method, so the tasks extension wraps it."""
    mcp = make()
    seen: list[Any] = []

    async def middleware(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method == "subscriptions/listen":
            seen.append((ctx.params or {})["notifications"])
            return SubscriptionsListenResult(_meta={SUBSCRIPTION_ID_META_KEY: ctx.request_id})
        return await call_next(ctx)

    mcp.middleware.append(middleware)
    filters = SubscriptionFilter.model_validate({"taskIds": ["a"]})
    request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=filters))
    async with Client(mcp) as client:
        await client.session.send_request(request, SubscriptionsListenResult)
    assert seen == [{"taskIds": ["a"]}], "subscriptions/listen has to be wrapped in another way"
