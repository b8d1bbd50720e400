"""Inputs from outside the store: data sets and weights, located by path or name and identified by their content."""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from storage import datasets
from storage.artifact import Source, source_of
from storage.conversions import squad_wikipedia
from storage.errors import UserError, quoted
from storage.files import cache_folder
from storage.imports import negative_files, pseudo_query_files
from storage.remote_folders import is_mirrored, is_url, local_path, mirror, mirror_of
from storage.store.hub_models import snapshot
from storage.store.model_folders import model_folder, packaged

PROJECT_DATA = Path(__file__).resolve().parents[2] / "data"


class Absent(Source):
    """An input of a plan that is not on this machine, such as a data set that is not downloaded.

    Its key is the name in the recipe, since there are no files to hash. A run refuses it before anything is built.
    """

    @property
    def reference(self) -> str:
        """The name of this input in a plan."""
        return f"absent:{self.key}"


@dataclass(frozen=True)
class _Collected:
    """The messages of the missing inputs of a block, each once."""

    messages: list[str]
    asks_hub: bool
    """Whether hubs and object stores are contacted, as by a run; a plan takes what is on this machine."""
    errors: dict[str, UserError] = field(default_factory=dict)
    """The error of each model and collection, so that nothing is requested twice that a hub lacks."""


_T = TypeVar("_T")
_missing: contextvars.ContextVar[_Collected | None] = contextvars.ContextVar("missing", default=None)


@contextlib.contextmanager
def assuming_present() -> Iterator[list[str]]:
    """Treat a missing input as `Absent` in this block, and contact no hub.

    Yields a list that collects the messages of the errors, each once.
    """
    with _collecting(asks_hub=False) as missing:
        yield missing


@contextlib.contextmanager
def reported_together() -> Iterator[list[str]]:
    """Let this block go on after a missing input, and at its end raise one UserError that names all problems.

    Yields a list for the messages, to which the block may add its own problems. Inside `assuming_present` nothing is
    missing, and the list stays empty unless the block adds to it.
    """
    if _missing.get() is not None:
        problems: list[str] = []
        yield problems
    else:
        with _collecting(asks_hub=True) as problems:
            try:
                yield problems
            except UserError as error:
                problems.append(str(error))
    if problems:
        raise UserError(_in_one_message(problems))


def _in_one_message(messages: list[str]) -> str:
    """Return the only problem, or all of them with numbers, each once."""
    problems = list(dict.fromkeys(messages))
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems: " + "; ".join(f"({n}) {problem}" for n, problem in enumerate(problems, 1))


@contextlib.contextmanager
def _collecting(*, asks_hub: bool) -> Iterator[list[str]]:
    collected = _Collected([], asks_hub)
    token = _missing.set(collected)
    try:
        yield collected.messages
    finally:
        _missing.reset(token)


def is_offline() -> bool:
    """Return whether only what is on this machine is looked at, as for a plan."""
    return (collected := _missing.get()) is not None and not collected.asks_hub


def _absent(name: str, error: UserError) -> Absent:
    missing = _missing.get()
    if missing is None:
        raise error
    if str(error) not in missing.messages:
        missing.messages.append(str(error))
    return Absent(name, Path(name))


def _requested_once(name: str, find: Callable[[], _T]) -> _T:
    """Return what is found under a name; in a block that collects errors, repeat a known one instead of searching."""
    collected = _missing.get()
    if collected is None:
        return find()
    if name in collected.errors:
        raise collected.errors[name]
    try:
        return find()
    except UserError as error:
        collected.errors[name] = error
        raise


def package(name: str, why: str) -> None:
    """Require an installed Python package. `why` is the error message where it is not."""
    if importlib.util.find_spec(name) is None:
        _absent(name, UserError(why))


def dataset(reader: str, path: str | None, part: str, split: str | None = None) -> Source:
    """Return the files of one part of a collection: corpus, documents, queries or qrels (of a split)."""
    loader = datasets.dataset_loader(reader)
    try:
        folder = _requested_once(f"{reader} {path}", lambda: locate(path, reader))
        return source_of(folder, loader.files(folder, part, split))
    except UserError as error:
        return _absent("/".join(filter(None, (reader, path, part, split))), error)


