"""The locks of a store: those of one host, or leases in a Redis if several hosts share the store.

A store that hosts share keeps the name of its leases in `.locks/shared`. From then on every process needs the Redis:
one that took the locks of its own host only could build what another host is building.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from storage.errors import UserError
from storage.files import flush
from storage.store.locks import LOCKS, FileLocks, Locks
from storage.store.redis_client import require_answer
from storage.store.redis_lease import REQUEST_TIMEOUT, Leases

SHARED = "shared"


def store_locks(folder: Path, lease_seconds: float) -> Locks:
    """Return the locks of the store whose `.locks` folder is given. A lease that is not renewed ends after its seconds.

    Raises UserError where the store is shared and PRETRIEVE_LOCKS does not give the address of its Redis. A store is
    marked as shared only after that Redis has answered, since the mark is permanent and the address may be wrong.
    """
    address, shared = os.environ.get(LOCKS), folder / SHARED
    if address:
        if not shared.exists():
            require_answer(address, lease_seconds * REQUEST_TIMEOUT)
        return Leases(address, f"pretrieve:{_name_of_shared(shared)}:", lease_seconds)
    if shared.exists():
        raise UserError(
            f"{shared}: hosts share this store, and Redis decides which of them builds an artifact; "
            f"expected its address in {LOCKS} (redis://:PASSWORD@HOST:PORT/DB), as it is on the others"
        )
    return FileLocks(folder)


def _name_of_shared(path: Path) -> str:
    """Return the name by which all hosts know a store, whatever its path on each. The first host chooses it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        proposed = path.with_name(f".{SHARED}.{uuid.uuid4().hex}.tmp")
        try:
            proposed.write_text(f"{uuid.uuid4().hex}\n", encoding="utf-8")
            flush(proposed)
            with contextlib.suppress(FileExistsError):  # another host was first
                os.link(proposed, path)
        finally:
            proposed.unlink(missing_ok=True)
        flush(path.parent)
    return path.read_text(encoding="utf-8").strip()
