"""`pretrieve show`, `verify` and `gc`: what the store holds, whether it is whole, and what nothing needs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.table import Table
from rich.tree import Tree

from flows.queries.versions import all_versions
from flows.terminal import unwrapped
from storage.artifact import Manifest
from storage.errors import UserError, one_line
from storage.ledger import is_damaged, ledgers
from storage.store import Damage, Store, bytes_below
from tasks.units import in_units

out = unwrapped()


def find(key: str, store: Store) -> tuple[Path, Manifest]:
    """The one artifact whose key begins so."""
    found = [(folder, whole) for folder, whole in store.manifests() if folder.name.startswith(key)]
    if len(found) != 1:
        listed = f": {', '.join(str(folder.relative_to(store.root)) for folder, _ in found[:5])}" if found else ""
        raise UserError(
            f"{key}: {len(found)} artifacts of {store.root} begin so{listed}; expected one of `pretrieve plan`'s keys"
        )
    folder, manifest = found[0]
    if manifest is None:
        raise UserError(
            f"{folder}: the artifact is damaged ({'; '.join(store.damage(folder))}); run its recipe again to rebuild it"
        )
    return folder, manifest


def show_artifact(key: str, store_folder: Path) -> None:
    """Print an artifact's manifest and the tree of what it was made of, back to the data set."""
    store = Store.open(store_folder)
    folder, manifest = find(key, store)
    table = Table(title=f"{manifest.stage} {manifest.key}", title_justify="left", show_header=False)
    values = {
        "folder": str(folder),
        "holds": manifest.schema,
        "rows": manifest.rows,
        "hash": manifest.hash,
        "seed": manifest.seed,
    }
    values |= {f"setting {name}": value for name, value in manifest.settings.items()}
    values |= {name: manifest.built[name] for name in ("at", "seconds", "cpu_seconds", "peak_memory_mib", "device")}
    values["versions"] = ", ".join(f"{name} {version}" for name, version in manifest.built["versions"].items())
    for name, file in {**manifest.files, **manifest.logs}.items():
        values[f"file {name}"] = f"{in_units(file.bytes)}, sha256 {file.sha256[:16]}…"
    for name, value in values.items():
        table.add_row(name, "" if value is None else str(value))
    out.print(table)
    out.print(lineage(manifest, store))


def lineage(manifest: Manifest, store: Store) -> Tree:
    """What an artifact was made of, and what that was made of; each once."""
    seen: set[str] = set()

    def grow(tree: Tree, made: Manifest) -> None:
        for name, given in made.inputs.items():
            for reference in given if isinstance(given, list) else [given]:
                if reference is not None:
                    branch = tree.add(f"{name}: {reference}{' (above)' if reference in seen else ''}")
                    before = None if reference in seen else _manifest_of(reference, store)
                    seen.add(reference)
                    if before:
                        grow(branch, before)

    tree = Tree(f"made of: {manifest.stage}/{manifest.key}")
    grow(tree, manifest)
    return tree


def verify_store(store_folder: Path, aside: bool) -> None:
    """Read every byte of every artifact; exit code 1 and a line on standard error for each problem.

    A run that reuses an artifact does not read the contents of its files; `aside` moves what is damaged to `.damaged`,
    so that the next run rebuilds it.
    """
    store = Store.open(store_folder)
    folders = [folder for folder, _ in store.manifests()]
    damaged = sum(_is_damaged(folder, store, aside) for folder in folders)
    files = [(each, path) for each in ledgers(store.root) for path in (*each.files(), *each.replacements())]
    torn = [(ledger, path) for ledger, path in files if is_damaged(path)]
    for ledger, path in torn:
        moved = f"; moved to {ledger.set_aside(path)}" if aside else ""
        typer.echo(one_line(f"pretrieve: damaged: {path}: its bytes are not those of its name{moved}"), err=True)
    if damaged or torn:
        what = "run the recipe again to rebuild" if aside else "`pretrieve verify --aside` has the next run rebuild"
        of_ledgers = f" and {len(torn)} of {len(files)} files of ledgers" if files else ""
        typer.echo(f"pretrieve: {what} {damaged} of {len(folders)} artifacts{of_ledgers}", err=True)
        raise typer.Exit(1)
    of_ledgers = f" and {len(files)} files of ledgers" if files else ""
    out.print(f"{len(folders)} artifacts{of_ledgers} of {store.root} are whole")


