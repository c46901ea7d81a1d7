"""`docs/images/straight-path.svg`: one `tools/call` from the client to its result, by the names that the code has.

Nothing is drawn that is not there: each name is looked up in the code when the picture is made, each script among the
store's.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import import_module
from importlib.resources import files
from typing import Final, NamedTuple


class Step(NamedTuple):
    """One step: the process it happens in, whose code it is, the store's script, and what holds afterwards."""

    where: str
    #: `module:name`, below `mcptasks`.
    code: str
    script: str
    after: str


STEPS: Final = (
    Step("server", "server.extension:TasksExtension.intercept_tool_call", "", "durable? arguments valid? who calls?"),
    Step("server", "store.store:TaskStore.create", "create", "record, owner, expiry, index: the task exists"),
    Step("server", "dispatch:Publisher.send", "", "the message, unless create.lua sent it"),
    Step("server", "wire:created", "", "the client has the task's id"),
    Step("worker", "fleet.execute:perform", "", "a message came; the store decides"),
    Step("worker", "store.store:TaskStore.claim", "claim", "lease, fencing token, attempt"),
    Step("worker", "runtime.runner:Run.execute", "", "your tool runs"),
    Step("worker", "store.store:TaskStore.park", "park", "it asked: questions stored, worker free"),
    Step("worker", "store.store:TaskStore.finish", "finish", "the end, if the token is still the task's"),
    Step("server", "server.extension:TasksExtension.get", "read", "tasks/get: one read, nothing written"),
    Step("sweeper", "store.store:TaskStore.reap", "reap", "a lost worker, a lost message"),
)

_LEFT: Final = {"server": 20, "worker": 320, "sweeper": 320}
_STORE, _WIDTH, _BOX, _HIGH, _ROW, _TOP = 670, 900, 278, 48, 60, 92
_FILL: Final = {"server": "#e0f2f1", "worker": "#e8eaf6", "sweeper": "#fff3e0"}
_STROKE: Final = {"server": "#00796b", "worker": "#3949ab", "sweeper": "#ef6c00"}


def resolve(code: str) -> object:
    """What the code has under this name.

    Raises:
        AttributeError: nothing, or not any more.
    """
    module, _, path = code.partition(":")
    found: object = import_module(f"mcptasks.{module}")
    for name in path.split("."):
        found = getattr(found, name)
    return found


def scripts() -> set[str]:
    """The names of the store's scripts."""
    lua = files("mcptasks.store") / "lua"
    return {one.name.removesuffix(".lua") for one in lua.iterdir() if one.name.endswith(".lua")}


def picture() -> str:
    """The picture.

    Raises:
        AttributeError, KeyError: a step names what the code has not.
    """
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    known = scripts()
    high = _TOP + len(STEPS) * _ROW + 20
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {high}" font-family="sans-serif" role="img" '
        'aria-label="The straight path of one tools/call: server, store, worker, and back">'
    )
    yield (
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#546e7a"/></marker></defs>'
    )
    yield f'<rect width="{_WIDTH}" height="{high}" rx="8" fill="#ffffff" stroke="#cfd8dc"/>'
    for left, title, under in (
        (_LEFT["server"], "MCP server", "mcptasks serve"),
        (_LEFT["worker"], "Celery worker", "celery -A server:celery worker"),
        (_STORE, "Redis or Valkey", "the truth: one script, one round trip"),
    ):
        yield _text(left, 36, title, 17, "bold")
        yield _text(left, 56, under, 12, fill="#546e7a")
    yield (
        f'<rect x="{_STORE - 10}" y="{_TOP - 16}" width="{_WIDTH - _STORE - 10}" height="{high - _TOP - 4}" rx="6" '
        'fill="#eceff1" stroke="#90a4ae"/>'
    )
    for number, step in enumerate(STEPS, 1):
        resolve(step.code)
        if step.script and step.script not in known:
            raise KeyError(f"the store has no script {step.script}")
        yield from _step(number, step)
    yield "</svg>\n"


def _step(number: int, step: Step) -> Iterator[str]:
    left, top = _LEFT[step.where], _TOP + (number - 1) * _ROW
    # Without the module where the class's name says enough: what one greps for.
    name = step.code.partition(":")[2] if "." in step.code.partition(":")[2] else step.code.replace(":", ".")
    numbered = "at any time" if step.where == "sweeper" else str(number)
    yield (
        f'<rect x="{left}" y="{top}" width="{_BOX}" height="{_HIGH}" rx="5" fill="{_FILL[step.where]}" '
        f'stroke="{_STROKE[step.where]}"/>'
    )
    prefix = f"{numbered}  " if step.where != "sweeper" else ""
    yield _text(left + 8, top + 20, prefix + name, 11.5, "bold", family="monospace")
    yield _text(left + 8, top + 38, step.after if prefix else f"{numbered}: {step.after}", 11, fill="#37474f")
    if step.script:
        middle = top + _HIGH / 2
        yield (
            f'<line x1="{left + _BOX}" y1="{middle}" x2="{_STORE - 2}" y2="{middle}" stroke="#546e7a" '
            'stroke-width="1.4" marker-end="url(#end)"/>'
        )
        yield _text(_STORE + 6, middle + 4, f"lua/{step.script}.lua", 12, "bold", family="monospace")


def _text(
    x: float, y: float, text: str, size: float, weight: str = "normal", *, fill: str = "#102027", family: str = ""
) -> str:
    extra = f' font-family="{family}"' if family else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}"{extra}>{escape(text)}</text>'
