"""The certificates that the tracker's HTTP clients trust."""

from __future__ import annotations

import functools
import ssl

import httpx2


@functools.cache
def context() -> ssl.SSLContext:
    """One for all of this process: reading the certificates takes some 80 ms, in which the event loop does nothing."""
    return httpx2.create_ssl_context()
