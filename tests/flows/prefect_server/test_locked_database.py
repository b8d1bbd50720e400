"""A request that the database refused for a moment is repeated with its body, a few times."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.prefect_server import locked_database
from flows.prefect_server.locked_database import PAUSES, Repeated

OWN = "http://127.0.0.1"


class Busy:
    """An ASGI application that answers 503 to the first requests, and to later ones with their body.

    It raises an error after 503, as Starlette does after an answer that an error handler gave.
    """

    def __init__(self, refusals: int) -> None:
        self.refusals, self.requests = refusals, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        status, words = (503, b"locked") if self.requests <= self.refusals else (200, body)
        await send({"type": "http.response.start", "status": status, "headers": []})
        for byte in words:
            await send({"type": "http.response.body", "body": bytes([byte]), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        if status == 503:
            raise sqlite3.OperationalError("database is locked")


async def parts() -> AsyncIterator[bytes]:
    for part in (b"a ", b"request ", b"in parts"):
        yield part


def post(app: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN) as client:
            return await client.post("/", content=parts())

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_database, "PAUSES", [0] * len(PAUSES))


@pytest.mark.parametrize("refusals", [0, 1, len(PAUSES)])
def test_a_refused_request_is_repeated_with_its_body(refusals: int) -> None:
    busy = Busy(refusals)

    answer = post(Repeated(busy))

    assert (answer.status_code, answer.text, busy.requests) == (200, "a request in parts", refusals + 1)


def test_a_request_that_is_always_refused_is_left_to_the_client() -> None:
    busy = Busy(100)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        post(Repeated(busy))

    assert busy.requests == 1 + len(PAUSES)


def test_a_slow_refusal_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_database, "SECONDS", 0.0)
    busy = Busy(1)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        post(Repeated(busy))

    assert busy.requests == 1


def test_a_request_whose_client_is_gone_is_not_repeated() -> None:
    requests = list[Any]()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        requests.append(await receive())
        await send({"type": "http.response.start", "status": 503, "headers": []})

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    asyncio.run(Repeated(busy)({"type": "http"}, receive, send))

    assert requests == [{"type": "http.disconnect"}]


def test_another_error_is_not_held_back() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        post(Repeated(broken))


def test_a_long_request_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_database, "MAX_BYTES", 5)
    busy = Busy(1)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        post(Repeated(busy))
    assert busy.requests == 1
    assert post(Repeated(busy)).text == "a request in parts"


def test_a_transaction_that_sqlite_refuses_is_repeated(tmp_path: Path) -> None:
    """SQLite itself refuses: a deferred transaction reads, another connection writes, then the first writes."""
    database, others, refused = tmp_path / "server.db", [1], list[str]()
    with sqlite3.connect(database) as setup:
        setup.executescript("PRAGMA journal_mode = WAL; CREATE TABLE counts (value); INSERT INTO counts VALUES (0)")

    async def increment(scope: Any, receive: Any, send: Any) -> None:
        with sqlite3.connect(database, isolation_level=None, timeout=60) as connection:
            connection.execute("BEGIN DEFERRED")
            (value,) = connection.execute("SELECT value FROM counts").fetchone()
            if others:
                sqlite3.connect(database, isolation_level=None).execute("UPDATE counts SET value = ?", others[:1])
                others.clear()
            try:
                connection.execute("UPDATE counts SET value = ?", (value + 1,))
                connection.execute("COMMIT")
                status = 200
            except sqlite3.OperationalError as error:
                refused.append(error.sqlite_errorname)
                connection.execute("ROLLBACK")
                status = 503
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    assert post(Repeated(increment)).status_code == 200
    assert refused == ["SQLITE_BUSY_SNAPSHOT"]
    assert sqlite3.connect(database).execute("SELECT value FROM counts").fetchone() == (2,)
