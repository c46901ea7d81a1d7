"""TARGET, spelled `module:attribute` as uvicorn spells it: which MCP server a command is about."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any, Final

from mcptasks.errors import ConfigurationError

DEFAULT_ATTRIBUTE: Final = "mcp"
CELERY_ATTRIBUTES: Final = ("celery", "app")
EXAMPLE: Final = "for example workers.server:mcp"
NAMES_SHOWN: Final = 5


def load_target(target: str) -> object:
    """The object that `module:attribute` names; its module has been imported, with the working directory on sys.path.

    The attribute is `mcp` when left out, and may be dotted (`module:holder.mcp`).

    Raises:
        ConfigurationError: it is misspelled, is not there, or its module fails to import; the message says which.
    """
    module_name, attribute = _split(target)
    found: object = _import(module_name)
    holder = module_name
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"{holder} has no {name}. {_suggestion(found, name)}")
        found = getattr(found, name)
        holder = f"{holder}.{name}"
    return found


def load_server(target: str) -> Any:
    """The MCPServer that `module:attribute` names.

    Raises:
        ConfigurationError: as `load_target`, or it is something else.
    """
    mcp = load_target(target)
    # Told by what it can do: the command line does not know the SDK.
    if not callable(getattr(mcp, "streamable_http_app", None)):
        raise ConfigurationError(f"{target} is a {type(mcp).__name__}, not an MCPServer")
    return mcp


def celery_target(target: str) -> str:
    """What `celery -A` needs to run the workers of the server that TARGET names: `module:celery` or `module:app`.

    Raises:
        ConfigurationError: as `load_target`, or the module keeps no Celery app.
    """
    module_name, _ = _split(target)
    module = _import(module_name)
    for name in CELERY_ATTRIBUTES:
        # Told by what it can do: only fleet and dispatch may import Celery.
        if callable(getattr(getattr(module, name, None), "worker_main", None)):
            return f"{module_name}:{name}"
    raise ConfigurationError(
        f"{module_name} keeps no Celery app for its workers. Write `celery = tasks.bind(mcp)` at its end, "
        "where `tasks` is its Tasks() and `mcp` its server."
    )


def _split(target: str) -> tuple[str, str]:
    if not target.strip():
        raise ConfigurationError(f"TARGET is empty; write module:attribute, {EXAMPLE}.")
    if "/" in target or target.partition(":")[0].endswith(".py"):
        raise ConfigurationError(
            f"TARGET {target!r} looks like a file; write its module with dots and without .py, {EXAMPLE}."
        )
    module, colon, attribute = target.partition(":")
    names = f"{module}.{attribute if colon else DEFAULT_ATTRIBUTE}".split(".")
    if not all(name.isidentifier() for name in names):
        raise ConfigurationError(f"TARGET {target!r} is not of the form module:attribute, {EXAMPLE}.")
    return module, attribute if colon else DEFAULT_ATTRIBUTE


def _import(name: str) -> ModuleType:
    # A console script's sys.path begins with its own folder, not with the user's project.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise ConfigurationError(
            f"There is no module {error.name} in {here} or elsewhere on sys.path; TARGET names {name}."
        ) from error
    except (Exception, SystemExit) as error:
        # SystemExit: a script that ran instead of being imported.
        raise _broken(name, error) from error


def _broken(module: str, error: BaseException) -> ConfigurationError:
    # What the import machinery and this module put on the stack is not where the fault is; a syntax error has no more.
    ours = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen")
    ]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return ConfigurationError(f"Importing {module} failed: {type(error).__name__}: {error}{place}")


def _suggestion(holder: object, name: str) -> str:
    public = [other for other in dir(holder) if not other.startswith("_")]
    if close := difflib.get_close_matches(name, public, n=NAMES_SHOWN):
        return f"Did you mean {' or '.join(close)}?"
    more = ["..."] if len(public) > NAMES_SHOWN else []
    return f"It has: {', '.join(public[:NAMES_SHOWN] + more) or 'nothing'}"
