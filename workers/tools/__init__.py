"""The sample tools and, in one place, how durable each of them is."""

from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from workers.tools.crawl import crawl_site
from workers.tools.deploy import deploy_release
from workers.tools.files import index_files
from workers.tools.reports import csv_report
from workers.tools.supplies import order_supplies
from workers.tools.words import word_count

__all__ = [
    "crawl_site",
    "csv_report",
    "deploy_release",
    "index_files",
    "order_supplies",
    "register",
    "word_count",
]


def register(mcp: MCPServer, tasks: Tasks) -> None:
    """`mcp` offers the six sample tools; a client that knows tasks gets five of them as durable tasks."""
    mcp.tool()(word_count)  # over before a task for it would be stored
    mcp.tool()(tasks.durable(ttl="24h", time_limit="15m", cancel_grace="5s")(index_files))
    mcp.tool()(tasks.durable(ttl="24h", time_limit="5m")(csv_report))
    mcp.tool()(tasks.durable(ttl="24h", time_limit="15m", cancel_grace="5s")(crawl_site))
    # People answer within the hour or after the weekend: the answer must still find its task.
    mcp.tool()(tasks.durable(ttl="7d", time_limit="5m")(deploy_release))
    # Required: only a task remembers that a step was done when the connection or the worker is lost half-way.
    mcp.tool()(tasks.durable(mode="required", ttl="7d", time_limit="5m")(order_supplies))
