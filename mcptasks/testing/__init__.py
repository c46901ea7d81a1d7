"""Durable tools in your own unit tests: no Redis, no Valkey, no Celery, and time that you move.

```python
from mcptasks import testing
from mcptasks.client import TasksClient
from server import mcp, tasks                          # your module, unchanged

async with testing.run(mcp, tasks) as world, world.client() as client:
    handle = await TasksClient.start(client, "deploy", {"version": "1.4"})
    await world.answer(handle, {"action": "accept", "content": {"approve": True}})
    await world.advance("2d")                          # sleeps, retries and time limits come due
    result = await handle.result()
```

What runs is the library itself; only the store is in this process's memory, and what carries messages and moves the
clock is made for tests. Needs the extra `testing`: `pip install 'mcptasks[testing]'`.
"""

try:
    import fakeredis as _fakeredis
    import lupa as _lupa
except ImportError as exc:
    raise ImportError(
        f"mcptasks.testing needs the extra `testing` ({exc.name} is missing): pip install 'mcptasks[testing]'",
        name=exc.name,
    ) from exc

from mcptasks.testing.world import World, run

__all__ = ["World", "run"]

del _fakeredis, _lupa
