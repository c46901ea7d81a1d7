"""The operators' tour of the console: two people at two browsers, a question, its answer, and the task's end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from mcp.server.mcpserver import Context
from playwright.async_api import Browser, Error, Page, expect
from pydantic import BaseModel, Field

from mcptasks.links import Artifact
from mcptasks.model import Status, label
from mcptasks.settings import Settings
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.store import TaskStore
from tests.browser.conftest import logged_in
from tests.support import npm
from tests.support.console import TOKEN
from tests.support.durable import one
from tests.support.house import house
from tests.support.tasks import ANN, asking, ended, question, queued, running

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("chromium")]

SCRIPT: Final = "May it be paid? <script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


class Payment(BaseModel):
    """What the tool asks for."""

    approve: bool = Field(title="Approve the payment?")
    amount: int = Field(title="Amount in euros", ge=1, le=5_000)
    account: Literal["ops", "travel"] = "ops"


async def pay(ctx: Context) -> str:
    """Asks, and does it."""
    answer = await ctx.elicit(SCRIPT, Payment)
    assert answer.action == "accept"
    await ctx.report_progress(1, 2, "Paying")
    return f"paid {answer.data.amount}"


async def test_a_page_that_a_tool_wrote_is_saved_and_never_opened(
    settings: Settings, store: TaskStore, chromium: Browser, console: str, tmp_path: Path
) -> None:
    """By the link, and by its address alone: nothing of it runs in the console's name."""
    page_of_a_tool = b"<script>document.title='owned'</script>"

    async def chunks() -> AsyncIterator[bytes]:
        yield page_of_a_tool

    claim = await running(store)
    await store.reserve(claim)
    written = await store.files.write(claim.task_id, chunks(), 100, "The file")
    await store.artifact(claim, Artifact(name="report.html", mime="text/html", **written._asdict()))
    page = await logged_in(chromium, console, "olga", f"/tasks/{label(claim.task_id)}")
    link = page.get_by_role("link", name="report.html")
    async with page.expect_download() as started:
        await link.click()
    saved = await started.value
    await saved.save_as(tmp_path / "saved")
    assert (saved.suggested_filename, (tmp_path / "saved").read_bytes()) == ("report.html", page_of_a_tool)
    async with page.expect_download():
        with pytest.raises(Error, match="Download is starting"):
            await page.goto(f"{console}{await link.get_attribute('href')}")
    assert "owned" not in await page.title()


async def test_a_question_is_answered_in_one_browser_and_gone_in_the_other_and_the_task_ends_in_both(
    settings: Settings, chromium: Browser, console: str
) -> None:
    """Issue 7: seen within a second, no page loaded again, no script of the question run."""
    async with house(settings, one(pay)) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.deliver()
        inbox = await logged_in(chromium, console, "ivan", "/inbox")
        olga = await logged_in(chromium, console, "olga", f"/tasks/{label(task_id)}")
        loads = [0, 0]
        for number, page in enumerate((inbox, olga)):
            page.on("load", lambda _, number=number: loads.__setitem__(number, loads[number] + 1))
        await expect(inbox.get_by_role("article")).to_contain_text("<script>document.title='owned'</script>")

        # A draft that somebody types is left alone, whatever else comes meanwhile.
        await inbox.get_by_label("Amount in euros").fill("77")
        other = await client.start("tool")
        await home.fleet.deliver()
        await expect(inbox.get_by_role("article")).to_have_count(2)
        draft = inbox.get_by_role("article").last  # the newest stands first
        await expect(draft.get_by_label("Amount in euros")).to_have_value("77")

        # The browser helps, by what the schema says; the server has the last word.
        await olga.get_by_role("radio", name="Yes").check()
        await olga.get_by_label("Amount in euros").fill("4711")
        await olga.get_by_role("button", name="Send answer").click()
        answered = time.monotonic()
        await expect(inbox.get_by_role("article")).to_have_count(1)
        seen_s = time.monotonic() - answered
        await expect(olga.get_by_role("status").filter(has_text="Answered")).to_be_visible()
        loads[1] = 0
        await home.fleet.settle()
        await home.fleet.sweep()
        await home.fleet.settle()
        await expect(olga.locator(".head .status")).to_have_text("completed")
        await expect(olga.locator(".timeline")).to_contain_text("by operator olga")
        assert loads == [0, 0] and await inbox.title() == "Inbox, mcptasks"
        # A second is promised, and `make bench-console` holds it to that; this machine may be busy.
        assert seen_s < 10
        assert (await client.state(task_id))["result"]["content"][0]["text"] == "paid 4711"
        await client.cancel(other)


