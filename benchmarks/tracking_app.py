"""The Celery app of `benchmarks.tracking`: its worker tracks, and does nothing else."""

from __future__ import annotations

from mcptasks.tracker import Tracker

tracker = Tracker()
celery = tracker.celery()
