"""Runs one tool away from its request; knows no Celery."""
