"""The flow of tests/test_dask.py, a program of its own: a store's folder, a scheduler's address, how many documents."""

import os
import sys
from pathlib import Path

from prefect import flow

from storage.store.store import Store
from tasks.runtime import dask_cluster
from tasks.session import Execution, Session, session
from tests.tasks import sharded


def main(folder: str, address: str, documents: str) -> None:
    """Build the chain in shards on the cluster, and print its hashes."""
    store = Store(Path(folder) / "store")

    @flow(name="chain", persist_result=False)
    def chain() -> None:
        assert unpicklable
        with session(Session(store, Execution(threads=1, device="cpu", dask=address))):
            hashes.append(sharded.run_chain(store, Path(folder) / "generator", int(documents)))

    hashes: list[dict[str, str]] = []
    sharded.cut_small()
    dask_cluster.GROUPS = 3
    with Path(os.devnull).open() as unpicklable:
        chain()
    print(sharded.as_line(hashes[0]))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
