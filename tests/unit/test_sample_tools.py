"""The sample fleet's tools, called as a client without tasks calls them: live, in memory, on real files and servers.

Issue 2, part 8: sample tools do real work with what is at hand. That they behave as tasks is tests/fleet/'s business.
"""

import asyncio
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import mcp_types
import pytest
from anyio import to_thread
from celery.app.utils import find_app
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.server.mcpserver import MCPServer

import workers.server
from mcptasks import Mode, Tasks
from mcptasks.policy import policy_of
from workers.tools import crawl_site, csv_report, deploy_release, index_files, order_supplies, register
from workers.tools.files import FolderIndexer, Slice
from workers.tools.words import RunningCount, word_count

pytestmark = pytest.mark.anyio

TOOLS: list[Callable[..., Any]] = [
    word_count,
    index_files,
    csv_report,
    crawl_site,
    deploy_release,
    order_supplies,
]
Answer = mcp_types.ElicitResult
Asked = list[str]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def samples() -> MCPServer:
    """The tools on a server without the tasks extension: every call runs live and no store is needed."""
    mcp = MCPServer("samples")
    register(mcp, Tasks())
    return mcp


@pytest.fixture
def temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("MCPTASKS_SAMPLES_LEDGER", raising=False)
    return tmp_path / "mcptasks-samples"


async def call(mcp: MCPServer, tool: str, **arguments: Any) -> dict[str, Any]:
    async with Client(mcp) as client:
        return succeeded(await client.call_tool(tool, arguments))


async def refused(mcp: MCPServer, tool: str, **arguments: Any) -> str:
    async with Client(mcp) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    return text_of(result)


async def call_asked(mcp: MCPServer, tool: str, answer: Answer, **arguments: Any) -> tuple[dict[str, Any], Asked]:
    """The result of a tool that asks, and the questions it asked. 2025 connections: only they carry a live question."""
    asked: Asked = []

    async def reply(context: ClientRequestContext, params: mcp_types.ElicitRequestParams) -> Answer:
        asked.append(params.message)
        return answer

    async with Client(mcp, mode="legacy", elicitation_callback=reply) as client:
        return succeeded(await client.call_tool(tool, arguments)), asked


def succeeded(result: mcp_types.CallToolResult) -> dict[str, Any]:
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    return result.structured_content


def text_of(result: mcp_types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, mcp_types.TextContent))


