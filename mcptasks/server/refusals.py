"""What a caller is told when its request cannot be done: the store's and the fleet's words as protocol errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from mcptasks.errors import BadPayload, SchemaTooNew, Sealed, StoreUnavailable, TooLarge
from mcptasks.store.callers import Refused
from mcptasks.wire import EXTENSION

log: Final = logging.getLogger("mcptasks.server")

T = TypeVar("T")

#: A frozen store may do what it was sent once it thaws, so the text cannot say that nothing was done.
_AWAY: Final = "The task store is not available; try again. With an idempotency key a repeated call is one call."
#: Between two attempts.
_AWAY_S: Final = 0.5

#: One text for a task that never was, is gone, or is somebody else's (protocol.md P60): the difference is nobody's.
_NOT_FOUND: Final = "Failed to retrieve task: Task not found"


def not_found() -> MCPError:
    """-32602 for a task that is not there for this caller."""
    return MCPError(INVALID_PARAMS, _NOT_FOUND)


def turned_away(answer: Refused) -> MCPError:
    """-32603 for a call that the fleet does not take now; nothing was stored."""
    texts = {
        "closed": f"New tasks are not accepted now: {answer.detail}",
        "owner": f"You have {answer.detail} unfinished tasks, which is the limit; call again when one has ended",
        "tool": f"This tool has {answer.detail} unfinished tasks, which is the limit; call again later",
        "queue": f"{answer.detail} tasks wait for a worker, which is the limit; call again later",
    }
    return MCPError(INTERNAL_ERROR, texts[answer.what], {"mcptasks/refused": answer.what})


def undeclared(ctx: ServerRequestContext[Any, Any]) -> MCPError:
    """-32021 for a call that is to be a task and did not declare the extension.

    Also for an older client that smuggled the declaration into its `initialize`.
    """
    try:
        require_client_extension(ctx, EXTENSION)
    except MCPError as exc:
        return exc
    return MCPError(INVALID_PARAMS, "This tool runs only as a task, which needs protocol version 2026-07-28 or later")


async def answering(transition: Callable[[], Awaitable[T]], *, patience_s: float = 0) -> T:
    """The store's answer; its errors become the protocol's, with what the caller can do, not with our insides.

    `patience_s`: a store that does not answer is asked again for so long. Only for what may be done twice.

    Raises:
        MCPError: -32603, the store does not answer, or the task is of a newer mcptasks or sealed with a key that is not
            here; -32602, a payload was refused.
    """
    deadline = anyio.current_time() + patience_s
    while True:
        try:
            return await transition()
        except StoreUnavailable as exc:
            if anyio.current_time() >= deadline:
                log.error("%s", exc)
                raise MCPError(INTERNAL_ERROR, _AWAY) from exc
        except (SchemaTooNew, Sealed) as exc:
            log.error("%s", exc)
            raise MCPError(INTERNAL_ERROR, str(exc)) from exc
        except (TooLarge, BadPayload) as exc:
            raise MCPError(INVALID_PARAMS, str(exc)) from exc
        await anyio.sleep(_AWAY_S)