async def test_it_reads_and_answers_without_scripts(store: TaskStore, chromium: Browser, console: str) -> None:
    """By the keyboard alone, too."""
    claim = await running(store)
    form = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    params = {"mode": "form", "message": "Which word?", "requestedSchema": form}
    await store.ask(claim, asking(replace(question("q"), params=params)), guard=None, hold=False)
    page = await logged_in(chromium, console, "olga", "/inbox", java_script_enabled=False)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    for _ in range(8):
        await page.keyboard.press("Tab")
        if await page.get_by_role("textbox").evaluate("field => field === document.activeElement"):
            break
    await page.keyboard.type("tea")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Answered. The task moves on.")).to_be_visible()
    assert (await store.journal(claim.task_id)).answers == {"q": {"action": "accept", "content": {"word": "tea"}}}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
async def test_axe_finds_nothing_serious(
    store: TaskStore, chromium: Browser, console: str, scheme: str, width: int
) -> None:
    """On every page, with every kind of thing on it, in light and dark, wide and narrow."""
    runs, failed, asks = (f"/tasks/{label(task_id)}" for task_id in await fill(store))
    paths = {"light": ("/tasks?status=all", "/fleet", failed, asks), "dark": ("/inbox", runs)}
    axe = (npm.install(Path(__file__).parent) / "axe-core" / "axe.min.js").read_text()
    size = {"width": width, "height": 844}
    page = await logged_in(chromium, console, "olga", "/tasks", color_scheme=scheme, viewport=size, bypass_csp=True)
    for path in (*paths[scheme], "/tasks/zzzz"):
        await page.goto(f"{console}{path}")
        for summary in await page.locator("summary").all():
            await summary.click()
        assert await serious(page, axe) == [], path
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is too wide"
    await page.get_by_role("link", name="Back to the tasks").click()
    await page.get_by_role("button", name="Log out").click()
    assert await serious(page, axe) == [], "/login"


async def test_it_says_when_it_is_not_live_any_more(
    store: TaskStore, settings: Settings, chromium: Browser, console: str
) -> None:
    """A page that stands still and does not say so is worse than none at 3 am."""
    await queued(store)
    page = await logged_in(chromium, console, "olga", "/tasks")
    await page.context.clear_cookies()
    await page.context.set_offline(True)
    await expect(page.locator("#sign")).to_contain_text("Not live")
    assert TOKEN not in await page.content()


async def serious(page: Page, axe: str) -> list[Any]:
    """What axe-core finds that keeps people out."""
    await page.evaluate(axe)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    kept = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in kept]


async def fill(store: TaskStore) -> list[str]:
    """Tasks of each kind, and two workers of which one is deaf. Returns those that run, failed, and ask."""
    claim = await running(store)
    await store.progress(claim, "Reading", 3, 12)
    await queued(store)
    await ended(store)
    failed = await ended(store, Status.FAILED)
    await store.cancel(await queued(store), ANN)
    fields = {
        "yes": {"type": "boolean", "title": "Yes?"},
        "count": {"type": "integer", "minimum": 1},
        "one": {"type": "string", "enum": list("abcdefgh")},
        "some": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
        "text": {"type": "string", "maxLength": 500, "description": "Long"},
        "any": {"type": "object"},
    }
    form = {"type": "object", "properties": fields, "required": ["yes"]}
    params = {"mode": "form", "message": "All of it?", "requestedSchema": form}
    asks = await running(store)
    sampled = replace(question("model"), method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
    await store.ask(asks, asking(replace(question("q"), params=params), sampled), guard=None, hold=False)
    now_ms = await store.now_ms() + 60_000
    pulse = WorkerPulse(at_ms=now_ms, host="box", pid=7, slots=4, active=2, received=1, waiting=3, deaf_ms=0)
    await store.report("worker1@box", pulse)
    await store.report("worker2@box", replace(pulse, deaf_ms=40_000))
    return [claim.task_id, failed.task_id, asks.task_id]