def files_below(folder: Path) -> dict[str, bytes]:
    """The content of each file by its path below the folder; empty when there is no such folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def approve(note: str = "") -> Answer:
    return Answer(action="accept", content={"approve": True, "note": note})


# --- the offer ------------------------------------------------------------------------------------------------------


async def test_every_sample_tool_tells_a_model_what_it_is_for(samples: MCPServer) -> None:
    """Docstrings are what models read; six tools are promised."""
    async with Client(samples) as client:
        tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == {
        "crawl_site",
        "csv_report",
        "deploy_release",
        "index_files",
        "order_supplies",
        "word_count",
    }
    assert all(len(tool.description or "") > 60 for tool in tools)
    assert all("ctx" not in tool.input_schema["properties"] for tool in tools)


def test_all_but_the_tiny_tool_are_durable_and_an_order_only_ever_is() -> None:
    """The table in workers/tools/__init__.py: an order must survive the loss of connection and worker."""
    register(MCPServer("samples"), Tasks())
    modes = {tool.__name__: policy.mode for tool in TOOLS if (policy := policy_of(tool)) is not None}
    assert modes.pop("order_supplies") == Mode.REQUIRED
    assert modes.keys() == {"crawl_site", "csv_report", "deploy_release", "index_files"}
    assert set(modes.values()) == {Mode.OPTIONAL}


def test_celery_finds_the_fleets_app_where_the_readme_says() -> None:
    """`celery -A workers.app worker` resolves its argument with this function."""
    assert find_app("workers.app") is workers.server.celery


# --- word_count -----------------------------------------------------------------------------------------------------


async def test_word_count_counts_characters_words_and_lines(samples: MCPServer) -> None:
    counted = await call(samples, "word_count", text="one two\nthree")
    assert counted == {"characters": 13, "words": 3, "lines": 2}


@pytest.mark.parametrize(
    ("text", "words", "lines"), [("", 0, 0), ("\n", 0, 1), ("a\n", 1, 1), ("\n\na", 1, 3), ("  a  ", 1, 1)]
)
def test_word_count_has_no_word_or_line_too_many(text: str, words: int, lines: int) -> None:
    counted = word_count(text)
    assert (counted.words, counted.lines) == (words, lines)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_text_counts_the_same_in_pieces_as_in_one(size: int) -> None:
    """index_files feeds files in slices that cut words anywhere."""
    text = "Tout est  bien,\nqui finit BIEN.\r\nÉté été\tend"
    pieces, whole = RunningCount(), RunningCount()
    for start in range(0, len(text), size):
        pieces.feed(text[start : start + size])
    whole.feed(text)
    pieces.end_of_text()
    whole.end_of_text()
    assert (pieces.words, pieces.lines, pieces.frequencies) == (whole.words, whole.lines, whole.frequencies)
    assert (whole.words, whole.lines, whole.frequencies["bien"], whole.frequencies["été"]) == (9, 3, 2, 2)


# --- index_files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "a.txt").write_text("apple pear apple\n", encoding="utf-8")
    (root / "deep" / "b.md").write_text("apple\nplum", encoding="utf-8")
    (root / "deep" / "er" / "c.bin").write_bytes(b"\x00\xff" * 50)
    (root / "empty.txt").touch()
    return root


async def test_index_files_reads_everything_below_the_folder(samples: MCPServer, folder: Path) -> None:
    index = await call(samples, "index_files", folder=str(folder))
    assert (index["files"], index["unreadable"], index["changed"]) == (4, 0, 0)
    assert (index["bytes"], index["text_files"], index["lines"], index["words"]) == (17 + 10 + 100, 2, 3, 5)
    assert index["largest"][0] == {"path": "deep/er/c.bin", "bytes": 100}
    assert index["most_frequent"][:2] == [{"word": "apple", "count": 3}, {"word": "pear", "count": 1}]


async def test_index_files_reads_only_what_matches_the_pattern(samples: MCPServer, folder: Path) -> None:
    index = await call(samples, "index_files", folder=str(folder), pattern="*.md")
    assert [file["path"] for file in index["largest"]] == ["deep/b.md"]


async def test_the_digest_of_a_folder_is_that_of_its_sorted_paths_and_contents(
    samples: MCPServer, folder: Path
) -> None:
    """Another machine lists the files in another order and must get the same digest."""
    index = await call(samples, "index_files", folder=str(folder))
    checksums = {path: hashlib.sha256(content).hexdigest() for path, content in files_below(folder).items()}
    lines = "".join(f"{path}\0{checksums[path]}\n" for path in sorted(checksums))
    assert index["digest"] == hashlib.sha256(lines.encode()).hexdigest()


async def test_the_digest_of_a_folder_changes_with_its_content_only(samples: MCPServer, folder: Path) -> None:
    first = await call(samples, "index_files", folder=str(folder))
    again = await call(samples, "index_files", folder=str(folder), passes=3)
    (folder / "a.txt").write_text("apple pear apples", encoding="utf-8")
    changed = await call(samples, "index_files", folder=str(folder))
    assert first["digest"] == again["digest"] != changed["digest"]


async def test_index_files_reports_progress_that_rises_to_its_total(samples: MCPServer, folder: Path) -> None:
    seen: list[tuple[float, float | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert message is not None and message.startswith("pass ")
        seen.append((progress, total))

    async with Client(samples) as client:
        arguments = {"folder": str(folder), "passes": 5}
        succeeded(await client.call_tool("index_files", arguments, progress_callback=on_progress))
    done = [step for step, _ in seen]
    assert len(done) > 5 and done == sorted(set(done))
    assert {total for _, total in seen} == {done[-1]} == {100}


async def test_index_files_follows_no_link_and_opens_no_pipe(samples: MCPServer, folder: Path, tmp_path: Path) -> None:
    """A link leads out of the folder; opening a pipe nobody writes to would block for ever."""
    (tmp_path / "outside.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    os.mkfifo(folder / "pipe.txt")
    # Held open here, so that a tool that does open it fails this test instead of hanging it.
    pipe = os.open(folder / "pipe.txt", os.O_RDWR | os.O_NONBLOCK)
    try:
        index = await call(samples, "index_files", folder=str(folder))
    finally:
        os.close(pipe)
    assert index["files"] == 4


@pytest.fixture
def folder_with_odd_name(folder: Path) -> Path:
    try:
        Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_bytes(b"x" * 500)
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    return folder


async def test_a_file_name_that_is_not_unicode_is_shown_readably(
    samples: MCPServer, folder_with_odd_name: Path
) -> None:
    """A lone surrogate in a result is JSON that not every client can read."""
    index = await call(samples, "index_files", folder=str(folder_with_odd_name))
    assert index["largest"][0]["path"] == "caf\ufffd.txt"


def test_a_file_that_vanishes_or_changes_between_passes_is_counted_not_fatal(folder: Path) -> None:
    indexer = FolderIndexer(folder, "*.*", passes=2)
    for part in indexer.slices():
        if part.message.startswith("pass 1 of 2, file 4"):
            (folder / "a.txt").write_text("apple pear plums\n", encoding="utf-8")
            (folder / "deep" / "b.md").unlink()
    report = indexer.report()
    assert (report.files, report.changed, report.unreadable) == (4, 1, 1)


def test_a_large_file_is_read_in_slices(tmp_path: Path) -> None:
    """The length of a slice bounds how long a cancel waits."""
    content = b"word " * 400_000
    (tmp_path / "large.txt").write_bytes(content)
    indexer = FolderIndexer(tmp_path, "*", passes=1)
    done = [part.done for part in indexer.slices() if part.total]
    assert max(later - earlier for earlier, later in zip([0, *done], done, strict=False)) <= 256 * 1024 + 1
    digest = hashlib.sha256(content).hexdigest()
    assert indexer.report().digest == hashlib.sha256(f"large.txt\0{digest}\n".encode()).hexdigest()
    assert indexer.report().words == 400_000


async def test_cancelling_index_files_stops_the_reading(samples: MCPServer, folder: Path) -> None:
    """Issue 2: a running tool sees a cancel. Uncancelled, this one reads for minutes."""
    (folder / "large.bin").write_bytes(b"\0" * 5_000_000)
    finished: list[mcp_types.CallToolResult] = []
    async with Client(samples) as client, anyio.create_task_group() as group:

        async def stop(progress: float, total: float | None, message: str | None) -> None:
            group.cancel_scope.cancel()

        arguments = {"folder": str(folder), "passes": 10_000}
        finished.append(await client.call_tool("index_files", arguments, progress_callback=stop))
    assert group.cancel_scope.cancelled_caught and not finished


@pytest.mark.anyio
async def test_a_cancel_in_the_middle_of_a_slice_is_a_cancel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is cancelled by asyncio's own cancel, which does not wait for the thread as anyio's scopes do."""
    inside, released = threading.Event(), threading.Event()

    def one_long_slice(_: FolderIndexer) -> Generator[Slice]:
        inside.set()
        released.wait(30)
        yield Slice(1, 1, "")

    monkeypatch.setattr(FolderIndexer, "slices", one_long_slice)
    reading = asyncio.ensure_future(index_files(str(folder), cast("Any", None)))
    await to_thread.run_sync(inside.wait)
    reading.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await reading
    finally:
        released.set()


