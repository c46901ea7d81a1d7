"""The sample fleet's MCP server: `mcptasks serve workers.server:mcp`. Everything is built here once and passed down."""

from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from workers.tools import register

tasks = Tasks()
mcp = MCPServer(
    "mcptasks-samples",
    instructions=(
        "Tools that do real work in the background: index a folder, report on a CSV, crawl a local site, "
        "deploy a release or order supplies after a person approved it."
    ),
    extensions=[tasks],
)
register(mcp, tasks)
celery = tasks.bind(mcp)
