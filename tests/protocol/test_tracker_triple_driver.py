"""Servers without tasks, whose tools start a job, tell its status, and cancel it; by configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, Final

import pytest

from mcptasks.tracker.remote import (
    Driver,
    ProtocolBroken,
    PushUnavailable,
    RemoteGone,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
)
from tests.requirements import covers
from tests.support.remote import driving
from tests.support.stub_server import LEGACY, MODERN, StubServer, Version

pytestmark = pytest.mark.anyio

TRIPLE: Final[dict[str, Any]] = {
    "submit": {"tool": "start_job", "arguments": {"job": "$arguments/kind", "all": "$arguments", "once": "$key"}},
    "status": {"tool": "job_status", "arguments": {"id": "$handle", "verbose": True}},
    "cancel": {"tool": "cancel_job", "arguments": {"ids": ["$handle"]}},
    "paths": {
        "handle": "/job/id",
        "status": "/state",
        "message": "/detail",
        "result": "/output",
        "error": "/why",
        "hint": "/poll_ms",
    },
    "statuses": {"queued": "working", "done": "completed", "broken": "failed", "3": "cancelled"},
    "gone": ["no such job"],
}


class Jobs:
    """The job tools of a server, with a log of their arguments."""

    def __init__(self, stub: StubServer) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.started: Any = {"structuredContent": {"job": {"id": "j-1"}}, "content": []}
        self.state: Any = {"structuredContent": {"state": "queued"}, "content": []}
        stub.offers_tasks = False
        stub.plain["start_job"] = lambda arguments: self.log("start_job", arguments, self.started)
        stub.plain["job_status"] = lambda arguments: self.log("job_status", arguments, self.state)
        stub.plain["cancel_job"] = lambda arguments: self.log("cancel_job", arguments, {"content": []})

    def log(self, tool: str, arguments: dict[str, Any], answer: Any) -> Any:
        self.calls.append((tool, arguments))
        return answer

    def says(self, **state: Any) -> None:
        """The job's status, as structured content."""
        self.state = {"structuredContent": state, "content": [{"type": "text", "text": "see there"}]}

    def writes(self, text: str, *, error: bool = False) -> None:
        """The job's status, as text."""
        self.state = {"content": [{"type": "text", "text": text}], "isError": error}


@pytest.fixture(params=[MODERN, LEGACY])
def stub(request: pytest.FixtureRequest) -> Generator[StubServer]:
    version: Version = request.param
    with StubServer(version) as server:
        yield server


@pytest.fixture
def jobs(stub: StubServer) -> Jobs:
    return Jobs(stub)


@pytest.fixture
async def driver(stub: StubServer, jobs: Jobs) -> AsyncGenerator[Driver]:
    async with driving(stub, driver="triple", triple=TRIPLE) as found:
        yield found


async def test_a_job_is_started_followed_and_cancelled(driver: Driver, jobs: Jobs) -> None:
    """Arguments as the templates have them, on servers of either protocol."""
    accepted = await driver.submit("start_job", {"kind": "etl", "n": 7}, key="key-1")
    assert accepted.handle == "j-1" and accepted.snapshot.status is RemoteStatus.WORKING
    jobs.says(state="queued", detail="3rd in line", poll_ms=250)
    shot = await driver.look("j-1")
    assert (shot.status, shot.message, shot.hint) == (RemoteStatus.WORKING, "3rd in line", 250)
    await driver.cancel("j-1")
    assert jobs.calls == [
        ("start_job", {"job": "etl", "all": {"kind": "etl", "n": 7}, "once": "key-1"}),
        ("job_status", {"id": "j-1", "verbose": True}),
        ("cancel_job", {"ids": ["j-1"]}),
    ]


async def test_results_become_results_of_a_tool(driver: Driver, jobs: Jobs) -> None:
    """Whatever stands at the path; what is one already stays as it is."""
    found: list[Any] = []
    whole = {"content": [{"type": "text", "text": "t"}], "isError": True}
    for output in ("R", {"rows": 9007199254740993}, 7, whole):
        jobs.says(state="done", output=output)
        shot = await driver.look("j-1")
        assert shot.status is RemoteStatus.COMPLETED
        found.append(shot.result)
    text = {"type": "text", "text": '{"rows": 9007199254740993}'}
    assert found == [
        {"content": [{"type": "text", "text": "R"}], "isError": False},
        {"content": [text], "structuredContent": {"rows": 9007199254740993}, "isError": False},
        {"content": [{"type": "text", "text": "7"}], "isError": False},
        whole,
    ]


