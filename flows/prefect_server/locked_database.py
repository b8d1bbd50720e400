"""Repeats a request at once whose transaction SQLite refused because another one had written meanwhile.

SQLite refuses a transaction that has read and then writes if another wrote in between, and no timeout of the database
applies ("database is locked"). Prefect's server answers 503 then, and Prefect's client repeats the request after about
two seconds, which a stage of a short run waits for. What a repetition here does not solve is left to the client.

Only the embedded server has this: its database is SQLite, and all its requests are those of one run. It reads a request
before the password is checked, and repeats each that is answered with 503.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAUSES = (0.02, 0.1, 0.3)  # seconds before each repetition
SECONDS = 1.0  # an attempt that takes longer waited for the database itself, and is not repeated
MAX_BYTES = 1 << 22  # a request with a longer body is not repeated, so that it is not held in memory


class Repeated:
    """An ASGI application that gives a request to another one again while that answers 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and its answer as soon as that is not 503 or all repetitions are used."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await body_messages(receive, MAX_BYTES)
        is_complete = body[-1]["type"] == "http.request" and not body[-1].get("more_body")
        for pause in PAUSES if is_complete else ():
            answer = _Answer(send, time.monotonic() + SECONDS)
            try:
                await self._app(dict(scope), replayed(body, receive), answer)
            except Exception:  # Starlette raises an error again after it was answered
                if not answer.is_unavailable:
                    raise
            if not answer.is_unavailable:
                return
            await asyncio.sleep(pause)
        await self._app(scope, replayed(body, receive), send)


class _Answer:
    """Forwards an answer, unless its status is 503 and it begins before the `end`."""

    def __init__(self, send: Send, end: float) -> None:
        self._send, self._end, self.is_unavailable = send, end, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_unavailable = message["status"] == 503 and time.monotonic() < self._end
        if not self.is_unavailable:
            await self._send(message)


async def body_messages(receive: Receive, max_bytes: int) -> list[Message]:
    """Return the messages of a request's body; the last has `more_body` where they are more than `max_bytes`."""
    messages = [await receive()]
    size = len(messages[0].get("body", b""))
    while messages[-1].get("more_body") and size < max_bytes:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
    return messages


def replayed(messages: list[Message], receive: Receive) -> Receive:
    """Return what receives these messages, then those of `receive`."""
    queue = iter(messages)

    async def receive_next() -> Message:
        return next(queue, None) or await receive()

    return receive_next
