"""`pretrieve export`: write a checkpoint as a Hugging Face folder with a model card, outside the store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flows.export.model_card import Purpose, model_card
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.files import writing_folder
from storage.store.lookup import find, newest_vectors
from storage.store.store import Store
from tasks.retrieval.sentence_transformer_export import Exported, add_files

IMPOSSIBLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOENT,
}  # fmt: skip


def export_checkpoint(key: str, folder: Path, store_folder: Path, purpose: Purpose | None = None) -> str:
    """Copy the checkpoint's files to `folder` and write README.md, which says how the checkpoint was built.

    The title of README.md is that of the purpose, or the key. Returns in words what was written.
    """
    store = Store.open(store_folder)
    artifact, manifest = find(key, store)
    if manifest.schema != "Checkpoint":
        raise UserError(
            f"{key}: {manifest.stage} made {manifest.schema}, not a checkpoint; `pretrieve plan` lists the keys"
        )
    must_be_free(folder)
    store.check(Artifact(manifest.stage, manifest.key, artifact))
    exported: Exported | None = None
    with new_folder(folder) as copied:
        for name in manifest.files:
            target = file_in(copied, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact / name, target)
        if (copied / "modules.json").is_file():
            exported = add_files(copied, **_lengths(manifest, store))
        (copied / "README.md").write_text(model_card(manifest, store, exported, purpose), encoding="utf-8")
    return f"{manifest.stage} {manifest.key}: {len(manifest.files)} files and README.md in {folder}"


def _lengths(checkpoint: Manifest, store: Store) -> dict[str, int | None]:
    """Return the maximum lengths of queries and passages: of the newest vectors of a checkpoint, else of its training.

    `pretrieve search` reads queries and passages up to the lengths of these vectors, too.
    """
    vectors = newest_vectors(checkpoint, store)
    settings = vectors.settings if vectors else checkpoint.settings
    return {name: settings.get(name) for name in ("query_max_tokens", "passage_max_tokens")}


def must_be_free(folder: Path) -> None:
    """Raise UserError for a folder that is not empty, or a path that cannot be a folder."""
    with impossible_paths_in_words(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: expected a folder that does not exist yet, or an empty one")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` at the end of the block, so that it appears complete.

    Raises UserError where `folder` is not empty, another process writes it, or it cannot be written.
    """
    must_be_free(folder)
    with impossible_paths_in_words(folder):
        folder = folder.resolve()
    with impossible_paths_in_words(folder), writing_folder(folder) as temporary:
        yield temporary


@contextlib.contextmanager
def impossible_paths_in_words(path: Path) -> Iterator[None]:
    """Turn system errors about a path that the user named into a UserError; others are not changed."""
    try:
        yield
    except (ValueError, RuntimeError) as error:  # a null character, or circular links
        if not str(error).startswith(("embedded null", "Symlink loop")):
            raise
        raise UserError(f"{path}: cannot be written ({error}); name another path") from None
    except OSError as error:
        named, target = Path(os.fsdecode(error.filename or "")), path.absolute()
        # The temporary file or folder is in the same folder, and the path's name is a part of its name.
        candidates = (named, *named.parents)
        ours = any(candidate.parent == target.parent and target.name in candidate.name for candidate in candidates)
        if error.errno not in IMPOSSIBLE or not (ours or named in target.parents):
            raise
        raise UserError(f"{path}: cannot be written ({error.strerror}); name another path") from None


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file in an output folder. Raises UserError for a name that leads out of it."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()) or path.resolve() == folder.resolve():
        raise UserError(f"{name}: expected the name of a file within the output folder; nothing was written")
    return path
