"""ps, show, cancel, extend, purge and top: what operators see of the store's tasks, and do to them."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import pytest

from mcptasks.cli import operating
from mcptasks.model import Status, label, new_task_id
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.command import Commands, environment
from tests.support.peek import Peek
from tests.support.tasks import (
    TERMINAL,
    artifact,
    asking,
    claimed,
    create,
    end,
    ended,
    parked,
    question,
    queued,
    read,
    running,
    submission,
)

pytestmark = pytest.mark.anyio

PULSE: Final = WorkerPulse(
    at_ms=0, host="box", pid=7, slots=4, active=1, received=12, waiting=0, deaf_ms=0, stuck={"loop": 2}
)
DAY_MS: Final = 86_400_000


# ------------------------------------------------------------------------------------------------ ps


@covers("W8")
async def test_ps_shows_what_is_unfinished_newest_first(store: TaskStore, peek: Peek, commands: Commands) -> None:
    """W8: with what matters of each; what has ended is shown on demand."""
    first = await queued(store)
    peek.raw.zadd(peek.keys.active, {first: 1})
    claim = await running(store, owner="bob")
    await store.progress(claim, "Half way: 50 %", 50, 100, 1.0)
    over = await ended(store, Status.FAILED)
    shown = await commands.run("ps")
    assert (shown.code, shown.err) == (0, "")
    head, newest, oldest = shown.out.splitlines()
    assert head.split() == ["ID", "TOOL", "STATUS", "OWNER", "AGE", "RUN", "PROGRESS"]
    assert newest.split()[:4] == [label(claim.task_id), "report", "running", "bob"]
    assert "Half way: 50 %, about 50 s left" in newest
    assert oldest.split()[:4] == [label(first), "report", "queued", "ann"]
    assert label(over.task_id) not in shown.out
    everything = (await commands.run("ps", "--all")).out
    assert all(label(task) in everything for task in (first, claim.task_id, over.task_id))


@covers("W8")
async def test_ps_filters_and_programs_read_all_of_it(store: TaskStore, commands: Commands) -> None:
    """The ids are whole there, because something is to be done with them."""
    await create(store, call=submission("other"))
    mine = await queued(store)
    bobs = (await ended(store, owner="bob")).task_id

    async def found(*words: str) -> list[str]:
        return [task["id"] for task in (await commands.run("ps", "--json", *words)).json["tasks"]]

    assert await found("--tool", "report") == [mine]
    assert await found("--owner", "bob", "--all") == await found("--status", "completed") == [bobs]
    assert await found("--status", "failed", "-s", "cancelled") == []
    assert len(await found("--all", "--limit", "2")) == 2
    told = (await commands.run("ps", "--json", "--all", "-n", "1")).json
    assert (told["more"], told["newer"], len(told["tasks"])) == (True, 0, 1)
    task = (await commands.run("ps", "--json", "--status", "completed")).json["tasks"][0]
    assert (task["tool"], task["owner"], task["status"], task["attempt"]) == ("report", "bob", "completed", 1)
    assert task["created"].endswith("Z")


async def test_ps_says_when_there_is_nothing_or_more(store: TaskStore, commands: Commands) -> None:
    """An empty table would leave people guessing."""
    assert (await commands.run("ps")).out == "no such task\n"
    for _ in range(3):
        await queued(store)
    assert "there are more; --limit shows them" in (await commands.run("ps", "-n", "2")).out
    assert (await commands.run("ps", "-n", "3")).out.count("report") == 3


async def test_texts_of_tools_and_callers_move_no_terminal(store: TaskStore, commands: Commands) -> None:
    """A status message is anybody's; an escape in it would be obeyed by the operator's terminal."""
    claim = await running(store, owner="eve\x1b[31m\u202e")
    await store.progress(claim, "\x1b]0;pwned\x07\x1b[2J[bold]now[/bold]\r\n", 0, None, None)
    for words in (("ps",), ("show", claim.task_id)):
        shown = (await commands.run(*words)).out
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
        assert "[bold]now[/bold]" in shown


@pytest.mark.parametrize("width", [80, 100, 120])
async def test_a_narrow_terminal_cuts_what_people_wrote_and_nothing_else(
    store: TaskStore, commands: Commands, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A long message took tool, age and run from the whole table."""
    claim = await running(store, owner="auth0|a-long-identity@customer.example.com", tool="collect_all_reports")
    await store.progress(claim, "Waiting for the mainframe, which answers nobody on a Monday morning " * 2, 1, None)
    await store.report("worker-1@box", replace(PULSE, at_ms=await store.now_ms(), host="a-box.of.a.long.name.internal"))
    monkeypatch.setenv("COLUMNS", str(width))
    head, row = (await commands.run("ps")).out.splitlines()
    assert head.split() == ["ID", "TOOL", "STATUS", "OWNER", "AGE", "RUN", "PROGRESS"]
    assert label(claim.task_id) in row and "collect" in row and "auth0" in row and "\u2026" in row and len(row) <= width
    counts, *_ = shown = (await commands.run("top", "--once", "--interval", "0.1")).out.splitlines()
    assert "queued 0" in counts and "sleeping 0" in counts and "completed" not in counts
    [workers] = [line for line in shown if line.startswith("WORKER")]
    assert "BUSY (1 of 4)" in workers and "RECEIVED" in workers and "PID" in workers
    assert max(map(len, shown)) <= width and any("stuck" in line for line in shown)


