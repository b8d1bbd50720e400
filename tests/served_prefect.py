"""A Prefect server on SQLite for tests: `python -m tests.served_prefect HOST PORT`.

It is `prefect server start`, but repeats requests that SQLite has refused, as the embedded server of a run does. For
each of these Prefect's client would wait two seconds.
"""

from __future__ import annotations

import sys

import uvicorn
from prefect.server.api.server import create_app

from flows.prefect_server.locked_database import Repeated


def app() -> Repeated:
    """Return the application with its background services."""
    return Repeated(create_app(final=True))


if __name__ == "__main__":
    host, port = sys.argv[1:]
    uvicorn.run(app, factory=True, host=host, port=int(port), log_level="error", lifespan="on")
