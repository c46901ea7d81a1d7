"""What every page and action of the console has at hand: the fleet, who may enter, and the templates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mcptasks.console import guard
from mcptasks.console.login import PROXY, Login
from mcptasks.console.looks import Looks, percent, place
from mcptasks.console.options import ConsoleOptions
from mcptasks.model import Status, label
from mcptasks.operations import Operations
from mcptasks.settings import Settings
from mcptasks.shown import about, note_of, outcome, plain, plain_lines, said, span
from mcptasks.times import iso

HERE: Final = Path(__file__).parent
_FLASH: Final = "flash"


class NotLoggedIn(Exception):
    """Nobody is known to ask this."""


class Desk:
    """One console. What is asked of it comes as a Starlette request."""

    def __init__(self, settings: Settings, options: ConsoleOptions) -> None:
        self.options, self.login = options, Login(options, settings)
        self.fleet = Operations(settings)
        self.looks = Looks(self.fleet, options.page)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        cast("dict[str, Any]", self._templates.filters).update(
            plain=plain,
            lines=plain_lines,
            span=span,
            iso=iso,
            minute=_minute,
            label=label,
            note=note_of,
            said=said,
            about=about,
            percent=percent,
            place=place,
            outcome=outcome,
        )
        cast("dict[str, Any]", self._templates.globals)["Status"] = Status

    def operator(self, request: Request) -> str:
        """The operator's name.

        Raises:
            NotLoggedIn: nobody has logged in.
        """
        who = self.login.operator(request)
        if who is None:
            raise NotLoggedIn
        return who[0]

    def acting(self, request: Request) -> Operations:
        """The fleet in this operator's hand. Raises as `operator`."""
        return self.fleet.acting(self.operator(request))

    async def form(self, request: Request) -> FormData:
        """The form that an operator sent. Raises as `operator` and as `guard.form_of`."""
        self.operator(request)
        return await guard.form_of(request, self.options.url)

    async def part(self, request: Request, name: str, /, **known: Any) -> str:
        """A part of a page, drawn."""
        found = {**self._common(request), **known}
        # Tools may say half an emoji, which no encoding has.
        return self._templates.get_template(name).render(found).encode("utf-8", "replace").decode()

    async def page(self, request: Request, name: str, status: int = 200, /, **known: Any) -> Response:
        """A whole page, with what every one says of the fleet."""
        fleet = known.pop("fleet", None) or await self.looks.fleet()
        session, flash = request.session, ""
        if _FLASH in session:
            flash = str(session.pop(_FLASH))
        return HTMLResponse(await self.part(request, name, fleet=fleet, flash=flash, **known), status)

    async def bare(self, request: Request, name: str, status: int, /, **known: Any) -> Response:
        """A page that needs no store and no operator."""
        return HTMLResponse(await self.part(request, name, **known), status)

    def to(self, request: Request, path: str, said: str = "") -> Response:
        """The browser goes to that page of ours, which says this once."""
        if said:
            request.session[_FLASH] = plain(said, 500)
        return RedirectResponse(f"{root(request)}{path}", 303)

    def _common(self, request: Request) -> Mapping[str, Any]:
        who = self.login.operator(request)
        return {
            "root": root(request),
            "path": request.url.path.removeprefix(root(request)),
            "csrf": guard.csrf_of(request),
            "operator": "" if who is None else who[0],
            "can_leave": who is not None and who[1] != PROXY,
        }


def root(request: Request) -> str:
    """Where the console is mounted; empty: at the top."""
    return str(request.scope.get("root_path") or "")


def text_of(form: FormData, name: str, most: int, *, needed: str = "") -> str:
    """What was typed into that field.

    Raises:
        HTTPException: 422, nothing was, and `needed` says what is.
    """
    text = plain(str(cast("Any", form.get(name)) or "").strip(), most)
    if needed and not text:
        raise HTTPException(422, needed)
    return text


def _minute(ms: int) -> str:
    return f"{iso(ms)[:16].replace('T', ' ')} UTC"