async def test_json_moves_no_terminal_either(store: TaskStore, settings: Settings, commands: Commands) -> None:
    """People look at it, too; letters stay as they are, and half a character keeps nothing from being printed."""
    claim = await running(store, owner="zoë \x9b31m\u202e \U0001f600")
    strange = replace(question("q"), params={"mode": "form", "message": "half \ud83d", "requestedSchema": {}})
    await store.ask(claim, asking(strange), guard=None, hold=False)
    for words in (("ps", "--json"), ("show", claim.task_id, "--json")):
        shown = (await commands.run(*words)).out
        assert "zoë \\u009b31m\\u202e \U0001f600" in shown
        assert {char for char in shown if not char.isprintable()} == {"\n"}
    told = (await commands.run("show", claim.task_id, "--json")).json
    assert (told["owner"], told["questions"]["q"]["params"]["message"]) == (
        "zoë \x9b31m\u202e \U0001f600",
        "half \ud83d",
    )


async def test_nothing_else_that_others_wrote_moves_a_terminal(store: TaskStore, commands: Commands) -> None:
    """A reason stands in errors, too."""
    failed = await ended(store, Status.FAILED)
    await store.close_admission("back \x1b[2Jsoon\x9b")
    for words in (
        ("retry", failed.task_id),
        ("admission", "status"),
        ("top", "--once", "--interval", "0.1"),
        ("doctor",),
    ):
        shown = await commands.run(*words)
        assert "[2Jsoon" in shown.out + shown.err, words
        assert not {"\x1b", "\x9b"} & set(shown.out + shown.err), words
    await store.open_admission()


