"""Signals that end a command, as KeyboardInterrupt: `with` blocks clean up after all of them alike."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | signal.Handlers

_TERMINATION: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupt_on_termination() -> Generator[None]:
    """Within the block SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, as Ctrl-C does.

    Each one does, so that whoever insists ends the clean-up too. One that this process was told to ignore (`nohup`)
    stays ignored.
    """

    def interrupt(_signum: int, frame: FrameType | None) -> None:
        # Whoever runs an event loop hears Ctrl-C as a cancel of its main task (asyncio's Runner): what is raised in the
        # midst of a loop may end in some callback, which nobody hears of.
        heard = signal.getsignal(signal.SIGINT)
        if callable(heard):
            heard(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    with _heeding(_TERMINATION) as heed:
        heed(interrupt)
        yield


@contextmanager
def interrupt_once() -> Generator[Callable[[], None]]:
    """Within the block the first of Ctrl-C, SIGTERM and SIGHUP raises KeyboardInterrupt in the main thread.

    Later ones are ignored, and so are all once the given function was called: a client that closed our input sends
    SIGTERM two seconds later, whatever we are doing, and it must not cost the runs the time to be given back.
    """
    with _heeding((signal.SIGINT, *_TERMINATION)) as heed:

        def interrupt(_signum: int, _frame: FrameType | None) -> None:
            heed(signal.SIG_IGN)
            raise KeyboardInterrupt

        heed(interrupt)
        yield lambda: heed(signal.SIG_IGN)


@contextmanager
def _heeding(signums: Iterable[signal.Signals]) -> Generator[Callable[[_Handler], None]]:
    """Gives a function that sets one handler for all of these that are not ignored. Afterwards they have their own."""
    before = {signum: signal.getsignal(signum) for signum in signums}
    heeded = {signum: handler for signum, handler in before.items() if handler is not signal.SIG_IGN}

    def heed(handler: _Handler) -> None:
        for signum in heeded:
            signal.signal(signum, handler)

    try:
        yield heed
    finally:
        for signum, handler in heeded.items():
            signal.signal(signum, handler)
