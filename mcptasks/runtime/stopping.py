"""What becomes of the task of a run that was stopped."""

from __future__ import annotations

from mcp_types import INTERNAL_ERROR

from mcptasks.model import Reason
from mcptasks.policy import Policy
from mcptasks.runtime.outcome import Cancelled, End, Failed, Interrupted, Superseded, error
from mcptasks.runtime.watchdog import Decision, Do, Stop


def stopped(decision: Decision, tool: str, policy: Policy) -> End:
    """The end that the decision's reason is, for a tool that has stopped, or was left because it did not (-32603)."""
    match decision.reason:
        case Stop.LOST:
            return Superseded("LOST")
        case Stop.CANCEL:
            return Cancelled(Reason.CANCEL_TIMEOUT if decision.do is Do.LEAVE else Reason.CANCELLED)
        case Stop.WALL:
            # Celery's own soft limit (`soft_time_limit`) comes without one in the policy.
            own = policy.time_limit_ms
            limit = "its worker's time limit" if own is None else f"its time limit of {_s(own)}"
            return Failed(error(INTERNAL_ERROR, f"The tool {tool} ran into {limit}"), Reason.WALL_TIMEOUT)
        case Stop.IDLE:
            text = f"The tool {tool} made no progress for {_s(policy.idle_limit_ms or 0)}, its idle limit"
            return Failed(error(INTERNAL_ERROR, text), Reason.IDLE_TIMEOUT)
        case Stop.SHUTDOWN:
            return Interrupted()
        case None:
            return Failed(error(INTERNAL_ERROR, f"The tool {tool} cancelled itself"))


def _s(ms: int) -> str:
    return f"{ms / 1000:g} s"
