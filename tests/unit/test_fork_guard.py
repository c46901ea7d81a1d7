"""A worker forks its children only while no thread of ours is inside kombu: a child would inherit kombu's locks locked.

Each thread is caught inside by a broker that takes the connection and answers nothing.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

#: Forks, in a process of its own, while a thread of ours waits for that broker; prints what happened, in order.
PROGRAM = """
    import os, socket, threading
    from types import SimpleNamespace

    from mcptasks.dispatch import Publisher
    from mcptasks.fleet.app import make_app
    from mcptasks.fleet.portal import Portal
    from mcptasks.fleet.pulse import Pulse
    from mcptasks.model import Hint
    from mcptasks.settings import Settings

    broker = socket.create_server(("127.0.0.1", 0))
    settings = Settings(redis_url=f"redis://127.0.0.1:{broker.getsockname()[1]}/0")
    app, hint = make_app(settings), Hint(task_id="t", run=1, tool="report", queue=settings.queue)
    worker, portal = SimpleNamespace(hostname="w@test", concurrency=1), Portal(settings, None, None)


    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print("forked", flush=True)


    ENTER
    inside, _ = broker.accept()
    forking = threading.Thread(target=fork)
    forking.start()
    # Long for a fork. One that does not wait is over by now, and is printed first.
    forking.join(2)
    print("the thread leaves", flush=True)
    broker.close()
    inside.close()
    forking.join()
    os._exit(0)
"""

#: What sends a thread of ours to the broker.
ENTERS = {
    "the publisher sends a message": "Publisher(app, broker_is_store=False).send(hint)",
    "the publisher opens its channel": "Publisher(app, broker_is_store=True).envelope(hint)",
    "the pulse counts the messages that wait": "Pulse(settings, app, worker, [settings.queue], portal).start()",
}


@pytest.mark.parametrize("enter", ENTERS.values(), ids=ENTERS)
def test_a_fork_waits_until_no_thread_of_ours_is_inside_kombu(enter: str) -> None:
    """The child would hang in kombu's own after-fork clean-up, and its worker would never go down."""
    program = textwrap.dedent(PROGRAM).replace("ENTER", enter)
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["the thread leaves", "forked"], done.stderr