@pytest.mark.parametrize("name", ["missing", "a.txt", "nul\0byte"])
async def test_index_files_refuses_what_is_not_a_folder(samples: MCPServer, folder: Path, name: str) -> None:
    assert "folder" in await refused(samples, "index_files", folder=str(folder / name))


# --- csv_report -----------------------------------------------------------------------------------------------------

CSV = "name,qty,price,since,ok\nink,2,1.5,2024-01-31,yes\npens,4,2.5,2023-05-01,no\nink,,,2025-02-02,yes\n"


async def test_csv_report_infers_types_and_computes_statistics(samples: MCPServer) -> None:
    report = (await call(samples, "csv_report", csv_text=CSV, title="Stock"))["result"]
    lines = report.splitlines()
    assert lines[0] == "# Stock"
    assert "3 rows, 5 columns." in lines
    assert "| name | text | 3 | 2 |  |  |  |  |" in lines
    assert "| qty | integer | 2 | 2 | 2 | 4 | 3 | 3 |" in lines
    assert "| price | number | 2 | 2 | 1.5 | 2.5 | 2 | 2 |" in lines
    assert "| since | date | 3 | 3 | 2023-05-01 | 2025-02-02 |  |  |" in lines
    assert "| ok | boolean | 3 | 2 |  |  |  |  |" in lines
    assert "| name | ink | 2 |" in lines


