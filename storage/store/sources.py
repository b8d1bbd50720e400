"""What comes from outside the store: data sets and weights, found by path or name and known by their content."""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from storage import datasets
from storage.artifact import Source, source_of
from storage.errors import UserError, quoted
from storage.imports import negative_files, pseudo_query_files

BESIDE = (".gitattributes", "training_args.bin")  # and texts: what lies beside a model and is no part of it
PROJECT_DATA = Path(__file__).resolve().parents[2] / "data"


class Absent(Source):
    """Stands for what is not here; its key is a name, so nothing that depends on it has a key yet."""

    @property
    def reference(self) -> str:
        """How a plan names this input."""
        return f"absent:{self.key}"


_missing: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("missing", default=None)


@contextlib.contextmanager
def assuming_present() -> Iterator[list[str]]:
    """In this block what is not here is `Absent` instead of an error, and no hub is asked for weights.

    The errors' words are collected in the list that the block is given, each once.
    """
    missing: list[str] = []
    token = _missing.set(missing)
    try:
        yield missing
    finally:
        _missing.reset(token)


def _absent(name: str, error: UserError) -> Absent:
    missing = _missing.get()
    if missing is None:
        raise error
    if str(error) not in missing:
        missing.append(str(error))
    return Absent(name, Path(name))


def package(name: str, why: str) -> None:
    """Require an installed Python package; `why` is what to say where it is not."""
    if importlib.util.find_spec(name) is None:
        _absent(name, UserError(why))


def dataset(reader: str, path: str | None, part: str, split: str | None = None) -> Source:
    """The files of one part of a collection: corpus, documents, queries or qrels (of a split)."""
    collection = datasets.reader(reader)
    try:
        folder = locate(path, reader)
        return source_of(folder, collection.files(folder, part, split))
    except UserError as error:
        return _absent("/".join(filter(None, (reader, path, part, split))), error)


def locate(path: str | None, reader: str) -> Path:
    """Where a recipe's `dataset.path` is: absolute, or below the first place of `_places` that has it."""
    if path is None:
        raise UserError(f"dataset.path: expected where the {reader} collection lies; give it by --set dataset.path=DIR")
    tried = list(_candidates(path, "dataset.path"))
    for candidate in tried:
        if candidate.exists():
            return candidate.resolve()
    places = ", ".join(dict.fromkeys(str(candidate) for candidate in tried))
    fetch = getattr(datasets.reader(reader), "FETCH", f"lay the {reader} collection there")
    raise UserError(f"dataset.path: no data set at {places}; {fetch}, or --set dataset.path=DIR")


def _places() -> Iterator[Path]:
    """The working folder, $PRETRIEVE_COLLECTIONS, the project's own `data`; an absolute path is itself in each."""
    yield Path.cwd()
    if collections := os.environ.get("PRETRIEVE_COLLECTIONS"):
        yield Path(collections)
    yield PROJECT_DATA


def _candidates(name: str, what: str) -> Iterator[Path]:
    """A path below each of `_places`, in their order."""
    path = _expanded(name, what)
    for place in _places():
        yield place / path


def _expanded(name: str, what: str) -> Path:
    """A path with the home folder in place of `~`. Raises UserError for none, and for `~` of an unknown user."""
    if not name:
        raise UserError(f"{what}: expected a path, found ''")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UserError(f"{what}: {quoted(name)}: this machine has no such user; write the path in full") from None


def weights(name: str) -> Source:
    """A Hugging Face model by folder, by package:NAME/FOLDER (weights that a package ships), or by hub name.

    A folder is sought where collections are, and known by its files' contents; a hub model by its commit.
    """
    try:
        return _weights(name)
    except UserError as error:
        return _absent(name, error)


def _weights(name: str) -> Source:
    if name.startswith("package:"):
        return _folder(_in_package(name))
    for folder in _candidates(name, "a model's folder"):
        if folder.is_dir():
            return _folder(folder.resolve())
    return _from_hub(name)


def queries(name: str) -> Source:
    """Queries that were generated elsewhere (`storage.imports.pseudo_query_files`), by their file or folder."""
    try:
        path = _expanded(name, "queries.file").resolve()
        return source_of(path, pseudo_query_files.files(path))
    except UserError as error:
        return _absent(name, error)


def negatives(name: str) -> Source:
    """Negatives that were mined elsewhere (`storage.imports.negative_files`), by the path of their file."""
    try:
        tried = list(_candidates(name, "given.file"))
        path = next((each for each in tried if each.exists()), tried[0]).resolve()
        return source_of(path, negative_files.files(path))
    except UserError as error:
        return _absent(name, error)


def tokenizer(name: str) -> Source:
    """The tokenizer of a model, known by its own file alone: other weights with the same vocabulary are the same."""
    found, of_it = weights(name), f"{name}/tokenizer.json"
    if isinstance(found, Absent):
        return Absent(of_it, found.path)
    if not (file := found.path / "tokenizer.json").is_file():
        wanted = UserError(f"{found.path}: expected a tokenizer.json; save the model's fast tokenizer there")
        return _absent(of_it, wanted)
    return source_of(found.path, [file])


def _folder(folder: Path) -> Source:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: expected a Hugging Face model folder, but it has no config.json")
    files = [file for file in folder.rglob("*") if file.is_file()]
    return source_of(folder, [file for file in files if file.suffix != ".md" and file.name not in BESIDE])


def _in_package(name: str) -> Path:
    package, _, inner = name.removeprefix("package:").partition("/")
    if not package.isidentifier() or ".." in Path(inner).parts or Path(inner).is_absolute():
        raise UserError(f"{quoted(name)}: expected package:NAME/FOLDER, a Python package's name and a folder in it")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"the Python package {quoted(package)} is not installed; install it, or name another model")
    folder = Path(next(iter(found.submodule_search_locations))) / inner
    if not folder.is_dir():
        raise UserError(f"{name}: the package {package} has no folder {inner!r}")
    return folder


def _from_hub(name: str) -> Source:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    others = ["*.h5", "*.msgpack", "*.ot", "onnx/*", "openvino/*"]
    here = _missing.get() is not None  # only what an earlier run has fetched
    try:
        folder = Path(snapshot_download(name, ignore_patterns=others, local_files_only=here))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        gave = "the hub's cache here has (a run asks the hub)" if here else f"the hub gave ({type(error).__name__})"
        raise UserError(f"{name}: neither a folder nor a model that {gave}; give a folder") from None
    return Source(folder.name, folder)
