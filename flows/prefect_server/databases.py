"""The database of the server that `pretrieve up` starts: SQLite, or a PostgreSQL that the operator names."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from flows.prefect_server.services import ServicePaths, write_for_owner
from storage.errors import UserError, masked

SQLITE = "sqlite"
DRIVER = "postgresql+asyncpg"
SCHEMES = ("postgresql", "postgres", DRIVER)
ADDRESS = "PRETRIEVE_DATABASE"
"""The variable with the address of the server's database; PRETRIEVE_DATABASE_FILE names a file with it."""
VISIBLE = (
    "--database: other users can read the password in the list of processes while `up` works; "
    f"{ADDRESS}, or a file that {ADDRESS}_FILE names, hides it"
)
CLASS = re.compile(r"^<class '[^']*'>: ")
"""SQLAlchemy's prefix of the driver's message."""
SECONDS_TO_CONNECT = 15.0
OLDEST = 14  # of PostgreSQL, that Prefect supports
LOCKED, MANY_LOCKED, LOG_BYTES = b"database is locked", 20, 20_000_000
MANY_BYTES, MANY_WORKERS = 1 << 30, 4


def choose_database(address: str | None, paths: ServicePaths, is_running: bool) -> None:
    """Keep the address of the server's database with its password; None leaves the present one.

    Raises UserError where the database does not answer, or a server with another one runs.
    """
    if address is None:
        return
    wanted = "" if address == SQLITE else _checked(address)
    present = paths.database.read_text(encoding="utf-8").strip() if paths.database.exists() else ""
    if wanted == present:
        return
    if is_running:
        raise UserError(
            f"database {masked(address)}: the server runs with another database; `pretrieve down` ends it first. "
            "Runs and logs stay in the other database; artifacts are in the store"
        )
    if wanted:
        write_for_owner(paths.database, wanted)
    else:
        paths.database.unlink()


def _checked(address: str) -> str:
    """Return the address for Prefect's driver of a PostgreSQL that answers."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme, _, rest = address.partition("://")
    try:
        url = make_url(f"{DRIVER}://{rest}") if scheme in SCHEMES else None
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        url = None
    if url is None or not url.database:
        raise UserError(f"database {masked(address)}: expected postgresql://user:PASSWORD@host:port/name, or sqlite")
    if "sslmode" in url.query:  # as libpq names it; the driver asyncpg does not know it
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": url.query["sslmode"]})
    version = asyncio.run(_version(url, masked(address)))
    if version < OLDEST:
        raise UserError(f"database {masked(address)}: PostgreSQL {version}; expected {OLDEST} or later")
    return str(url.render_as_string(hide_password=False))


async def _version(url: Any, shown: str) -> int:
    """Return the major version of a PostgreSQL. Raises UserError where it does not answer or refuses the user.

    It is opened as Prefect's server opens it, so that an address which works here works there.
    """
    from asyncpg import InterfaceError, PostgresError
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url, connect_args={"timeout": SECONDS_TO_CONNECT})
    try:
        async with engine.connect() as connection:
            number = await connection.exec_driver_sql("show server_version_num")
            return int(number.scalar_one()) // 10_000
    except TypeError as error:
        raise UserError(f"database {shown}: {error}; expected no parameter but ssl, such as ?ssl=require") from None
    except (OSError, ValueError, DBAPIError, PostgresError, InterfaceError) as error:
        why = CLASS.sub("", str(getattr(error, "orig", error))) or type(error).__name__
        raise UserError(f"database {shown}: {why}; start PostgreSQL, or correct the address") from None
    finally:
        await engine.dispose()


def sqlite_warning(paths: ServicePaths, num_workers: int) -> str:
    """Return why SQLite is no longer suitable for the server; "" where it is, or where PostgreSQL is used."""
    if paths.database.exists():
        return ""
    file, locked = paths.home / "prefect.db", _times_locked(paths)
    size = file.stat().st_size if file.exists() else 0
    reasons = [
        *([f"its server's log says `database is locked` {locked} times"] if locked >= MANY_LOCKED else []),
        *([f"its file has {size / (1 << 30):.1f} GiB"] if size >= MANY_BYTES else []),
        *([f"{num_workers} workers write to it"] if num_workers > MANY_WORKERS else []),
    ]
    if not reasons:
        return ""
    return f"SQLite is no longer suitable: {'; '.join(reasons)}. Use PostgreSQL: pretrieve up --database postgresql://…"


def _times_locked(paths: ServicePaths) -> int:
    """Return how often the end of the server's log has a locked database."""
    log = paths.log("server")
    if not log.exists():
        return 0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read().count(LOCKED)
