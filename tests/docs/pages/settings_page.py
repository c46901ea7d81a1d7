"""`docs/settings.md`, made from the settings classes: their fields, and the `#:` comments above these."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

import mcptasks
from mcptasks.settings import GIB, KIB, MIB, Settings

PACKAGE: Final = Path(mcptasks.__file__).parent

#: The first field of each part of the page, and the part's title. `Settings` alone is long enough to need parts.
_PARTS: Final = {
    "redis_url": "Store and broker",
    "ttl_ms": "What clients are told",
    "lease_ms": "Leases, messages, timers",
    "arguments_max": "Sizes",
    "artifacts_url": "Artifacts",
    "replays_max": "Limits on tasks",
    "listen_max": "Listening",
    "headers": "Callers and secrets",
    "undeclared": "Clients that know no tasks",
    "store_timeout_ms": "Processes",
}

_EVERY: Final = "all"
_SERVER, _WORKER = "server", "worker"
#: Which process a setting matters to, where it is not all of them. Operators' commands read what servers do.
_READERS: Final = {
    **dict.fromkeys(("ttl_ms", "poll_ms", "poll_parked_ms", "arguments_max", "answer_max"), _SERVER),
    **dict.fromkeys(("artifact_read_max", "owner_max", "tool_max", "queue_max"), _SERVER),
    **dict.fromkeys(("listen_max", "listeners_max", "push_progress_ms", "headers", "keep_token"), _SERVER),
    **dict.fromkeys(("strict_mcp_name", "undeclared", "bridge_wait_ms", "bridge_rounds"), _SERVER),
    "request_state_keys": _SERVER,
    **dict.fromkeys(("lease_ms", "renew_ms", "sweep_ms", "countdowns_ms", "countdown_budget"), _WORKER),
    **dict.fromkeys(("deferrals_ms", "result_inline_max", "questions_max"), _WORKER),
    **dict.fromkeys(("artifact_max", "artifacts_total_max", "artifacts_max", "replays_max"), _WORKER),
    **dict.fromkeys(("shutdown_grace_ms", "flower"), _WORKER),
    **dict.fromkeys(("resend_ms", "result_max"), f"{_SERVER}, {_WORKER}"),
}
#: Whole classes that only some processes read, by the beginning of their variables' names.
_CLASSES: Final = {
    "MCPTASKS_TRACK_": "submitters, trackers",
    "MCPTASKS_CONSOLE_": "console",
}

#: What is read from the environment without a settings class.
OTHERS: Final = {
    "MCPTASKS_OPERATOR": "Who an operator's command says did it, in reasons and timelines; else the login.",
}

_HEAD: Final = """\
# Settings

<!-- Generated from the settings classes by `make docs`; do not edit. -->

Here you find every variable that mcptasks reads: its type, its default, its range, and who reads it. They
are read once, when a process makes its `Tasks()` (or `Tracker`), and none changes while it runs. A value that cannot be
read, or two that contradict each other, end a command with exit code 2 and the variable's name.

- A **duration** is milliseconds as a whole number, or text with a unit: `500ms`, `90s`, `15m`, `24h`, `7d`, `1h30m`.
- **Bytes** are a whole number.
- A **list** is JSON, such as `[2000, 5000]`; where "by commas" is said, plain text with commas.
- A **secret** is never printed, logged or shown; the page says only whether there is one by default.

