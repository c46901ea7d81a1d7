"""Side-by-side measurement of mcptasks, FastMCP's tasks and bare Celery: `python -m benchmarks` (`make bench`)."""