def locate(path: str | None, reader: str) -> Path:
    """Return the folder of a recipe's `dataset.path`: absolute, or below the first of `_base_folders` that has it."""
    if path is None:
        raise UserError(
            f"dataset.path: expected the folder of a collection for the loader {reader}; give it by --set "
            "dataset.path=DIR"
        )
    if is_url(path):
        return _mirrored(path)
    tried = list(_candidates(path and str(local_path(path)), "dataset.path"))  # '' stays, and is refused
    for candidate in tried:
        if candidate.exists():
            return candidate.resolve()
    paths = ", ".join(dict.fromkeys(str(candidate) for candidate in tried))
    if path == squad_wikipedia.NAME:
        fetch = "`pretrieve study data` writes it"
    else:
        fetch = getattr(datasets.dataset_loader(reader), "FETCH", f"put the {reader} collection there")
    raise UserError(f"dataset.path: no data set at {paths}; {fetch}, or --set dataset.path=DIR")


def _mirrored(url: str) -> Path:
    """Return a copy of a collection in an object store. A plan asks no store: it takes the copy that is there."""
    cache = cache_folder() / "collections"
    if not is_offline():
        return mirror(url, cache)
    folder = mirror_of(url, cache)
    if not is_mirrored(url, cache):
        raise UserError(f"dataset.path: {url} has not been copied to {folder} yet; a run copies it")
    return folder


def _base_folders() -> Iterator[Path]:
    """Yield the working folder and its `data`, $PRETRIEVE_COLLECTIONS and the project's own `data`."""
    yield Path.cwd()
    yield Path.cwd() / PROJECT_DATA.name
    if collections := os.environ.get("PRETRIEVE_COLLECTIONS"):
        yield Path(collections)
    yield PROJECT_DATA


def _candidates(name: str, what: str) -> Iterator[Path]:
    """Yield a path below each of `_base_folders`, in their order. An absolute path stays as it is."""
    path = _expanded(name, what)
    for folder in _base_folders():
        yield folder / path


def _found(name: str, what: str) -> Path:
    """Return the first of `_candidates` that exists, or the first of all where none does."""
    tried = list(_candidates(name, what))
    return next((candidate for candidate in tried if candidate.exists()), tried[0]).resolve()


def _expanded(name: str, what: str) -> Path:
    """Return a path with the home folder for `~`. Raises UserError for an empty path and for an unknown user."""
    if not name:
        raise UserError(f"{what}: expected a path, found ''")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UserError(f"{what}: {quoted(name)}: this machine has no such user; write the path in full") from None


def weights(name: str) -> Source:
    """Return a Hugging Face model by folder, by package:NAME/FOLDER (weights that a package ships), or by hub name.

    A folder is searched where collections are, and identified by its files' contents; a hub model by its commit.
    """
    try:
        return _requested_once(name, lambda: _weights(name))
    except UserError as error:
        return _absent(name, error)


def stated_name(name: str) -> str:
    """Return how settings state a model: a folder by its own name, since the path to it is in no key."""
    if not name.startswith("package:"):
        for folder in _candidates(name, "a model's folder"):
            if folder.is_dir():
                return folder.name if folder.name not in ("", "..") else folder.resolve().name
    return name


def _weights(name: str) -> Source:
    if name.startswith("package:"):
        return model_folder(packaged(name))
    for folder in _candidates(name, "a model's folder"):
        if folder.is_dir():
            return model_folder(folder.resolve())
    return _from_hub(name)


def queries(name: str) -> Source:
    """Return pseudo-queries of another program (`storage.imports.pseudo_query_files`), by their file or folder."""
    try:
        path = _found(name, "queries.file")
        return source_of(path, pseudo_query_files.files(path))
    except UserError as error:
        return _absent(name, error)


def word_list(name: str) -> Source:
    """Return a file of words and phrases, one on each line, by its path."""
    path = _found(name, "queries.filter.texts.forbidden")
    if not path.is_file():
        words = f"queries.filter.texts.forbidden: no such file: {path}; give a file, or a list such as [click here]"
        return _absent(name, UserError(words))
    return source_of(path, [path])


def negatives(name: str) -> Source:
    """Return hard negatives of another program (`storage.imports.negative_files`), by the path of their file."""
    try:
        path = _found(name, "given.file")
        return source_of(path, negative_files.files(path))
    except UserError as error:
        return _absent(name, error)


def tokenizer(name: str) -> Source:
    """Return the tokenizer of a model, identified by its own file only, whatever the weights are."""
    model, tokenizer_name = weights(name), f"{name}/tokenizer.json"
    if isinstance(model, Absent):
        return Absent(tokenizer_name, model.path)
    if not (file := model.path / "tokenizer.json").is_file():
        missing = UserError(f"{model.path}: expected a tokenizer.json; save the model's fast tokenizer there")
        return _absent(tokenizer_name, missing)
    return source_of(model.path, [file])


def _from_hub(name: str) -> Source:
    folder = snapshot(name, only_here=is_offline())
    return Source(folder.name, folder)