Give all processes of a fleet the same values, except where one is meant for a single kind of process.
What a tool can set for itself (`ttl`, `queue`, `time_limit`, ...) is an argument of `@tasks.durable()`.
"""


@cache
def settings_classes() -> list[type[BaseSettings]]:
    """Every class of the package that reads `MCPTASKS_*`, `Settings` first."""
    found: list[type[BaseSettings]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if 'env_prefix="MCPTASKS_' not in path.read_text():
            continue
        module = import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseSettings) and value.__module__ == module.__name__:
                found.append(value)
    return sorted(found, key=lambda one: (one is not Settings, one.model_config.get("env_prefix", "")))


@cache
def names() -> frozenset[str]:
    """The names of all variables that the page tells of."""
    return frozenset({_name(cls, field) for cls in settings_classes() for field in cls.model_fields} | set(OTHERS))


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for cls in settings_classes():
        yield from _class(cls)
    yield from ("## Others", "", "| variable | what it does |", "|---|---|")
    yield from (f"| `{name}` | {text} |" for name, text in OTHERS.items())
    yield ""


def _class(cls: type[BaseSettings]) -> Iterator[str]:
    described, prefix = _described(cls), cls.model_config.get("env_prefix", "")
    if cls is not Settings:
        yield from (f"## `{prefix}*`", "", (inspect.getdoc(cls) or "").split("\n")[0], "")
    first = True
    for name, field in cls.model_fields.items():
        if cls is Settings and name in _PARTS:
            yield from ("", f"## {_PARTS[name]}", "")
            first = True
        if first:
            yield from ("| variable | type and range | default | read by | what it does |", "|---|---|---|---|---|")
            first = False
        default, text = described[name]
        kind = ", ".join(part for part in (_type(field, default), _range(field, name)) if part)
        cells = (kind.replace("one of, ", "one of "), _default(field, default), _reader(cls, name), text)
        yield f"| `{_name(cls, name)}` | {' | '.join(cells)} |"
    yield ""


def _described(cls: type[BaseSettings]) -> dict[str, tuple[str, str]]:
    """Of each field its default as it is written, and its comment.

    Raises:
        ValueError: a field has no comment.
    """
    source = inspect.getsource(cls)
    lines, found = source.splitlines(), dict[str, tuple[str, str]]()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        comment: list[str] = []
        above = node.lineno - 2
        while lines[above].strip().startswith("#:"):
            comment.insert(0, lines[above].strip().removeprefix("#:").strip())
            above -= 1
        if not comment:
            raise ValueError(f"{cls.__name__}.{node.target.id} has no `#:` comment that says what it does")
        text = re.sub(r"docs/([a-z-]+\.md)", r"[\1](\1)", " ".join(comment)).replace("|", "\\|")
        found[node.target.id] = (ast.unparse(node.value) if node.value else "", text)
    return found


def _name(cls: type[BaseSettings], field: str) -> str:
    return f"{cls.model_config.get('env_prefix', '')}{field}".upper()


def _reader(cls: type[BaseSettings], name: str) -> str:
    for prefix, who in _CLASSES.items():
        if _name(cls, name).startswith(prefix):
            return who
    return _READERS.get(name, _EVERY)


def _type(field: FieldInfo, default: str) -> str:
    text, written = str(field.annotation), repr(field.metadata)
    if "SecretStr" in text:
        return "secrets, by commas" if "tuple" in text else "secret"
    if "duration" in written or "_duration" in text:
        return "list of durations" if "tuple" in text else "duration"
    if "tuple" in text:
        return "names, by commas" if "NoDecode" in written else "list"
    if _choices(field):
        return "one of"
    if any(unit in default for unit in ("KIB", "MIB", "GIB")):
        return "bytes"
    return {str: "text", int: "number", bool: "true or false", float: "number"}.get(_plain(field), "text")


def _plain(field: FieldInfo) -> Any:
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    return kinds[0] if kinds else field.annotation


def _choices(field: FieldInfo) -> list[str]:
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    return [str(one.value) for one in kind] if isinstance(kind, type) and issubclass(kind, StrEnum) else []


def _range(field: FieldInfo, name: str) -> str:
    if choices := _choices(field):
        return ", ".join(f"`{one}`" for one in choices)
    for bound in field.metadata:
        if isinstance(bound, annotated_types.Interval | annotated_types.Gt | annotated_types.Ge | annotated_types.Le):
            ends = [(getattr(bound, which, None), sign) for which, sign in _BOUNDS]
            return ", ".join(f"{sign} {end}" for end, sign in ends if end is not None)
    return "over 0" if name.endswith("_ms") else ""


_BOUNDS: Final = (("gt", "over"), ("ge", "from"), ("lt", "below"), ("le", "to"))


def _default(field: FieldInfo, default: str) -> str:
    value: Any = field.get_default(call_default_factory=True) if not field.is_required() else None
    kind = _type(field, default)
    if value is None or value == "" or value == ():
        return "none"
    if kind == "names, by commas":
        return "`" + ",".join(str(one) for one in value) + "`"
    if kind == "duration":
        return f"`{_duration(value)}`"
    if kind == "list of durations":
        return "`" + ", ".join(_duration(one) for one in value) + "`"
    if kind == "bytes":
        unit, size = next((name, size) for name, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if value >= size)
        return f"{value // size} {unit} (`{value}`)"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _duration(value_ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if value_ms % size == 0 and not (unit == "d" and value_ms == size):
            return f"{value_ms // size}{unit}"
    return f"{value_ms}ms"
