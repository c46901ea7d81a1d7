"""Who may enter the console, and what other people's pages and texts can do to it: nothing."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any, Final

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Mount

from mcptasks.console import ConsoleOptions, console_app
from mcptasks.errors import ConfigurationError
from mcptasks.model import Claim, Status, label
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.store.test_console import answers, asked
from tests.support.console import TOKEN, Browser, browser
from tests.support.keys import SECRETS
from tests.support.tasks import parked, question, queued, read, running

pytestmark = pytest.mark.anyio

PAGES: Final = ("/tasks", "/inbox", "/fleet", "/live/tasks", "/live/inbox", "/live/fleet")
SCRIPT: Final = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b hx-get=/x>"


async def decline(page: Browser, claim: Claim, **how: Any) -> int:
    """The status of the answer to this form."""
    data = {"key": "q", "action": "decline"} | how.pop("data", {})
    where = f"/tasks/{label(claim.task_id)}/answer"
    return (await page.send(where, data, follow=False, **how)).status_code


# ------------------------------------------------------------------------------------------------ who may enter


async def test_without_a_login_nothing_is_shown_and_nothing_is_done(store: TaskStore, settings: Settings) -> None:
    """Pages lead to the log-in, streams and forms are refused; that it lives is told to everybody."""
    claim = await asked(store)
    async with browser(settings) as page:
        for path in (*PAGES, f"/tasks/{label(claim.task_id)}"):
            answer = await page.open(path)
            assert "Buy?" not in answer.text and label(claim.task_id) not in answer.text.replace(path, "")
            assert answer.status_code == (401 if path.startswith("/live") else 200)
            assert path.startswith("/live") or answer.url.path == "/login"
        await page.open("/login")
        assert await decline(page, claim) == 401
        assert (await page.send("/fleet/close", {"reason": "x"})).status_code == 401
        assert (await page.open("/healthz")).text == "ok\n"
    assert await answers(store, claim) == {} and await store.admission() is None


async def test_a_wrong_token_does_not_open_and_the_right_one_needs_a_name(settings: Settings) -> None:
    """And the way back leads to no other site."""
    async with browser(settings) as page:
        wrong = await page.log_in(token=TOKEN + "x")
        assert (wrong.status_code, "not the token" in wrong.text) == (403, True)
        assert (await page.log_in(name=" ")).status_code == 422
        assert (await page.open("/tasks")).url.path == "/login"
        for way, lands in (
            ("//evil.example/", "/tasks"),
            ("/\\evil.example", "/tasks"),
            ("https://evil.example", "/tasks"),
            ("/fleet?x=1", "/fleet"),
        ):
            await page.open("/login")
            assert (await page.send("/login", {"name": "olga", "token": TOKEN, "next": way})).url.path == lands
        assert (await page.open("/tasks")).status_code == 200
        await page.send("/logout", {})
        assert (await page.open("/tasks")).url.path == "/login"


async def test_a_session_ends_with_its_time_and_with_its_token(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed token logs everybody out; a forged or old cookie is none."""
    async with browser(settings) as page:
        await page.log_in()
        [(name, value)] = page.cookies().items()
    for cookie, options, later_s in (
        (value, {}, 0),
        (value, {"token": "another-long-token"}, 0),
        (value, {}, 13 * 3600),
        (value[:-3] + "abc", {}, 0),
    ):
        now = time.time() + later_s
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda now=now: now)
            async with browser(settings, **options) as page:
                answer = await page.open("/tasks", Cookie=f"{name}={cookie}")
        assert (answer.url.path == "/tasks") == (cookie == value and not options and not later_s)


