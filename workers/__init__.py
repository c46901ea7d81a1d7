"""This repository's own fleet: real tools, the MCP server and the Celery app that the Procfile runs."""