async def test_without_a_store_an_operator_is_told_where_one_was_looked_for(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing names one, the folder is part of the answer."""
    monkeypatch.chdir(tmp_path)
    commands.env({"MCPTASKS_REDIS_URL": "redis://127.0.0.1:9/0"})
    named = await commands.run("ps")
    assert (named.code, "does not answer" in named.said, "mcptasks dev" in named.said) == (1, True, False)
    nowhere = Settings(redis_url="redis://127.0.0.1:9/0")
    nowhere.model_fields_set.discard("redis_url")  # as where it is the default, and nobody listens there
    monkeypatch.setattr(operating, "fleets_settings", lambda: nowhere)
    unnamed = await commands.run("ps")
    assert (unnamed.code, "does not answer" in unnamed.said) == (1, True)
    assert f"no `mcptasks dev` runs in {tmp_path}" in unnamed.said and "MCPTASKS_REDIS_URL" in unnamed.said


# ------------------------------------------------------------------------------------------------ show


@covers("W8")
async def test_show_tells_where_a_task_runs_and_how_far_it_is(store: TaskStore, commands: Commands) -> None:
    """By the beginning of its id."""
    claim = await claimed(store, await queued(store, policy=Policy(ttl_ms=DAY_MS)), worker="w1@box:9")
    await store.report("w1@box", replace(PULSE, at_ms=await store.now_ms()))
    await store.progress(claim, "Half way: 1 of 4 (25 %)", 1, 4, 0.5)
    await store.reserve(claim)
    await store.artifact(claim, artifact("a.csv", "1,2"))
    shown = (await commands.run("show", claim.task_id[:6])).out
    assert claim.task_id in shown
    for said in (
        "running",
        "w1@box:9 (pid 7 on box)",
        "1 of 4 (25 %), about 10 s left",
        "a.csv  3 bytes  text/csv",
        "1 of 3",
    ):
        assert said in shown, said
    told = (await commands.run("show", claim.task_id[:6], "--json")).json
    assert (told["runs_on"], told["worker"]) == ({"host": "box", "pid": 7}, "w1@box:9")
    assert told["progress"]["rate_per_second"] == 0.5
    assert [one["name"] for one in told["artifacts"]] == ["a.csv"]


async def test_show_tells_what_a_task_asks_and_until_when(store: TaskStore, commands: Commands) -> None:
    """And how it is answered."""
    claim = await running(store)
    form = {"type": "object", "properties": {"size": {"type": "integer", "title": "How many?"}}}
    asked = replace(
        question("q", "Go on?"),
        params={"mode": "form", "message": "Go on?\n  + a\x1b[2J\n  - b", "requestedSchema": form},
    )
    await store.ask(claim, asking(asked), guard=None, hold=False)
    shown = (await commands.run("show", claim.task_id)).out
    assert "    Go on?\n      + a [2J\n      - b\n" in shown
    for said in ("parked", "size:", f"mcptasks answer {label(claim.task_id)}"):
        assert said in shown, said
    told = (await commands.run("show", claim.task_id, "--json")).json
    assert told["questions"]["q"]["params"]["requestedSchema"] == form


async def test_show_tells_how_a_task_ended_and_its_result_on_demand_only(store: TaskStore, commands: Commands) -> None:
    """Results are the caller's; whoever looks over an operator's shoulder need not see them."""
    good, bad = await running(store), await running(store)
    await end(store, bad, Status.FAILED)
    await store.finish(good, Status.COMPLETED, "completed", message="", payload='{"content":[{"text":"geheim"}]}')  # pyright: ignore[reportArgumentType]
    shown = await commands.run("show", good.task_id)
    assert "completed" in shown.out and "geheim" not in shown.out
    assert "geheim" in (await commands.run("show", good.task_id, "--result")).out
    assert "result" not in (await commands.run("show", good.task_id, "--json")).json
    assert (await commands.run("show", good.task_id, "--json", "--result")).json["result"]["content"]
    told = await commands.run("show", bad.task_id)
    assert "failed" in told.out and "error" in told.out


@covers("W8")
async def test_a_task_that_is_not_one_is_a_clear_error(store: TaskStore, commands: Commands) -> None:
    """W8: exit code 1, one sentence, no stack trace, whatever is to be done to it."""
    for n in range(2):
        await create(store, f"aaaa{n}{new_task_id()[5:]}")
    for words in (
        ["show"],
        ["logs"],
        ["logs", "-f"],
        ["retry"],
        ["cancel"],
        ["answer", "--decline"],
        ["extend", "--by", "1d"],
    ):
        command, *more = words
        unknown = await commands.run(command, "zzzzzz", *more)
        assert (unknown.code, unknown.out) == (1, "")
        assert unknown.err.startswith("mcptasks: There is no task 'zzzzzz'...")
        several = await commands.run(command, "aaaa", *more)
        assert (several.code, "More than one task's id begins with 'aaaa'" in several.err) == (1, True)
        short = await commands.run(command, "aa", *more)
        assert (short.code, "Give 4 characters" in short.err) == (1, True)


# ------------------------------------------------------------------------------------------------ cancel, extend


@covers("W5")
async def test_cancel_says_what_it_did_and_who_did_it(store: TaskStore, commands: Commands) -> None:
    """W5: a second cancel changes nothing."""
    waiting, works = await queued(store), await running(store)
    assert (await commands.run("cancel", waiting[:8], "--reason", "Moving house")).out == "cancelled\n"
    assert (await read(store, waiting)).status_message == "Moving house (by operator olga)"
    assert (await commands.run("cancel", works.task_id)).out == "it runs, and was told to stop\n"
    assert "cancelling" in (await commands.run("ps")).out
    late = await commands.run("cancel", waiting)
    assert (late.code, "had ended before" in late.err) == (1, True)


async def test_extend_keeps_a_task_longer_in_both_ways(store: TaskStore, peek: Peek, commands: Commands) -> None:
    """From now on, and from its end on; ended or not."""
    task, over = await queued(store, policy=Policy(ttl_ms=DAY_MS)), await ended(store, policy=Policy(ttl_ms=DAY_MS))

    def kept_ms(task_id: str) -> float:
        return float(peek.raw.zscore(peek.keys.drops, task_id)) - peek.now_ms()

    assert (await commands.run("extend", task[:8], "--by", "2d")).out.startswith("it is kept until ")
    assert (await read(store, task)).ttl_ms == pytest.approx(3 * DAY_MS, abs=60_000)
    await commands.run("extend", task[:8], "--ttl", "7d")
    assert (await read(store, task)).ttl_ms == pytest.approx(7 * DAY_MS, abs=60_000)
    await commands.run("extend", over.task_id, "--by", "1d")
    assert kept_ms(over.task_id) == pytest.approx(2 * DAY_MS, abs=60_000)
    await commands.run("extend", over.task_id, "--by", "1d")
    assert kept_ms(over.task_id) == pytest.approx(3 * DAY_MS, abs=60_000)


@pytest.mark.unlimited
async def test_an_unlimited_task_is_kept_for_ever(store: TaskStore, commands: Commands) -> None:
    """There is nothing to add to that."""
    task = await queued(store, policy=Policy(unlimited=True))
    for how in ("--by", "--ttl"):
        assert (await commands.run("extend", task, how, "2d")).out == "it is kept for ever\n"


# ------------------------------------------------------------------------------------------------ purge, top


@covers("R7")
async def test_purge_removes_what_ended_before_and_asks_first(store: TaskStore, peek: Peek, commands: Commands) -> None:
    """Never what is unfinished; nobody to ask is a no."""
    old = [(await ended(store, status)).task_id for status in TERMINAL]
    for task in old:
        peek.put(task, updated=str(peek.now_ms() - 8 * DAY_MS))
    new, unfinished = (await ended(store)).task_id, await queued(store)
    refused = await commands.run("purge", "--before", "7d")
    assert (refused.code, "3 tasks that ended before" in refused.err) == (1, True)
    assert all([await store.read(task, None) for task in old])
    only = await commands.run("purge", "--before", "7d", "--status", "failed", "--yes")
    assert (only.code, only.out) == (0, "removed 1 tasks\n")
    assert (await commands.run("purge", "--before", "7d", "-y")).out == "removed 2 tasks\n"
    assert [await store.read(task, None) for task in old] == [None] * 3
    assert (await commands.run("purge", "--before", "7d", "-y")).out.startswith("there are no tasks that ended before")
    assert (await commands.run("purge", "--before", "2999-01-01", "-y")).out == "removed 1 tasks\n"
    assert await store.read(new, None) is None and await store.read(unfinished, None) is not None


async def test_top_tells_of_tasks_workers_and_rates(store: TaskStore, peek: Peek, commands: Commands) -> None:
    """In one look, and for programs."""
    tasks = [await queued(store) for _ in range(2)]
    await parked(store)
    await ended(store)
    peek.raw.zadd(peek.keys.active, {tasks[1]: peek.now_ms() - 3_600_000})
    await store.report("w1@box", replace(PULSE, at_ms=await store.now_ms()))
    await store.report("dead@box", PULSE)
    await store.close_admission("moving house")
    shown = (await commands.run("top", "--once", "--interval", "0.1")).out
    for said in (
        "queued 2",
        "parked 1",
        "completed 1",
        "w1@box",
        "1 of 4",
        "2 stuck in loop",
        "moving house",
        "1h old",
    ):
        assert said in shown, said
    assert "dead@box" not in shown
    told = (await commands.run("top", "--json", "--interval", "0.1")).json
    assert (told["tasks"]["queued"], told["unfinished"], told["oldest"]["id"]) == (2, 3, tasks[1])
    assert told["per_second"] == {"created": 0.0, "ended": 0.0}
    assert told["admission"] == {"open": False, "reason": "moving house"}
    assert told["workers"]["w1@box"]["slots"] == 4
    await store.open_admission()


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps", "--status", "lost"], "lost"),
        (["ps", "--limit", "0"], "--limit"),
        (["ps", "--watch"], "--watch is for a terminal"),
        (["show"], "Missing argument"),
        (["extend", "abcdef"], "give --by or --ttl"),
        (["extend", "abcdef", "--by", "1d", "--ttl", "1d"], "give --by or --ttl"),
        (["extend", "abcdef", "--ttl", "soon"], "'soon' is not a duration"),
        (["purge"], "Missing option"),
        (["purge", "--before", "soon"], "neither a duration"),
        (["purge", "--before", "1d", "--status", "running"], "only what has ended"),
        (["answer", "abcdef", "--decline", "--cancel"], "exclude each other"),
        (["shwo", "abcdef"], "Did you mean 'show'"),
    ],
    ids=" ".join,
)
async def test_a_mistake_at_the_command_line_is_code_2(commands: Commands, words: list[str], said: str) -> None:
    """With the words that say what is right, and no stack trace."""
    ended = await commands.run(*words)
    assert (ended.code, "Traceback" in ended.err) == (2, False)
    assert said in ended.said


async def test_a_store_that_is_away_is_one_sentence(commands: Commands) -> None:
    """Within seconds, and code 1."""
    commands.env({"MCPTASKS_REDIS_URL": "redis://127.0.0.1:9/0"})
    for words in (["ps"], ["ps", "--json"], ["show", "abcdef"], ["top", "--json"], ["purge", "--before", "1d"]):
        ended = await commands.run(*words)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("mcptasks: ") and "127.0.0.1:9" in ended.err


def test_json_is_on_every_command_that_reads() -> None:
    """DESIGN 7; the names are a contract."""
    from mcptasks.cli import admission, doctor, logs, ps, show, top  # noqa: PLC0415

    for function in (ps.ps, show.show, logs.logs, top.top, doctor.doctor, admission.status):
        assert "--json" in str(function.__annotations__.values()) or "Json" in str(function.__annotations__), function


@covers("W6")
async def test_the_timeline_names_the_operator_who_acted(store: TaskStore, commands: Commands) -> None:
    """Answer, cancel, extend and retry; its caller reads only that it was an operator."""
    asks, failed = await parked(store), await ended(store, Status.FAILED)
    await commands.run("extend", asks.task_id, "--by", "1d")
    await commands.run("answer", asks.task_id, "--decline")
    await commands.run("cancel", asks.task_id)
    fresh = (await commands.run("retry", failed.task_id, "--json")).json["id"]
    for task_id, events in ((asks.task_id, "extend answer cancel"), (failed.task_id, "retried"), (fresh, "retried")):
        told = {entry["what"]: entry for entry in (await commands.run("logs", task_id, "--json")).json["entries"]}
        for event in events.split():
            assert (told[event]["by"], told[event]["operator"]) == ("operator", "olga"), event
    assert "answer: by operator olga: sure" in (await commands.run("logs", asks.task_id)).out


# ------------------------------------------------------------------------------------------------ Tab


async def test_tab_completes_ids_of_tasks_that_are_unfinished_first(store: TaskStore, settings: Settings) -> None:
    """With what each is; where none of that beginning is unfinished, those that have ended."""
    live, over = await queued(store), (await ended(store)).task_id
    program = Path(sys.executable).with_name("mcptasks")  # it is by its name that a shell asks

    async def tab(*words: str) -> str:
        asked = {"_MCPTASKS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": " ".join(("mcptasks", *words))}
        done = await anyio.run_process([program], env=os.environ | environment(settings) | asked, check=False)
        return done.stdout.decode()

    found = await tab("show ")
    assert live in found and "report, queued" in found and over not in found
    assert over in await tab("logs", over[:5])
    assert live not in await tab("cancel", "zzzz")
