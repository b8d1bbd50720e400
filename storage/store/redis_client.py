"""The connection to the Redis whose address is in PRETRIEVE_LOCKS. Its errors are shown without the password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from storage.errors import UserError
from storage.store.locks import LOCKS


def connect(address: str, timeout_seconds: float) -> tuple[Any, str]:
    """Return a client that connects at its first command, and the server as HOST:PORT for messages.

    A command that is not answered within the timeout fails and is not repeated. Raises UserError for another address
    than redis://:PASSWORD@HOST:PORT/DB or rediss://.
    """
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    invalid = UserError(f"{LOCKS}: expected redis://:PASSWORD@HOST:PORT/DB, or rediss:// for TLS, found something else")
    if not address.startswith(("redis://", "rediss://")):
        raise invalid
    try:
        client = Redis.from_url(
            address, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds, retry=Retry(NoBackoff(), 0)
        )  # fmt: skip
    except (ValueError, TypeError):
        raise invalid from None  # the library's own message may show a part of the password
    options = client.connection_pool.connection_kwargs
    return client, f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def require_answer(address: str, timeout_seconds: float) -> None:
    """Raise UserError where no Redis answers at the address, or where it refuses the user or the password."""
    client, server = connect(address, timeout_seconds)
    with redis_errors_explained(server), client:
        client.ping()


@contextlib.contextmanager
def redis_errors_explained(server: str) -> Iterator[None]:
    """Raise UserError in place of an error of Redis. The message names the server, never the password."""
    from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError

    try:
        yield
    except (AuthenticationError, AuthorizationError, NoPermissionError):
        raise UserError(f"{LOCKS}: Redis at {server} refuses the user or the password") from None
    except RedisError as error:
        raise UserError(
            f"{LOCKS}: no answer from Redis at {server} ({type(error).__name__}); is it started, and is the address "
            "right?"
        ) from None
