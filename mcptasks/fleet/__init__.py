"""The worker's side of Celery."""
