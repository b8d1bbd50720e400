"""Models in folders: a user's own, and those that a Python package ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from storage.artifact import Source, source_of
from storage.errors import UserError, quoted
from storage.files import is_system_file

NO_MODEL_FILES = ("training_args.bin",)  # with *.md and hidden files


def model_folder(folder: Path) -> Source:
    """Return a model's folder, identified by the contents of its files. Raises UserError without a configuration."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: expected a Hugging Face model folder, but it has no config.json")
    files = [file for file in folder.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(folder))]
    return source_of(folder, [file for file in files if file.suffix != ".md" and file.name not in NO_MODEL_FILES])


def _is_hidden(path: Path) -> bool:
    """Return whether a file belongs to another program, such as the times that a download notes in `.cache`."""
    return is_system_file(path.name) or any(part.startswith(".") for part in path.parts)


def packaged(name: str) -> Path:
    """Return the folder of package:NAME/FOLDER. Raises UserError where package or folder are missing."""
    package, _, inner = name.removeprefix("package:").partition("/")
    if not package.isidentifier() or ".." in Path(inner).parts or Path(inner).is_absolute():
        raise UserError(f"{quoted(name)}: expected package:NAME/FOLDER, a Python package's name and a folder in it")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the Python package {quoted(package)} is not installed; install it, or name another model")
    folder = Path(next(iter(spec.submodule_search_locations))) / inner
    if not folder.is_dir():
        raise UserError(f"{name}: the package {package} has no folder {inner!r}")
    return folder
