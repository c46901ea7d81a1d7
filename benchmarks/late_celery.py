"""Bare Celery as its documentation makes a job survive its worker: `acks_late`, and everything else as it comes.

The broker is Redis or Valkey with Celery's own acknowledgements: a message that a dead worker held is given to another
one at the first sweep after its visibility timeout.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from celery import Celery
from kombu.transport.redis import Channel

from benchmarks.long_job import note_start, released

#: What a job may take, measured from its delivery, before it is given to another worker: Celery's default.
DEFAULT_VISIBILITY_S: Final = int(Channel.visibility_timeout)
#: How often a worker looks for such jobs, by default.
SWEEP_S: Final = int(Channel.unacked_restore_interval * Channel.unacked_restore_throttle)

BROKER, VISIBILITY = "RECOVERY_BROKER", "RECOVERY_VISIBILITY_S"
TASK_NAME: Final = "long_job"


def late_app(broker: str, visibility_s: int) -> Celery:
    """A Celery app with one task, `long_job`."""
    late = Celery("late", broker=broker, set_as_current=False)
    late.conf.broker_transport_options = {"visibility_timeout": visibility_s}
    late.task(name=TASK_NAME, acks_late=True, ignore_result=True)(_long_job)
    return late


def worker_command(name: str) -> list[str]:
    """The command line of a worker with that node name; BROKER and VISIBILITY are in its environment."""
    return [sys.executable, "-m", "celery", "-A", f"{__name__}:app", "worker", "-l", "INFO", "--hostname", name]


def _long_job(folder: str) -> None:
    note_start(folder)
    while not released(folder):
        time.sleep(0.05)


app = late_app(os.environ.get(BROKER, "redis://"), int(os.environ.get(VISIBILITY, DEFAULT_VISIBILITY_S)))
