"""The operators' web page: all tasks, one of them, the inbox of open questions, and the fleet's door."""

from mcptasks.console.app import console_app
from mcptasks.console.options import ConsoleOptions

__all__ = ["ConsoleOptions", "console_app"]
