"""The last steps of a build: the manifest of what is in the work folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.artifact import File, Manifest
from storage.files import (
    drop_unfinished,
    flush,
    follow_umask,
    is_system_file,
    sha256_of,
    write_atomically,
)
from storage.store.manifest_checks import LOGS, MANIFEST, TABLES, all_files

SCRATCH = "scratch"
"""The folder in a work folder that is not published: checkpoints, records of shards, temporary files."""

Describe = Callable[[dict[str, File], dict[str, File]], Manifest]
"""Returns the manifest of these data files and logs."""


class UndeclaredFile(Exception):
    """A work folder has a file that its stage's table does not declare. One line: which file, what was expected."""


def write_manifest(work: Path, stage: str, describe: Describe) -> Manifest:
    """Delete unfinished files, hash the others and write the manifest last, all flushed to disk. `SCRATCH` stays.

    Raises UndeclaredFile for a link, a device or a file that the table does not declare; that file stays.
    """
    (work / MANIFEST).unlink(missing_ok=True)
    drop_unfinished(work)  # of a process that was killed while it wrote a shard
    paths = sorted(path for path in work.rglob("*") if not path.is_dir() or path.is_symlink())
    paths = [path for path in paths if not is_system_file(path.name) and path.relative_to(work).parts[0] != SCRATCH]
    if links := [path for path in paths if path.is_symlink() or not path.is_file()]:
        raise UndeclaredFile(f"{links[0]}: {stage} may not publish a link or a device; delete it and run again")
    follow_umask(paths, work)
    files = {path.relative_to(work).as_posix(): File(path.stat().st_size, sha256_of(path)) for path in paths}
    logs = {name: file for name, file in files.items() if name.startswith(f"{LOGS}/")}
    manifest = describe({name: file for name, file in files.items() if name not in logs}, logs)
    _refuse_undeclared(manifest, work)
    for path in paths:
        flush(path)
    write_atomically(work / MANIFEST, manifest.as_json())
    return manifest


def _refuse_undeclared(manifest: Manifest, work: Path) -> None:
    """Raise UndeclaredFile where a work folder has a file that the stage's table does not declare."""
    table = TABLES.get(manifest.schema or "")
    if table and (undeclared := [name for name in all_files(manifest) if not table.declares(name)]):
        raise UndeclaredFile(
            f"{work / undeclared[0]}: {manifest.stage} may not publish this file: {table.__name__} has "
            f"{', '.join(table.files)} and logs/. Delete the file, if the stage did not write it, and run the same "
            "command again"
        )
