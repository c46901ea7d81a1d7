"""The MCP Inspector (npm `@modelcontextprotocol/inspector`, see package.json), a client by other people, headless."""
