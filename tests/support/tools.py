"""Tools that several test modules register: they ask, in each of the styles that the SDK has."""

from __future__ import annotations

import asyncio
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent
from pydantic import BaseModel, Field


class Word(BaseModel):
    """What the tools ask for."""

    word: str = Field(min_length=1, max_length=20)


async def ask_first(ctx: Context) -> str:
    """Asks in line, once."""
    answer = await ctx.elicit("Which word?", Word)
    return f"{answer.action}: {answer.data.word}" if answer.action == "accept" else answer.action


async def ask_both(ctx: Context) -> str:
    """Asks two things at once."""
    left, right = await asyncio.gather(ctx.elicit("Left?", Word), ctx.elicit("Right?", Word))
    words = [answer.data.word if answer.action == "accept" else answer.action for answer in (left, right)]
    return " ".join(words)


async def ask_twice(ctx: Context) -> str:
    """Asks the very same thing twice, one after the other."""
    first = await ctx.elicit("Again?", Word)
    second = await ctx.elicit("Again?", Word)
    words = [answer.data.word if answer.action == "accept" else answer.action for answer in (first, second)]
    return " ".join(words)


def which_word() -> Elicit[Word]:
    """The question of `ask_by_resolver`."""
    return Elicit("Which word?", Word)


async def ask_by_resolver(suffix: str, word: Annotated[Word, Resolve(which_word)]) -> str:
    """Asks through a parameter that the client's answer fills."""
    return word.word + suffix


async def ask_by_returning(suffix: str, ctx: Context) -> CallToolResult | InputRequiredResult:
    """Asks by returning its question, and counts its rounds in the state that it gets back."""
    responses = ctx.input_responses or {}
    if "word" not in responses:
        form = ElicitRequestFormParams(message="Which word?", requested_schema=Word.model_json_schema())
        return InputRequiredResult(input_requests={"word": ElicitRequest(params=form)}, request_state="round-1")
    content = getattr(responses["word"], "content", None) or {}
    text = f"{content.get('word')}{suffix} after {ctx.request_state}"
    return CallToolResult(content=[TextContent(type="text", text=text)])
