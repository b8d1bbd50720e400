"""`pretrieve verify`: check that the artifacts, generated queries and versions of a store are intact."""

from __future__ import annotations

from pathlib import Path

import typer

from flows.queries.versions import damaged_versions, quarantine_versions
from flows.terminal import out
from storage.errors import UserError, one_line
from storage.generation_cache.cache import generation_caches, is_damaged
from storage.store.manifest_checks import MANIFEST, Damage, find_damage
from storage.store.store import Store

LEFT_ALONE = "the folder is left alone: run its recipe again to rebuild it, or delete it"


def verify_store(store_folder: Path, aside: bool) -> None:
    """Check the hashes of all files; print a line on standard error for each problem, with exit code 1.

    A run that reuses an artifact does not check all its files. `aside` moves damaged artifacts to `.damaged`, so that
    the next run rebuilds them.
    """
    store = Store.open(store_folder)
    folders = [folder for folder, _ in store.manifests()]
    damaged = sum(_is_damaged(folder, store, aside) for folder in folders)
    incomplete = list(store.without_manifest())
    for folder in incomplete:
        typer.echo(
            one_line(f"pretrieve: damaged: {folder / MANIFEST}: the manifest is missing; {LEFT_ALONE}"), err=True
        )
    caches = generation_caches(store.root)
    files = [(cache, path) for cache in caches for path in (*cache.files(), *cache.invalidation_files())]
    torn = [(cache, path) for cache, path in files if is_damaged(path)]
    for cache, path in torn:
        moved = f"; moved to {cache.quarantine(path)}" if aside else ""
        typer.echo(
            one_line(f"pretrieve: damaged: {path}: its bytes do not match the hash in its name{moved}"), err=True
        )
    lines = damaged_versions(store)
    if aside and lines:
        quarantine_versions(store)
    else:
        for line in lines:
            typer.echo(one_line(f"pretrieve: {line}"), err=True)
    if damaged or torn:
        what = "run the recipe again to rebuild" if aside else "`pretrieve verify --aside` has the next run rebuild"
        of_caches = f" and {len(torn)} of {len(files)} files of generation caches" if files else ""
        typer.echo(f"pretrieve: {what} {damaged} of {len(folders)} artifacts{of_caches}", err=True)
    if damaged or torn or lines or incomplete:
        raise typer.Exit(1)
    of_caches = f" and {len(files)} files of generation caches" if files else ""
    out.print(f"{len(folders)} artifacts{of_caches} of {store.root} are intact")


def _is_damaged(folder: Path, store: Store, aside: bool) -> bool:
    """Return whether an artifact is damaged or unreadable; print each problem, and move it if `aside`."""
    try:
        damage = store.quarantine_if_damaged(folder) if aside else Damage(find_damage(folder), "")
    except UserError as error:
        typer.echo(one_line(f"pretrieve: {error}"), err=True)
        return True
    for problem in damage.problems if damage else []:
        moved = f"; {damage.outcome}" if damage and aside else ""
        typer.echo(one_line(f"pretrieve: damaged: {problem}{moved}"), err=True)
    return bool(damage and damage.problems)