@pytest.mark.parametrize(
    ("csv_text", "line"),
    [
        ("a;b\n1;2\n3;4\n", "| b | integer | 2 | 2 | 2 | 4 | 3 | 3 |"),
        ("\ufeffa\tb\r\n1\t2\r\n", "| a | integer | 1 | 1 | 1 | 1 | 1 | 1 |"),
        ("a\n\n1e308\n1e308\n", "| a | text | 2 | 1 |  |  |  |  |"),
        ("a\nNaN\ninf\n", "| a | text | 2 | 2 |  |  |  |  |"),
        ('a,b\n"x\ny | z",\n', "| a | x y \\| z | 1 |"),
        ("a,b\n\u2028x,\n", "1 rows, 2 columns."),
        ("a,b\nx\u2028y,\n", "| a | x y | 1 |"),
        ("a,b\n", "| b | empty | 0 | 0 |  |  |  |  |"),
    ],
)
async def test_csv_report_copes_with_what_real_files_hold(samples: MCPServer, csv_text: str, line: str) -> None:
    """Delimiters, a byte order mark, numbers no float can sum, line breaks and bars in cells, no rows at all."""
    report = (await call(samples, "csv_report", csv_text=csv_text))["result"]
    assert line in report.split("\n")


@pytest.mark.parametrize(
    ("csv_text", "message"),
    [
        ("", "CSV line 1: there is no header"),
        ("a,b\n1,2\n3\n", "CSV line 3: 1 fields, but the header has 2"),
        ("a,b\n1,2,3\n", "CSV line 2: 3 fields"),
        ("a,\n", "CSV line 1: column 2 has no name"),
        ("\na,a\n", "CSV line 2: the column name 'a' is used twice"),
        ('a,b\n1,2\n"open,3\n', "CSV line 3: unexpected end of data"),
        ('a,b\n"x"y,1\n', "CSV line 2: "),
        ("a\n" + "x" * 200_000 + "\n", "CSV line 2: field larger than field limit"),
    ],
)
async def test_csv_report_names_the_line_of_a_malformed_csv(samples: MCPServer, csv_text: str, message: str) -> None:
    assert message in await refused(samples, "csv_report", csv_text=csv_text)


# --- crawl_site -----------------------------------------------------------------------------------------------------


