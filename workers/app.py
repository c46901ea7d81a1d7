"""The Celery app of the sample fleet: `celery -A workers.app worker` finds it as `app`."""

from workers.server import celery as app

__all__ = ["app"]
