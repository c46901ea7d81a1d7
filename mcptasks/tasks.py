"""`Tasks`, the one object a user makes: decorator, extension, and `bind()` to a Celery app. Wires, holds no logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mcptasks import seams
from mcptasks.dispatch import Publisher
from mcptasks.errors import ConfigurationError
from mcptasks.fleet.app import App, make_app, serve_tasks
from mcptasks.fleet.portal import Portal
from mcptasks.model import Duration
from mcptasks.policy import Mode, ModePicker, attach, check_ttl, make_policy, policy_of
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
        self.config = settings or Settings()
        super().__init__(TaskStore(self.config), owner)
        self.app: App | None = None

    def durable(
        self,
        *,
        mode: Mode | str | ModePicker = Mode.OPTIONAL,
        ttl: Duration | None = None,
        unlimited: bool = False,
        queue: str | None = None,
        time_limit: Duration | None = None,
        cancel_grace: Duration | None = None,
        hold: Duration | None = None,
        max_attempts: int = 3,
        on_worker_lost: str = "rerun",
        retry: Sequence[Duration] = (),
        prelude: bool = False,
    ) -> Callable[[F], F]:
        """The function, registered below as a tool, runs as a durable task. The function itself is unchanged.

        Args:
            mode: "optional" (a task when the client declared the extension), "required", "forbidden", or a function of
                (call params, owner) that returns one of these per call.
            ttl: how long the task stays readable, from its creation and again from its end. Default: the settings'.
            unlimited: the task is never removed by time.
            queue: the Celery queue. Default: the settings'.
            time_limit: wall-clock limit of one run; waiting for a person does not count. Default: none.
            cancel_grace: how long a run may take to stop after a cancel before the task is settled without it, and
                after its time limit (there the default is 5 s).
            hold: how long a run that asked something keeps its worker for the answers, over all its questions, before
                it parks. Default: 0.
            max_attempts: runs that may be lost to dying workers before the task fails as `worker_lost`.
            on_worker_lost: "rerun" (within `max_attempts`), or "fail" on the first loss, for tools that must never
                begin twice.
            retry: delays of the retries that the tool may ask for with `raise Retry(...)`, for instance [1, 5, 30] or
                `exponential(1, 5)`. Lost workers, cancels and ordinary errors do not use them up.
            prelude: questions that the tool asks by returning them are settled on the request itself, first. The first
                round then runs in the server process.

        Raises:
            ConfigurationError: an option makes no sense, or two contradict each other.
        """
        policy = make_policy(
            mode=mode,
            ttl=ttl,
            unlimited=unlimited,
            queue=queue,
            time_limit=time_limit,
            cancel_grace=cancel_grace,
            hold=hold,
            max_attempts=max_attempts,
            on_worker_lost=on_worker_lost,
            retry=retry,
            prelude=prelude,
        )
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
        dispatcher = Publisher(self.app, broker_is_store=self.config.broker == self.config.redis_url)
        policies = (policy_of(tool.fn) for tool in seams.tools(mcp))
        queues = {policy.queue for policy in policies if policy is not None and policy.queue is not None}
        serve_tasks(self.app, Portal(self.config, mcp, dispatcher), sorted({self.config.queue, *queues}))
        self.serve(mcp, dispatcher)
        return self.app
