"""`pretrieve queries export`: write a version to a folder of this machine or of an object store."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flows.queries.export import PROVENANCE, export_queries
from flows.queries.partitions import PARTITIONED, export_partition, partitions, provenance_file
from flows.queries.versions import Version, stored_version
from storage.remote_folders import is_url, local_path, must_be_free_at, upload
from storage.store.store import Store


def export_version(name: str, folder: str, format_name: str, dropped: bool, store_folder: Path) -> str:
    """Export a version and return a summary.

    An object store has no folder that appears at once: the provenance is uploaded last, and says that all is there.
    """
    version = stored_version(name, Store.open(store_folder))
    last = provenance_file(version.name) if format_name == PARTITIONED else PROVENANCE
    if is_url(folder):
        shared = format_name == PARTITIONED
        must_be_free_at(folder, last, shared=shared)
        with tempfile.TemporaryDirectory(prefix="pretrieve-") as scratch:
            counts = _export(version, Path(scratch) / "export", format_name, dropped)
            upload(Path(scratch) / "export", folder, last, replaced=partitions(version.name) if shared else ())
    else:
        counts = _export(version, local_path(folder), format_name, dropped)
    return f"{version.name}: {counts['queries']:,} queries of {counts['passages']:,} passages in {folder}"


def _export(version: Version, folder: Path, format_name: str, dropped: bool) -> dict[str, int]:
    if format_name == PARTITIONED:
        origin = export_partition(version, folder, dropped)
    else:
        origin = export_queries(version, format_name, folder, dropped)
    counts: dict[str, int] = origin["counts"]
    return counts
