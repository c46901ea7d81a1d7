"""The MCP server's side: turns a tools/call into a task and serves tasks/*."""
