"""The only place that knows Redis."""