async def test_a_session_is_over_after_its_time_however_busy_it_was(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done in it gives the cookie a fresh signature, and no more time."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    async with browser(settings) as page:
        await page.log_in()
        before = page.cookies()
        now_s += 11 * 3600
        assert (await page.open("/fleet")).url.path == "/fleet"
        await page.send("/fleet/open", {}, follow=False)
        assert page.cookies() != before
        now_s += 2 * 3600
        assert (await page.open("/fleet")).url.path == "/login"


async def test_a_proxys_word_is_believed_from_its_networks_alone(store: TaskStore, settings: Settings) -> None:
    """The header says who acts; whoever else sends it is nobody."""
    claim = await asked(store)
    options: dict[str, Any] = {"token": None, "proxy_header": "X-Forwarded-User", "proxy_from": "10.0.0.0/8, ::1"}
    for peer, known in (("10.1.2.3", True), ("127.0.0.1", False), ("::1", True), ("11.0.0.1", False), ("unix", False)):
        async with browser(settings, peer=peer, **options) as page:
            answer = await page.open("/tasks", **{"X-Forwarded-User": "pia@example.com"})
            assert (answer.status_code, "pia@example.com" in answer.text) == (200 if known else 401, known)
            assert (await page.open("/tasks")).status_code == 401
    async with browser(settings, peer="10.1.2.3", **options) as page:
        headers = {"X-Forwarded-User": "pia@example.com"}
        await page.open(f"/tasks/{label(claim.task_id)}", **headers)
        assert await decline(page, claim, **headers) == 303
    told = await store.told(claim.task_id, None)
    assert told is not None
    assert [one.words[0] for one in told.noted if one.what == "answer"] == ["operator=pia@example.com"]


def test_a_console_that_nobody_could_enter_or_anybody_could_guess_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the variable, and never its value."""
    for variables, said in (
        ({}, "set MCPTASKS_CONSOLE_TOKEN"),
        ({"TOKEN": "short-one"}, "MCPTASKS_CONSOLE_TOKEN: must have at least 16"),
        ({"TOKEN": TOKEN, "PROXY_FROM": "everywhere"}, "MCPTASKS_CONSOLE_PROXY_FROM"),
        ({"OIDC_ISSUER": "https://id.example.com"}, "MCPTASKS_CONSOLE_OIDC_OPERATORS"),
        ({"TOKEN": TOKEN, "URL": "ops.example.com"}, "MCPTASKS_CONSOLE_URL"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"MCPTASKS_CONSOLE_{name}", value)
            with pytest.raises(ConfigurationError) as caught:
                ConsoleOptions.load()
        assert said in str(caught.value) and "short-one" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ other people's pages


async def test_a_form_from_elsewhere_does_nothing(store: TaskStore, settings: Settings) -> None:
    """Forged or missing token, a token of another session, a foreign origin, a foreign site."""
    claim = await asked(store)
    async with browser(settings) as other:
        await other.log_in("eve")
        stolen = other.csrf
    async with browser(settings) as page:
        await page.log_in()
        await page.open(f"/tasks/{label(claim.task_id)}")
        for data, headers in (
            ({"csrf": ""}, {}),
            ({"csrf": "x" * 32}, {}),
            ({"csrf": "\u00fc"}, {}),
            ({"csrf": stolen}, {}),
            ({}, {"Origin": "https://evil.example"}),
            ({}, {"Origin": "null"}),
            ({}, {"Origin": "http://console.evil.example"}),
            ({}, {"Sec-Fetch-Site": "cross-site"}),
            ({}, {"Sec-Fetch-Site": "same-site"}),
        ):
            assert await decline(page, claim, data=data, **headers) == 403, (data, headers)
        assert await answers(store, claim) == {}
        for path in ("/fleet/close", "/fleet/cancel", "/logout", f"/tasks/{label(claim.task_id)}/cancel"):
            assert (await page.send(path, {"csrf": "x", "reason": "x", "sure": "yes"})).status_code == 403
            assert (await page.open(path)).status_code == 405, "no link does anything"
        assert (await page.send("/login", {"csrf": "x", "name": "eve", "token": TOKEN})).status_code == 403
        assert await decline(page, claim, data={"note": "x" * 1_100_000}) == 413
        await page.open(f"/tasks/{label(claim.task_id)}")
        same = {"Origin": "http://console", "Sec-Fetch-Site": "same-origin"}
        assert await decline(page, claim, **same) == 303
    assert await answers(store, claim) == {"q": {"action": "decline"}}


async def test_behind_a_proxy_the_origin_is_the_one_that_browsers_see(store: TaskStore, settings: Settings) -> None:
    """And the cookie goes by https alone."""
    claim = await asked(store)
    async with browser(settings, url="https://ops.example.com") as page:
        await page.open("/login")
        answer = await page.send("/login", {"name": "olga", "token": TOKEN}, follow=False)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-mcptasks_console_") and "; path=/;" in cookie
        assert "httponly; samesite=lax; secure" in cookie
        await page.open(f"/tasks/{label(claim.task_id)}")
        assert await decline(page, claim, Origin="http://ops.example.com") == 403
        assert await decline(page, claim, Origin="https://ops.example.com") == 303


async def test_every_answer_tells_browsers_to_run_nothing_but_our_files(store: TaskStore, settings: Settings) -> None:
    """No page has a script, a style or a handler in it, whatever the policy would say to that."""
    claim = await asked(store)
    async with browser(settings) as page:
        await page.log_in()
        for path in ("/tasks", "/inbox", "/fleet", f"/tasks/{label(claim.task_id)}", "/nowhere", "/static/console.css"):
            answer = await page.open(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy and answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == ("no-store" if "static" not in path else "public, max-age=3600")
            scripts = re.findall(r"<script[^>]*>[^<]", answer.text)
            handlers = re.findall(r"<[^>]*\s(?:on\w+|style|hx-on[^=]*)=", answer.text)
            assert scripts == handlers == re.findall(r"<style|javascript:|https?://", answer.text) == []
            assert TOKEN not in answer.text and claim.task_id not in answer.text


# ------------------------------------------------------------------------------------------------ other people's texts


async def test_a_script_in_any_text_is_text(store: TaskStore, settings: Settings) -> None:
    """Of questions, fields, keys, owners, tools, messages and reasons."""
    schema = {
        "type": "object",
        "properties": {
            SCRIPT: {"type": "string", "title": SCRIPT, "description": SCRIPT, "default": SCRIPT},
            "half \ud83d": {"type": "string", "title": "half \ud83d", "enum": ["\ud83d"], "default": "\ud83d"},
        },
        "required": [SCRIPT],
    }
    params = {"mode": "form", "message": SCRIPT, "requestedSchema": schema}
    claim = await asked(store, replace(question(SCRIPT), params=params), owner=SCRIPT)
    works = await running(store, owner=SCRIPT)
    await store.progress(works, SCRIPT, 1, 2)
    cancelled = await queued(store)
    await store.cancel(cancelled, None, SCRIPT)
    await store.close_admission(SCRIPT)
    async with browser(settings) as page:
        await page.log_in(SCRIPT[:70])
        names = [f"/tasks/{label(one)}" for one in (claim.task_id, works.task_id, cancelled)]
        for path in ("/tasks?status=all", "/inbox", "/fleet", *names, f"/tasks?tool={SCRIPT}&owner={SCRIPT}"):
            text = (await page.open(path)).text
            assert "&lt;script&gt;alert(1)" in text, path
            assert "<script>alert" not in text and "<img" not in text and "<b hx" not in text, path
        back = await page.send(f"{names[0]}/answer", {"key": SCRIPT, "action": "accept"})
        assert back.status_code == 422 and "<script>alert" not in back.text
    await store.open_admission()


async def test_a_status_message_of_a_mebibyte_is_cut(store: TaskStore, settings: Settings) -> None:
    """So is whatever else a tool may say at length."""
    claim = await running(store)
    await store.progress(claim, "long " * 200_000, 1, 2)
    asks = await asked(store, question("x" * 5_000, "long " * 20_000))
    async with browser(settings) as page:
        await page.log_in()
        for path in ("/tasks", f"/tasks/{label(claim.task_id)}", f"/tasks/{label(asks.task_id)}", "/inbox"):
            answer = await page.open(path)
            assert answer.status_code == 200 and len(answer.text) < 60_000, (path, len(answer.text))


async def test_what_is_sealed_with_another_key_is_not_shown(store: TaskStore, settings: Settings) -> None:
    """It is counted, and the rest of the page is there."""
    sealing = TaskStore(settings.model_copy(update={"encryption_keys": SECRETS[:1]}))
    claim = await asked(sealing)
    await parked(store)
    async with browser(settings) as page:
        await page.log_in()
        inbox = (await page.open("/inbox")).text
        assert "1 more ask something that cannot be read here" in inbox and "Sure?" in inbox and "Buy?" not in inbox
        assert (await page.open(f"/tasks/{label(claim.task_id)}")).status_code == 409
        assert (await page.open("/tasks")).status_code == 200
    await sealing.aclose()


async def test_without_a_store_a_page_says_so(settings: Settings) -> None:
    """And where it was looked for, without a password."""
    away = settings.model_copy(update={"redis_url": "redis://:pass-word@127.0.0.1:1/0"})
    async with browser(away) as page:
        await page.open("/login")
        await page.send("/login", {"name": "olga", "token": TOKEN}, follow=False)
        answer = await page.open("/tasks")
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
        assert "pass-word" not in answer.text


async def test_it_is_mounted_below_a_path(store: TaskStore, settings: Settings) -> None:
    """Links, forms and redirects stay below it."""
    claim = await asked(store)
    app = console_app(settings, ConsoleOptions(token=SecretStr(TOKEN)))
    outer = Starlette(routes=[Mount("/ops/tasks", app)])
    async with app.router.lifespan_context(app), browser(settings, app=outer, root="/ops/tasks") as page:
        assert (await page.open("/inbox")).url.path == "/ops/tasks/login"
        assert (await page.log_in()).url.path == "/ops/tasks/tasks"
        text = (await page.open(f"/tasks/{label(claim.task_id)}")).text
        assert re.findall(r'(?:href|src|action|connect)="/(?!ops/tasks/)[^"]*', text) == []
        assert 'href="/ops/tasks/inbox"' in text and 'aria-current="page"' in text
        assert await decline(page, claim) == 303
        for path in ("/static/htmx-4.0.1.min.js", "/static/hx-sse-4.0.1.min.js", "/static/console.js"):
            assert (await page.open(path)).status_code == 200
    assert (await read(store, claim.task_id)).status is Status.QUEUED
