"""Ports for the servers of tests."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_000)
"""Linux gives ports from 32,768 to outgoing connections, so one of these stays free until the test uses it."""


def free_port() -> int:
    """Return a port of loopback on which no process listens now."""
    while True:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)  # whatever seed a test has set
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
