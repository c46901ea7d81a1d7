"""Remote servers as the ecosystem writes them down: the `mcpServers` of a JSON file, with our own settings beside.

Texts may hold `${VAR}` or `${VAR:-default}`. They are put in when a server is first used, so that a variable that is
missing costs its own server only; nothing of them is shown in a message, a log line or a repr.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mcptasks.errors import ConfigurationError
from mcptasks.settings import MIB
from mcptasks.times import duration_ms
from mcptasks.tracker.drivers.triple import Triple

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?|")

#: How the ecosystem spells streamable HTTP.
_HTTP: Final = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})


def _timeout(value: object) -> object:
    try:
        return duration_ms(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else value
    except ConfigurationError as exc:
        raise ValueError(str(exc)) from exc  # pydantic puts the setting's name to a ValueError, and to nothing else


class Speaking(BaseModel):
    """Our own settings of one server, under its key `mcptasks`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    #: auto: by what the server advertises; tasks: the extension of 2026-07-28; core-2025-11-25: the tasks of that
    #: version's core; triple: ordinary tools that submit, tell the status, and cancel.
    driver: Literal["auto", "tasks", "core-2025-11-25", "triple"] = "auto"
    #: With driver "triple".
    triple: Triple | None = None
    #: Requests that one process may have open at the server at a time.
    max_concurrency: int = Field(default=8, ge=1, le=1_000)
    #: Requests per second that one process may begin, evenly spread; None: no limit but the one above.
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: For a request and its whole answer, and as long for its turn before; seconds as a number, or text such as "30s".
    #: Below what the tracker gives a call, so that it is seldom in doubt whether a call was sent.
    timeout_ms: Annotated[int, BeforeValidator(_timeout), Field(alias="timeout", gt=0)] = 20_000
    #: The server gives the same task to the same idempotency key, as mcptasks' own do: a submit whose answer was lost
    #: is then sent again by itself.
    honours_key: bool = False
    #: What the server's tasks may ask, as it is told.
    questions: tuple[Literal["elicitation", "sampling", "roots"], ...] = ("elicitation",)
    #: Bytes of one answer; of a program, of one line.
    body_max: int = Field(default=8 * MIB, ge=1_024)

    @model_validator(mode="after")
    def _has_its_triple(self) -> Self:
        if (self.driver == "triple") != (self.triple is not None):
            raise ValueError('driver "triple" and the setting `triple` go together')
        return self


class ServerEntry(BaseModel):
    """One entry of `mcpServers`. What other programs keep there besides is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    type: str | None = None
    url: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    command: str | None = Field(default=None, repr=False)
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    cwd: str | None = Field(default=None, repr=False)
    mcptasks: Speaking = Speaking()

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either `url` (HTTP) or `command` (a program on this machine)")
        if self.type is not None and self.type not in (_HTTP if self.url is not None else {"stdio"}):
            raise ValueError(f"type {self.type!r} is not spoken here; `url` goes with http, `command` with stdio")
        return self


def load(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, ServerEntry]:
    """The servers of a file, or of what was read from one: an object with `mcpServers`.

    Raises:
        ConfigurationError: there is no such file, or it does not say what it must; names the server and the setting.
    """
    where = "the servers" if isinstance(source, Mapping) else str(os.fspath(source))
    document: object = source if isinstance(source, Mapping) else _read(Path(source))
    entries = document.get("mcpServers") if isinstance(document, Mapping) else None
    if not isinstance(entries, Mapping):
        raise ConfigurationError(f'{where}: there is no object "mcpServers" at the top')
    servers: dict[str, ServerEntry] = {}
    for name, entry in cast("Mapping[str, Any]", entries).items():
        try:
            servers[name] = ServerEntry.model_validate(entry)
        except ValidationError as exc:
            raise ConfigurationError(f"{where}: server {name!r}: {_said(exc)}") from None  # it holds the input
    return servers


def filled(name: str, entry: ServerEntry, environment: Mapping[str, str]) -> ServerEntry:
    """The entry with the environment's values in the place of its references.

    Raises:
        ConfigurationError: a variable is missing, or the text is no URL or header then; names the server, the setting
            and the variable, and no value.
    """

    def fill(where: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            variable, default = match.groups()
            found = environment.get(variable)
            if default is not None and not found:  # empty is missing where there is a default, as in a shell
                found = default
            if found is None:
                raise ConfigurationError(
                    f"Server {name!r}: the environment has no {variable}, which {where} names. "
                    f"Set it, or give a default: ${{{variable}:-...}}"
                )
            return found

        return _VARIABLE.sub(value, text)

    url = None if entry.url is None else fill("url", entry.url)
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"Server {name!r}: url does not begin with http:// or https://")
    headers = {key: fill(f"headers.{key}", text) for key, text in entry.headers.items()}
    for key, text in headers.items():
        if not _HEADER.fullmatch(text):
            raise ConfigurationError(f"Server {name!r}: headers.{key} holds what no header can, such as a line break")
    return entry.model_copy(
        update={
            "url": url,
            "headers": headers,
            "command": None if entry.command is None else fill("command", entry.command),
            "args": tuple(fill(f"args[{n}]", text) for n, text in enumerate(entry.args)),
            "env": {key: fill(f"env.{key}", text) for key, text in entry.env.items()},
            "cwd": None if entry.cwd is None else fill("cwd", entry.cwd),
        }
    )


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigurationError(f"{path}: cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8") from None
    except json.JSONDecodeError as exc:
        raise ConfigurationError(f"{path}: is no JSON: {exc.msg}, line {exc.lineno}, column {exc.colno}") from None


def _said(exc: ValidationError) -> str:
    """Which settings are wrong and why, without what they are."""
    texts = [(".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")) for error in exc.errors()]
    return "; ".join(f"{where}: {text}" if where else text for where, text in texts)
