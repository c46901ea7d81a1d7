"""`subscriptions/listen` as the tasks driver reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing

import pytest

from mcptasks.tracker.remote import Driver, PushUnavailable, RemoteStatus, RemoteUnavailable, Snapshot
from tests.support import stub_faults as faults
from tests.support.remote import driving
from tests.support.stub_server import StubServer
from tests.support.stub_steps import Step, asking, completed, working
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def stub() -> Generator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture(params=["tasks", "auto"])
async def driver(stub: StubServer, request: pytest.FixtureRequest) -> AsyncGenerator[Driver]:
    async with driving(stub, driver=request.param, max_concurrency=1) as found:
        yield found


async def three(driver: Driver) -> list[str]:
    """The handles of three tasks."""
    handles = [(await driver.submit("build", {}, key=str(n))).handle for n in range(3)]
    return [handle for handle in handles if handle is not None]


async def listened(stub: StubServer, count: int = 1) -> None:
    """So many streams are open."""

    async def are() -> bool:
        return len(stub.listening()) == count

    await eventually(are, description=f"{count} streams are open")


async def test_what_is_pushed_is_yielded_by_handle(stub: StubServer, driver: Driver) -> None:
    """One stream for all; it takes no slot from the requests."""
    handles = await three(driver)
    told: list[tuple[str, Snapshot]] = []

    async def listen() -> None:
        async with aclosing(driver.listen(handles[:2])) as messages:
            async for each in messages:
                told.append(each)

    listening = asyncio.create_task(listen())
    await listened(stub)
    assert stub.listening() == [frozenset(handles[:2])]
    await driver.look(handles[0])
    for handle, step in ((handles[0], working("half")), (handles[2], working()), (handles[1], asking("k"))):
        stub.push(handle, step)
    stub.push(handles[0], completed("R"))

    async def all_there() -> bool:
        return len(told) == 3

    await eventually(all_there, description="three are told")
    assert [(handle, shot.status) for handle, shot in told] == [
        (handles[0], RemoteStatus.WORKING),
        (handles[1], RemoteStatus.INPUT_REQUIRED),
        (handles[0], RemoteStatus.COMPLETED),
    ]
    assert told[0][1].message == "half" and list(told[1][1].questions) == ["k"] and told[2][1].result is not None
    stub.hang_up()
    with pytest.raises(RemoteUnavailable):
        await listening
    await listened(stub, 0)


async def test_a_stream_that_nobody_listens_to_is_closed(stub: StubServer, driver: Driver) -> None:
    """Whoever stops listening leaves nothing behind."""
    handles = await three(driver)
    listening = asyncio.ensure_future(anext(driver.listen(handles)))
    await listened(stub)
    stub.push(handles[0], working())
    await listening
    hung = asyncio.ensure_future(anext(driver.listen(handles)))
    await listened(stub)
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    stub.push(handles[0], working())  # a closed connection is noticed when something is written
    stub.hang_up()
    await listened(stub, 0)


async def test_one_bad_push_costs_its_siblings_nothing(stub: StubServer, driver: Driver) -> None:
    """A look is what judges a task."""
    handles = await three(driver)
    first = asyncio.ensure_future(anext(driver.listen(handles)))
    await listened(stub)
    stub.push(handles[0], Step(status="paused"))
    stub.push(handles[1], working("fine"))
    handle, shot = await first
    assert (handle, shot.message) == (handles[1], "fine")


@pytest.mark.parametrize("code", [-32601, -32602, -32021])
async def test_a_server_that_tells_nothing_says_so_at_the_first_step(
    stub: StubServer, driver: Driver, code: int
) -> None:
    """Then it is polled."""
    stub.fault("subscriptions/listen", faults.error(code, status=400))
    with pytest.raises(PushUnavailable):
        await anext(driver.listen(["x"]))


@pytest.mark.parametrize("fault", [faults.html(), faults.reset(), faults.error(-32603, status=500)])
async def test_a_broken_stream_is_a_failure_of_the_network(
    stub: StubServer, driver: Driver, fault: faults.Fault
) -> None:
    """It may be opened again."""
    stub.fault("subscriptions/listen", fault)
    with pytest.raises(RemoteUnavailable):
        await anext(driver.listen(["x"]))
