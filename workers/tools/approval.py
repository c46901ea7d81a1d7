"""Asking a person to approve something, and telling in words how it ended."""

from typing import NamedTuple

from mcp.server.mcpserver import AcceptedElicitation, Context, DeclinedElicitation
from pydantic import BaseModel, Field


class Approval(BaseModel):
    """What the person is asked to fill in."""

    approve: bool = Field(description="Yes: do it. No: do not.")
    note: str = Field(default="", description="For the record; may be empty")


class Verdict(NamedTuple):
    """The person's decision; `words` completes the sentence "The person ...", `note` is theirs."""

    approved: bool
    words: str
    note: str


async def ask_approval(ctx: Context, question: str) -> Verdict:
    """A person has approved, refused, declined to answer or dismissed the question."""
    answer = await ctx.elicit(question, Approval)
    match answer:
        case AcceptedElicitation(data=Approval(approve=True, note=note)):
            return Verdict(True, "approved", note)
        case AcceptedElicitation(data=Approval(note=note)):
            return Verdict(False, "refused", note)
        case DeclinedElicitation():
            return Verdict(False, "declined to answer", "")
        case _:
            return Verdict(False, "dismissed the question without an answer", "")
