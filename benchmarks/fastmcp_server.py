# pyright: basic, reportMissingImports=false
# It runs in `.venv-fastmcp`, which pyright does not look into.
"""The other system: FastMCP's tasks on Docket, with the tools of `benchmarks.ours`, written as its documentation says.

`ask` returns an `InputRequiredResult` where ours awaits `ctx.elicit()`: FastMCP refuses `ctx.elicit()` inside a task.
Backend and slots come from `FASTMCP_DOCKET_*`. Run as a script it serves streamable HTTP on the port in its first
argument; its worker is `python -m fastmcp_tasks.worker_cli worker THIS_FILE`.
"""

import sys

from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

mcp = FastMCP("bench")
mcp.add_extension(TasksExtension())


@mcp.tool(task=True)
async def add(a: int, b: int) -> int:
    return a + b


@mcp.tool
async def plain_add(a: int, b: int) -> int:
    return a + b


@mcp.tool(task=True)
async def ask(ctx: Context) -> str | InputRequiredResult:
    answers = ctx.input_responses
    if answers is None:
        schema = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
        question = ElicitRequest(params=ElicitRequestFormParams(message="Which?", requested_schema=schema))
        return InputRequiredResult(input_requests={"value": question})
    answer = answers["value"]
    if not isinstance(answer, ElicitResult) or answer.action != "accept" or answer.content is None:
        return "nothing"
    return str(answer.content["value"])


if __name__ == "__main__":
    mcp.run(
        transport="http",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        show_banner=False,
        uvicorn_config={"access_log": False},
    )