def _is_damaged(folder: Path, store: Store, aside: bool) -> bool:
    """Whether an artifact is damaged or may not be read; print a line for each problem, and move it if `aside`."""
    try:
        damage = store.quarantine(folder) if aside else Damage(store.damage(folder), "")
    except UserError as error:
        typer.echo(one_line(f"pretrieve: {error}"), err=True)
        return True
    for problem in damage.problems if damage else []:
        moved = f"; {damage.outcome}" if damage and aside else ""
        typer.echo(one_line(f"pretrieve: damaged: {problem}{moved}"), err=True)
    return bool(damage and damage.problems)


def collect_garbage(store_folder: Path, delete: bool) -> None:
    """List the sizes of what reports need and of what none needs; delete the latter when told."""
    store = Store.open(store_folder)
    needed = needed_by_reports(store)
    table = Table("what", "size", "needed by a report", title=str(store.root), title_justify="left")
    unneeded: list[Path] = []
    for folder, _ in store.manifests():
        reference = f"{folder.parent.name}/{folder.name}"
        table.add_row(reference, in_units(bytes_below(folder)), "yes" if reference in needed else "no")
        if reference not in needed:
            unneeded.append(folder)
    for ledger in ledgers(store.root):
        table.add_row(
            f"{ledger.folder.relative_to(store.root)}", in_units(bytes_below(ledger.folder)), "kept: see made_by.json"
        )
    for folder in [*_folders(store.root / ".work"), *_folders(store.root / ".damaged")]:
        if store.is_being_built(folder):
            table.add_row(str(folder.relative_to(store.root)), in_units(bytes_below(folder)), "being built by a run")
            continue
        table.add_row(str(folder.relative_to(store.root)), in_units(bytes_below(folder)), "no (unfinished or damaged)")
        unneeded.append(folder)
    out.print(table)
    size = in_units(sum(bytes_below(folder) for folder in unneeded))
    if delete:
        for folder in unneeded:
            _delete(folder, store)
        out.print(f"deleted {len(unneeded)} folders, {size}")
    else:
        out.print(f"{len(unneeded)} folders, {size}, are needed by no report; `pretrieve gc --delete` deletes them")


def needed_by_reports(store: Store) -> set[str]:
    """References of all that the reports and the versions of corpora in `reports/` were made of."""
    needed: set[str] = set()
    waiting = []
    for page in (store.root / "reports").rglob("report.json"):
        stages = json.loads(page.read_text())["stages"]
        waiting += [f"{step['stage']}/{step['key']}" for step in stages]
    for version in all_versions(store):
        waiting += [version.queries.reference, version.passages.reference, version.quality.reference]
    while waiting:
        reference = waiting.pop()
        if reference not in needed:
            needed.add(reference)
            if manifest := _manifest_of(reference, store):
                waiting += manifest.references()
    return needed


def _delete(folder: Path, store: Store) -> None:
    """Rename first, so that a deletion that is cut off leaves nothing that looks whole."""
    bin_ = store.root / ".work" / f"deleted-{folder.parent.name}-{folder.name}-{time.time_ns()}"
    bin_.parent.mkdir(exist_ok=True)
    folder.rename(bin_)
    shutil.rmtree(bin_)


def _manifest_of(reference: str, store: Store) -> Manifest | None:
    stage, _, key = reference.partition("/")
    return None if stage == "source" else store.manifest(stage, key)


def _folders(parent: Path) -> Iterator[Path]:
    yield from sorted(path for path in parent.glob("*") if path.is_dir())