@contextmanager
def serving(handler: Callable[..., SimpleHTTPRequestHandler]) -> Generator[str]:
    """A real HTTP server on a free loopback port; yields its URL without the final slash."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Traffic:
    """What the site was asked for; a request for /slow is announced and waits for the gate."""

    asked: list[str] = field(default_factory=list[str])
    slow_asked: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)


def site_handler(root: Path, traffic: Traffic) -> Callable[..., SimpleHTTPRequestHandler]:
    """Serves `root`; /moved redirects home, /away off the site."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(root))

        def do_GET(self) -> None:
            traffic.asked.append(self.path)
            match self.path:
                case "/moved":
                    self._redirect("/")
                case "/away":
                    self._redirect("http://example.com/")
                case "/slow":
                    traffic.slow_asked.set()
                    traffic.gate.wait()
                case _:
                    super().do_GET()

        def _redirect(self, location: str) -> None:
            self.send_response(302)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Silent: the access log would drown the test output."""

    return Handler


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[tuple[str, Traffic]]:
    """Another site of this machine: same host, other port."""
    traffic = Traffic()
    with serving(site_handler(tmp_path, traffic)) as url:
        yield url, traffic


@pytest.fixture
def site(tmp_path: Path, traffic: Traffic, elsewhere: tuple[str, Traffic]) -> Iterator[str]:
    root = tmp_path / "site"
    root.mkdir()
    (root / "index.html").write_text(
        "<title> Home\n page </title><svg><title>icon</title></svg><a href='b.html#x'>b</a><a href='/c.html'>c</a>"
        "<a href='http://example.com/x'>out</a><a href='mailto:a@b.c'>mail</a><a href='http://[bad'>bad</a>"
        "<img src=logo.png><a href=/moved>moved</a><a href=/away>away</a><![odd[declaration]]>",
        encoding="utf-8",
    )
    (root / "b.html").write_text("<title>B</title><a href='/'>home</a><a href='/gone.html'>gone</a>", encoding="utf-8")
    (root / "c.html").write_text("<title>C</title><a href='/d.html'>deeper</a>", encoding="utf-8")
    (root / "d.html").write_text("<title>D</title>", encoding="utf-8")
    (root / "logo.png").write_bytes(b"\x89PNG" + b"\0" * 96)
    (root / "stuck.html").write_text("<a href='/slow'>slow</a><a href='/b.html'>after</a>", encoding="utf-8")
    (root / "out.html").write_text(f"<a href='{elsewhere[0]}/x'>port</a><a href='/away'>away</a>", encoding="utf-8")
    with serving(site_handler(root, traffic)) as url:
        yield url
        traffic.gate.set()


async def test_crawl_site_visits_the_site_breadth_first(samples: MCPServer, site: str, traffic: Traffic) -> None:
    report = await call(samples, "crawl_site", start_url=f"{site}/#top")
    assert [page["title"] for page in report["pages"]] == ["Home page", "B", "C", "D"]
    assert traffic.asked == ["/", "/b.html", "/c.html", "/logo.png", "/moved", "/away", "/gone.html", "/d.html"]
    assert report["requests"] == 8 and report["unvisited"] == 0
    assert report["bytes"] == sum(page["bytes"] for page in report["pages"]) + 100


async def test_crawl_site_names_broken_links_and_where_they_stand(samples: MCPServer, site: str) -> None:
    report = await call(samples, "crawl_site", start_url=f"{site}/")
    assert report["broken"] == [
        {"url": "http://[bad", "found_on": f"{site}/", "reason": "not a URL"},
        {"url": f"{site}/gone.html", "found_on": f"{site}/b.html", "reason": "status 404"},
    ]


async def test_crawl_site_never_leaves_its_origin(
    samples: MCPServer, site: str, elsewhere: tuple[str, Traffic]
) -> None:
    """A link to another port of this machine and a redirect to example.com are counted, not followed."""
    report = await call(samples, "crawl_site", start_url=f"{site}/out.html")
    assert (report["requests"], report["external_links"]) == (2, 2)
    assert elsewhere[1].asked == []


async def test_crawl_site_asks_for_no_more_than_max_pages(samples: MCPServer, site: str, traffic: Traffic) -> None:
    report = await call(samples, "crawl_site", start_url=f"{site}/", max_pages=2)
    assert len(traffic.asked) == report["requests"] == 2
    assert report["unvisited"] == 5


async def test_crawl_site_reports_progress_for_each_page(samples: MCPServer, site: str) -> None:
    seen: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is not None and progress <= total
        seen.append((progress, message))

    async with Client(samples) as client:
        await client.call_tool("crawl_site", {"start_url": f"{site}/"}, progress_callback=on_progress)
    assert [done for done, _ in seen] == list(range(1, 9))
    assert seen[1][1] == "visited /b.html"


async def test_cancelling_crawl_site_abandons_the_page_it_waits_for(
    samples: MCPServer, site: str, traffic: Traffic
) -> None:
    """The page never answers: only a cancel that reaches the request ends the call."""
    finished: list[mcp_types.CallToolResult] = []
    async with Client(samples) as client, anyio.create_task_group() as group:

        async def crawl() -> None:
            finished.append(await client.call_tool("crawl_site", {"start_url": f"{site}/stuck.html"}))

        group.start_soon(crawl)
        assert await to_thread.run_sync(traffic.slow_asked.wait, 60)
        group.cancel_scope.cancel()
    assert not finished and traffic.asked == ["/stuck.html", "/slow"]


@pytest.mark.parametrize(
    ("start_url", "message"),
    [
        ("http://example.com/", "example.com is not on this machine"),
        ("http://127.0.0.1.example.com/", "not on this machine"),
        ("http://localhost@10.0.0.1/", "10.0.0.1 is not on this machine"),
        ("http://[::2]/", "not on this machine"),
        ("file:///etc/passwd", "not an http or https URL"),
        ("http://127.0.0.1:99999/", "not an http or https URL"),
        ("nonsense", "not an http or https URL"),
    ],
)
async def test_crawl_site_refuses_any_other_host(samples: MCPServer, start_url: str, message: str) -> None:
    assert message in await refused(samples, "crawl_site", start_url=start_url)


async def test_crawl_site_says_when_nothing_answers_at_the_start(samples: MCPServer, site: str) -> None:
    assert "status 404" in await refused(samples, "crawl_site", start_url=f"{site}/none.html")
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as closed:
        port = closed.server_port
    assert "no answer (ConnectError)" in await refused(samples, "crawl_site", start_url=f"http://127.0.0.1:{port}/")


# --- deploy_release -------------------------------------------------------------------------------------------------


async def test_an_approved_release_goes_live_as_planned(samples: MCPServer, temp_folder: Path) -> None:
    release, questions = await call_asked(samples, "deploy_release", approve("go"), version="1.4.0")
    assert release["deployed"] and release["note"] == "go"
    assert release["message"] == "The person approved; release 1.4.0 is live with 4 files."
    live = {change["path"]: change["sha256"] for change in release["changes"]}
    found = files_below(temp_folder / "live")
    assert {path: hashlib.sha256(content).hexdigest() for path, content in found.items()} == live
    assert found["VERSION"] == b"1.4.0\n"
    assert len(questions) == 1 and "4 to add, 0 to change, 0 to keep" in questions[0]


async def test_the_plan_compares_a_release_with_what_is_live(samples: MCPServer, temp_folder: Path) -> None:
    await call_asked(samples, "deploy_release", approve(), version="1.4.0")
    release, questions = await call_asked(samples, "deploy_release", approve(), version="1.5")
    actions = {change["path"]: change["action"] for change in release["changes"]}
    assert actions.pop("web/robots.txt") == "keep" and set(actions.values()) == {"change"}
    assert "0 to add, 3 to change, 1 to keep" in questions[0]
    assert files_below(temp_folder).keys() == {f"live/{change['path']}" for change in release["changes"]}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(action="accept", content={"approve": False, "note": "not on a Friday"}), "refused"),
        (Answer(action="decline"), "declined to answer"),
        (Answer(action="cancel"), "dismissed the question without an answer"),
    ],
)
async def test_a_release_nobody_approved_changes_nothing(
    samples: MCPServer, temp_folder: Path, answer: Answer, words: str
) -> None:
    release, _ = await call_asked(samples, "deploy_release", answer, version="2.0-rc1")
    assert not release["deployed"]
    assert release["message"] == f"The person {words}; release 2.0-rc1 was not deployed and nothing changed."
    assert release["note"] == (answer.content or {}).get("note", "")
    assert files_below(temp_folder) == {}


@pytest.mark.parametrize("version", ["", "../../etc", "1.0/x", "1.0\n", "latest", "1." + "0" * 50])
async def test_a_version_that_is_no_version_is_refused(samples: MCPServer, temp_folder: Path, version: str) -> None:
    """The version names a folder: it must not lead anywhere else."""
    assert "version" in await refused(samples, "deploy_release", version=version)
    assert files_below(temp_folder) == {}


# --- order_supplies -------------------------------------------------------------------------------------------------

ITEMS = [{"article": "paper", "quantity": 2}, {"article": "pens", "quantity": 10}]


def ledger(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_a_confirmed_order_is_reserved_then_charged(samples: MCPServer, temp_folder: Path) -> None:
    order, questions = await call_asked(samples, "order_supplies", approve("thanks"), items=ITEMS)
    assert (order["status"], order["total_cents"], order["note"]) == ("charged", 3_100, "thanks")
    assert [line["step"] for line in ledger(temp_folder / "ledger.jsonl")] == ["reserve", "charge"]
    assert {line["reservation"] for line in ledger(temp_folder / "ledger.jsonl")} == {order["reservation"]}
    assert questions == [f"Order 2 paper, 10 pens for 31.00 EUR? Reserved as {order['reservation']}."]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_an_order_nobody_confirmed_is_released(
    samples: MCPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Literal["decline", "cancel"]
) -> None:
    monkeypatch.setenv("MCPTASKS_SAMPLES_LEDGER", str(tmp_path / "new" / "book"))
    order, _ = await call_asked(samples, "order_supplies", Answer(action=action), items=ITEMS)
    assert order["status"] == "released" and "was released" in order["message"]
    assert [line["step"] for line in ledger(tmp_path / "new" / "book")] == ["reserve", "release"]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"article": "gold", "quantity": 1}], "Not in the catalogue: gold. There are: envelopes, ink"),
        ([], "items"),
        ([{"article": "pens", "quantity": 0}], "quantity"),
    ],
)
async def test_an_order_that_cannot_be_filled_reserves_nothing(
    samples: MCPServer, temp_folder: Path, items: list[dict[str, Any]], message: str
) -> None:
    assert message in await refused(samples, "order_supplies", items=items)
    assert files_below(temp_folder) == {}


async def test_an_order_without_a_ledger_says_so_and_asks_nobody(
    samples: MCPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPTASKS_SAMPLES_LEDGER", str(tmp_path))
    message = await refused(samples, "order_supplies", items=ITEMS)
    assert "The ledger cannot be written (Is a directory); the step 'reserve' was not done." in message
