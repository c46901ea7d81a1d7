"""Durable tracking of tasks on remote MCP servers: the caller's side, on the same store and the same fleet."""