async def test_errors_become_json_rpc_errors(driver: Driver, jobs: Jobs) -> None:
    """With the text that there is."""
    jobs.says(state="broken", why="disk full")
    assert (await driver.look("j-1")).error == {"code": -32603, "message": "disk full"}
    jobs.says(state="broken", why={"code": "E1"}, detail="it broke")
    assert (await driver.look("j-1")).error == {"code": -32603, "message": "it broke", "data": {"code": "E1"}}
    jobs.says(state="broken", why={"code": -5, "message": "m"})
    assert (await driver.look("j-1")).error == {"code": -5, "message": "m"}
    jobs.says(state="broken")
    assert (await driver.look("j-1")).error == {"code": -32603, "message": "The job failed"}


async def test_words_are_mapped_and_unknown_ones_are_a_broken_protocol(driver: Driver, jobs: Jobs) -> None:
    """MCP's own words need no entry; numbers are words too."""
    jobs.says(state=3)
    assert (await driver.look("j-1")).status is RemoteStatus.CANCELLED
    jobs.says(state="working")
    assert (await driver.look("j-1")).status is RemoteStatus.WORKING
    for word in ("paused", None, ["done"], "Done"):
        jobs.says(state=word)
        with pytest.raises(ProtocolBroken, match="not configured"):
            await driver.look("j-1")


@covers("D3")
async def test_text_is_read_as_json_where_it_is(driver: Driver, jobs: Jobs) -> None:
    """As strictly as everything else."""
    jobs.writes('{"state": "done", "output": "R"}')
    assert (await driver.look("j-1")).status is RemoteStatus.COMPLETED
    for text in ('{"state": "done", "output": NaN}', "all is well", ""):
        jobs.writes(text)
        with pytest.raises(ProtocolBroken):
            await driver.look("j-1")


@covers("D03")
async def test_a_tool_error_says_nothing_about_the_job_unless_configured(driver: Driver, jobs: Jobs) -> None:
    """`gone` names the texts that do."""
    jobs.writes("database is away", error=True)
    with pytest.raises(RemoteUnavailable):
        await driver.look("j-1")
    jobs.writes("Error: no such job", error=True)
    with pytest.raises(RemoteGone):
        await driver.look("j-1")


async def test_a_start_that_fails_has_no_job(driver: Driver, jobs: Jobs) -> None:
    """The tool's error is the result of the call."""
    jobs.started = {"content": [{"type": "text", "text": "quota"}], "isError": True}
    accepted = await driver.submit("start_job", {}, key="k")
    assert accepted.handle is None and accepted.snapshot.result is not None and accepted.snapshot.result["isError"]


@covers("D1")
async def test_a_start_without_an_id_is_a_broken_protocol(driver: Driver, jobs: Jobs) -> None:
    """And one that is too long carries it."""
    jobs.started = {"content": [{"type": "text", "text": "started!"}]}
    with pytest.raises(ProtocolBroken) as caught:
        await driver.submit("start_job", {}, key="k")
    assert caught.value.handle is None
    jobs.started = {"structuredContent": {"job": {"id": "n" * 5_000}}, "content": []}
    with pytest.raises(ProtocolBroken) as caught:
        await driver.submit("start_job", {}, key="k")
    assert caught.value.handle == "n" * 5_000


async def test_jobs_that_are_numbers_to_the_server(stub: StubServer, jobs: Jobs) -> None:
    """The handle is text here and a number there, with all its digits."""
    jobs.started = {"structuredContent": {"job": {"id": 9007199254740993}}, "content": []}
    async with driving(stub, driver="triple", triple={**TRIPLE, "numeric_handles": True}) as driver:
        accepted = await driver.submit("start_job", {}, key="k")
        assert accepted.handle == "9007199254740993"
        await driver.look(accepted.handle)
        assert jobs.calls[-1] == ("job_status", {"id": 9007199254740993, "verbose": True})
        jobs.started = {"structuredContent": {"job": {"id": "j-1"}}, "content": []}
        with pytest.raises(ProtocolBroken) as caught:
            await driver.submit("start_job", {}, key="k")
        assert caught.value.handle == "j-1"


async def test_what_tools_cannot_do_is_refused(stub: StubServer, jobs: Jobs, driver: Driver) -> None:
    """Answers, push, other tools; and a cancel where no tool is configured for it."""
    with pytest.raises(RemoteRefused):
        await driver.answer("j-1", {})
    with pytest.raises(PushUnavailable):
        await anext(driver.listen(["j-1"]))
    with pytest.raises(RemoteRefused, match="only tool 'start_job' starts jobs"):
        await driver.submit("other", {}, key="k")
    assert jobs.calls == []
    less = {name: value for name, value in TRIPLE.items() if name not in ("submit", "cancel")}
    async with driving(stub, driver="triple", triple=less) as other:
        with pytest.raises(RemoteRefused, match="cancel"):
            await other.cancel("j-1")
        await other.submit("start_job", {"x": 1}, key="k")
        assert jobs.calls == [("start_job", {"x": 1})]
