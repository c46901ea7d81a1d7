"""`Tasks`, the one object a user makes: decorator, extension, and `bind()` to a Celery app. Wires, holds no logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from mcptasks import seams
from mcptasks.dispatch import Publisher
from mcptasks.errors import ConfigurationError
from mcptasks.fleet.app import App, make_app, serve_tasks
from mcptasks.fleet.portal import Portal
from mcptasks.policy import PolicyOptions, attach, check_ttl, make_policy, policy_of
from mcptasks.server.extension import TasksExtension
from mcptasks.server.owner import OwnerOf, token_owner
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

F = TypeVar("F", bound=Callable[..., Any])


class Tasks(TasksExtension):
    """Durable tasks for one MCP server.

    ```python
    tasks = Tasks()                                    # settings from MCPTASKS_*
    mcp = MCPServer("reports", extensions=[tasks])

    @mcp.tool()
    @tasks.durable(time_limit="15m")
    async def build_report(topic: str, ctx: Context) -> str: ...

    celery = tasks.bind(mcp)                           # celery -A server:celery worker
    ```

    `owner` maps a request to its caller's stable identity; by default the access token's client, issuer and subject.
    """

    def __init__(self, settings: Settings | None = None, *, owner: OwnerOf = token_owner) -> None:
        #: What MCPTASKS_* said. (`settings` is the name of what an extension advertises, which is nothing here.)
        self.config = settings or Settings.load()
        super().__init__(TaskStore(self.config), owner)
        self.app: App | None = None

    def durable(self, **options: Unpack[PolicyOptions]) -> Callable[[F], F]:
        """The function, registered below as a tool, runs as a durable task. The function itself is unchanged.

        `PolicyOptions` says what each option does.

        Raises:
            ConfigurationError: an option is unknown, makes no sense, or two contradict each other.
        """
        policy = make_policy(**options)
        check_ttl(policy, self.config.ttl_ms)

        def decorate(fn: F) -> F:
            attach(fn, policy)
            return fn

        return decorate

    def bind(self, mcp: Any) -> App:
        """The server's durable tools run on the returned Celery app. Call it once, after the tools are registered.

        Raises:
            ConfigurationError: it was called before, or the server was made without this object among its extensions.
        """
        if self.app is not None:
            raise ConfigurationError("tasks.bind() was called before; one Tasks object serves one server")
        if not self.installed:
            raise ConfigurationError("the server does not have this object: MCPServer(..., extensions=[tasks])")
        self.app = make_app(self.config)
        dispatcher = Publisher(self.app, broker_is_store=self.config.broker_is_store)
        policies = (policy_of(tool.fn) for tool in seams.tools(mcp))
        queues = {policy.queue for policy in policies if policy is not None and policy.queue is not None}
        serve_tasks(self.app, Portal(self.config, mcp, dispatcher), sorted({self.config.queue, *queues}))
        self.serve(mcp, dispatcher)
        return self.app
