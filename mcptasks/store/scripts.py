"""Loads `lua/*.lua` and binds each file's header: named keys and arguments, and a closed set of answers.

A header reads:

    -- What holds afterwards, in one sentence.
    --
    -- KEYS: task, leases
    -- ARGV: task_id, token, pairs...
    -- RETURNS: CLAIMED | GONE | HELD

A script that ended a task says so behind its answer (`told` in indexes.lua), for those who measure alone.

A name with `...` takes the rest; `k` holds the other keys by name, for the prelude's functions; `SCHEMA` is the version
of the records that this code writes. A call with a missing or extra name, and an answer that the header does not list,
are programming errors and raise at once. `indexes.lua` and
`prelude.lua` are put before every script.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from time import perf_counter
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from mcptasks.model import SCHEMA_VERSION

log: Final = logging.getLogger("mcptasks.store")

_FIELD: Final = re.compile(r"^-- (KEYS|ARGV|RETURNS):(.*(?:\n--   .*)*)", re.MULTILINE)
_REST: Final = "..."
#: What a script that ended a task says behind its answer: a word, and of the task.
_END_PARTS: Final = 2
#: What is put before every script, in this order.
SHARED: Final = ("indexes", "prelude")


@dataclass(frozen=True, slots=True)
class Script:
    """One transition: its Lua and the contract of its header."""

    name: str
    source: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    answers: frozenset[str]

    def bind(self, keys: dict[str, Any], args: dict[str, Any]) -> tuple[list[str], list[Any]]:
        """The positional lists for EVALSHA.

        Raises:
            TypeError: a name is missing or unknown.
        """
        return self._order("key", self.keys, keys), self._order("argument", self.args, args)

    def _order(self, kind: str, names: Sequence[str], given: dict[str, Any]) -> list[Any]:
        wanted = {name.removesuffix(_REST) for name in names}
        if wanted != given.keys():
            missing, extra = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
            raise TypeError(f"{self.name}.lua: {kind} names missing {missing}, unknown {extra}")
        out: list[Any] = []
        for name in names:
            value = given[name.removesuffix(_REST)]
            if name.endswith(_REST):
                out.extend(value)
            else:
                out.append("" if value is None else value)
        return out

    def check(self, reply: object) -> list[Any]:
        """The reply as a list whose first item is one of the header's words.

        Raises:
            RuntimeError: the script answered something its header does not list.
        """
        parts = cast("list[Any]", reply) if isinstance(reply, list) else [reply]
        if not parts or parts[0] not in self.answers:
            raise RuntimeError(f"{self.name}.lua answered {parts[:1]!r}, which its header does not list")
        return parts


def parse(name: str, text: str, prelude: str) -> Script:
    """The script with its header bound: every key and argument is a Lua local of that name; so are `k` and `SCHEMA`.

    Raises:
        ValueError: the header lacks KEYS, ARGV or RETURNS.
    """
    fields = {kind: " ".join(body.replace("\n--", " ").split()) for kind, body in _FIELD.findall(text)}
    if fields.keys() != {"KEYS", "ARGV", "RETURNS"}:
        raise ValueError(f"{name}.lua needs a header with KEYS, ARGV and RETURNS")
    keys = tuple(part.strip() for part in fields["KEYS"].split(",") if part.strip())
    args = tuple(part.strip() for part in fields["ARGV"].split(",") if part.strip())
    answers = frozenset(part.split()[0] for part in fields["RETURNS"].split("|"))
    named = ", ".join(f"{key} = {key}" for key in keys if not key.endswith(_REST))
    lines = [
        *(_local(n, "KEYS", i) for i, n in enumerate(keys, 1)),
        *(_local(n, "ARGV", i) for i, n in enumerate(args, 1)),
        f"local k = {{{named}}}",
        f"local SCHEMA = {SCHEMA_VERSION}",
    ]
    body = ["local function transition()", text, "end", "return told(transition())"]
    return Script(name, "\n".join([*lines, prelude, *body]), keys, args, answers)


def _local(name: str, table: str, position: int) -> str:
    if name.endswith(_REST):
        return f"local {name.removesuffix(_REST)} = {{unpack({table}, {position})}}"
    return f"local {name} = {table}[{position}]"


def texts(package: str) -> dict[str, str]:
    """Every Lua file of the package, by name."""
    folder = resources.files(package).joinpath("lua")
    return {
        entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".lua")
    }


def load() -> dict[str, Script]:
    """Every script of the store, by name."""
    own = texts("mcptasks.store")
    prelude = "\n".join(own.pop(name) for name in SHARED)
    return {name: parse(name, text, prelude) for name, text in own.items()}


SCRIPTS: Final = load()


@dataclass(frozen=True, slots=True)
class Ran:
    """One call of a script, as those see it who measure."""

    #: Of the tracker's own: `track.<name>`.
    name: str
    args: Mapping[str, Any]
    #: The answer; empty: the store gave none.
    reply: list[Any]
    seconds: float
    #: Tool (of the tracker: server), status, reason and age in ms of the task that it ended.
    ended: list[str] | None


#: Hear of every call of a script in this process that its caller waited for; they must be quick.
observers: Final[list[Callable[[Ran], None]]] = []
#: Those that have raised, which is told once.
_failed: Final[list[Callable[[Ran], None]]] = []


class Runner:
    """Runs scripts by name on one client; EVALSHA, and EVAL once where the server does not know the script."""

    def __init__(self, client: Redis, scripts: Mapping[str, Script] = SCRIPTS) -> None:
        self._client, self._scripts = client, scripts
        self._registered: dict[str, AsyncScript] = {n: client.register_script(s.source) for n, s in scripts.items()}

    async def run(self, name: str, keys: dict[str, Any], args: dict[str, Any]) -> list[Any]:
        """The script's answer, checked against its header."""
        script = self._scripts[name]
        positional_keys, positional_args = script.bind(keys, args)
        began, ended = perf_counter(), None
        try:
            reply = script.check(await self._registered[name](keys=positional_keys, args=positional_args))
        except Exception:  # not a caller's cancel, which says nothing of the store
            tell(Ran(script.name, args, [], perf_counter() - began, None))
            raise
        if len(reply) > _END_PARTS and reply[-_END_PARTS] == "ended":
            ended = reply.pop()
            reply.pop()
        tell(Ran(script.name, args, reply, perf_counter() - began, ended))
        return reply


def tell(ran: Ran) -> None:
    """Whoever measures has heard of the call."""
    for observe in list(observers):
        try:
            observe(ran)
        except Exception:  # the store has done it: who only measures must not make that a failure
            # Once: it would most likely say the same of every call.
            if observe not in _failed:
                _failed.append(observe)
                log.exception("What is measured of the store's calls is incomplete: %s failed", ran.name)
