"""`crawl_site`: a breadth-first crawl of a site on this machine."""

import ipaddress
from collections import deque
from html.parser import HTMLParser
from typing import Annotated, Final, NamedTuple
from urllib.parse import SplitResult, urldefrag, urljoin, urlsplit

import httpx2
from anyio import to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

_LINKS: Final = {"a": "href", "area": "href", "iframe": "src", "img": "src", "link": "href", "script": "src"}
_PAGE_BYTES: Final = 2 * 1024 * 1024
_ANSWER_WITHIN_S: Final = 10.0
_TITLE: Final = 200


class Page(BaseModel):
    """One HTML page of the site."""

    url: str
    title: str
    bytes: int


class BrokenLink(BaseModel):
    """A link of the site that leads nowhere."""

    url: str
    found_on: str
    reason: str


class SiteReport(BaseModel):
    """What the crawl found."""

    start_url: str
    requests: int = Field(description="URLs that were asked for: pages, images, scripts, style sheets")
    bytes: int = Field(description="Bytes of all bodies, each read up to 2 MiB")
    pages: list[Page] = Field(description="The HTML pages in the order they were found")
    broken: list[BrokenLink]
    external_links: int = Field(description="Links to other origins; they were not followed")
    unvisited: int = Field(description="Known URLs of the site beyond max_pages")


class _Link(NamedTuple):
    url: str
    found_on: str


class _PageParser(HTMLParser):
    """Collects the title and the links of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self._title: list[str] = []
        self._in_title = False

    @property
    def title(self) -> str:
        return " ".join("".join(self._title).split())[:_TITLE]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # Only the first: an inline SVG has titles of its own.
        self._in_title = tag == "title" and not self._title
        target = dict(attrs).get(_LINKS.get(tag, ""))
        if target:
            self.links.append(target.strip())

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)


def _parse(markup: str) -> _PageParser:
    parser = _PageParser()
    try:
        parser.feed(markup)
        parser.close()
    except AssertionError:
        # html.parser gives up on some malformed declarations this way; what came before it still counts.
        return parser
    return parser


def _split(url: str) -> SplitResult | None:
    """The parts of an http(s) URL with a valid port; None for anything else (mailto:, javascript:, nonsense)."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if usable else None


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Crawl:
    """The state of one crawl: what is known, what is still to visit, what was found."""

    def __init__(self, start: SplitResult, start_url: str, max_pages: int) -> None:
        self._origin = _origin(start)
        self._max_pages = max_pages
        self._seen = {start_url}
        self._external: set[str] = set()
        self._queue = deque([_Link(start_url, "")])
        self.report = SiteReport(
            start_url=start_url, requests=0, bytes=0, pages=[], broken=[], external_links=0, unvisited=0
        )

    async def run(self, client: httpx2.AsyncClient, ctx: Context) -> None:
        """The site has been visited breadth-first until it, or `max_pages`, was used up."""
        while self._queue and self.report.requests < self._max_pages:
            link = self._queue.popleft()
            self.report.requests += 1
            try:
                await self._visit(client, link)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                self._broken(link, f"no answer ({type(error).__name__})")
            done = self.report.requests
            total = min(self._max_pages, done + len(self._queue))
            await ctx.report_progress(done, total, f"visited {urlsplit(link.url).path or '/'}")
        self.report.external_links = len(self._external)
        self.report.unvisited = len(self._queue)

    async def _visit(self, client: httpx2.AsyncClient, link: _Link) -> None:
        async with client.stream("GET", link.url) as response:
            if response.is_redirect:
                # By hand, so that no redirect leads the crawl off the site.
                self._discover(link.url, link.found_on, response.headers.get("location", ""))
                return
            if response.status_code >= 400:
                self._broken(link, f"status {response.status_code}")
                return
            body = await _limited_body(response)
            encoding = response.encoding or "utf-8"
            is_page = response.headers.get("content-type", "").startswith("text/html")
        self.report.bytes += len(body)
        if is_page:
            page = await to_thread.run_sync(_parse, body.decode(encoding, "replace"))
            self.report.pages.append(Page(url=link.url, title=page.title, bytes=len(body)))
            for target in page.links:
                self._discover(link.url, link.url, target)

    def _discover(self, base: str, found_on: str, target: str) -> None:
        try:
            url = urldefrag(urljoin(base, target)).url
        except ValueError:
            self._broken(_Link(target, found_on), "not a URL")
            return
        parts = _split(url)
        if parts is None:
            return
        if _origin(parts) != self._origin:
            self._external.add(url)
        elif url not in self._seen:
            self._seen.add(url)
            self._queue.append(_Link(url, found_on))

    def _broken(self, link: _Link, reason: str) -> None:
        self.report.broken.append(BrokenLink(url=link.url, found_on=link.found_on, reason=reason))


async def _limited_body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= _PAGE_BYTES:
            break
    return bytes(body[:_PAGE_BYTES])


def _checked_start(start_url: str) -> tuple[SplitResult, str]:
    url = urldefrag(start_url.strip()).url
    parts = _split(url)
    if parts is None:
        raise ToolError(f"{start_url!r} is not an http or https URL; give one such as http://127.0.0.1:8000/.")
    if not _is_loopback(parts.hostname or ""):
        raise ToolError(
            f"{parts.hostname} is not on this machine. Only localhost, 127.0.0.0/8 and ::1 may be crawled; "
            "start a local copy of the site."
        )
    return parts, url


async def crawl_site(
    start_url: str,
    ctx: Context,
    max_pages: Annotated[int, Field(ge=1, le=1_000)] = 50,
) -> SiteReport:
    """Crawl a web site on this machine breadth-first and report its pages with their titles, its broken links and its
    size in bytes.

    Only loopback addresses are crawled, and only the origin of the start URL; other links are counted, not followed.
    Progress is reported for each page, and a cancel takes effect at once.

    Args:
        start_url: Where to begin, for instance http://127.0.0.1:8000/.
        max_pages: At most this many URLs are asked for, images and style sheets included.
    """
    parts, url = _checked_start(start_url)
    crawl = _Crawl(parts, url, max_pages)
    # No proxy from the environment may see the requests, and no compressed body may grow past its limit.
    async with httpx2.AsyncClient(
        trust_env=False, timeout=_ANSWER_WITHIN_S, headers={"accept-encoding": "identity"}
    ) as client:
        await crawl.run(client, ctx)
    report = crawl.report
    if any(link.url == url for link in report.broken):
        raise ToolError(f"{url} cannot be crawled: {report.broken[0].reason}. Is the site running there?")
    return report
