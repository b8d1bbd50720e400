"""`pretrieve search`: search an index or a retriever of the store with one question, and show the best passages."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flows.adapted_folder import ADAPTED, MODEL, encoder_of, is_adapted, read_json
from flows.finished_runs import FinishedRun, finished_run, names_run, published_runs
from flows.terminal import Terminal, say_json
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.store.lookup import artifact, find, lookup, must_exist, newest_vectors
from storage.store.store import Store
from tasks.retrieval.interactive import Answer, Searched
from tasks.retrieval.open_searches import OpenSearches
from tasks.session import Session, session

SNIPPET = 240  # characters of a passage


def show_answer(key: str, question: str, folder: Path, top: int, view: str | None, as_json: bool = False) -> None:
    """Print the `top` passages for a question, with their scores by view, as a table or as JSON."""
    store = Store.open(folder_of_store(key, folder))
    answers = search(open_key(key, store), question, store, top=top, view=view)
    if as_json:
        say_json([dataclasses.asdict(passage) for passage in answers])
        return
    Terminal().print(table(answers, question))
    if not answers:
        print("nothing matches")


def search(searched: Searched, question: str, store: Store, *, top: int, view: str | None = None) -> list[Answer]:
    """Return the `top` passages by a view, best first; by the sum of all views where none is named."""
    with closing(OpenSearches(store)) as searches:
        return search_open(searches, searched, question, top=top, view=view)


def search_open(
    searches: OpenSearches, searched: Searched, question: str, *, top: int, view: str | None
) -> list[Answer]:
    """Return the passages of `search` by an index that is checked and read at its first question, and stays open."""
    if not question.strip():
        raise UserError("the question is empty; expected some words")
    if top < 1:
        raise UserError(f"expected at least 1 passage to show, found {top}")
    with session(Session(searches.store)):
        return searches.opened(searched, view).answers(question, top)


def table(answers: list[Answer], question: str) -> Table:
    """Return a table of ranks, scores by view, ids and texts."""
    rows = Table(title=cut(question), title_justify="left", show_lines=True)
    rows.add_column("", justify="right")
    views = list(answers[0].scores) if answers else []
    for view in views:
        rows.add_column(view, justify="right")
    rows.add_column("passage", overflow="fold", ratio=1)
    for passage in answers:
        title = f"{passage.title} · " if passage.title else ""
        text = cut(f"{title}{passage.text}")
        scores = [f"{passage.scores[view]:.3f}" for view in views]
        rows.add_row(str(passage.rank), *scores, Text.assemble((passage.passage_id, "bold"), "  ", text))
    return rows


def cut(text: str) -> str:
    """Return the text in one line of at most `SNIPPET` characters.

    It is cut between characters, since not every script separates words.
    """
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET else f"{line[: SNIPPET - 1]}…"


def open_key(key: str, store: Store) -> Searched:
    """Return what is searched for the key of an index, of vectors, or of a retriever.

    Raises UserError for other artifacts, for the name of a run, which has several retrievers, and where an input is
    missing.
    """
    if is_adapted(key):
        return _of_adaptation(Path(key))
    if names_run(key, store):
        raise UserError(_retrievers_of(finished_run(key, store)))
    manifest = _manifest(key, store)
    if manifest.schema == "Checkpoint":
        return _of_vectors(_newest_vectors(manifest, store), store)
    if manifest.schema == "Vectors":
        return _of_vectors(manifest, store)
    if manifest.schema != "Index":
        raise UserError(f"{key}: {manifest.stage} builds {manifest.schema}; expected an index, vectors or a checkpoint")
    index = artifact(manifest.reference, store)
    if manifest.inputs["vectors"] is None:
        return Searched(_input(manifest, "passages", store), index, None, None)
    searched = _of_vectors(must_exist(manifest.inputs["vectors"], store), store)
    return Searched(searched.passages, index, searched.vectors, searched.checkpoint)


def _manifest(key: str, store: Store) -> Manifest:
    """Return the manifest of `find`. Its UserError says which runs list keys of retrievers."""
    try:
        return find(key, store)[1]
    except UserError as error:
        runs = ", ".join(published_runs(store))
        hint = f"the name of a run lists its retrievers' keys, and this store has the runs {runs}"
        if not runs:
            hint = "this store has no finished run; `pretrieve reproduce RECIPE` trains retrievers"
        raise UserError(f"{error}; {hint}") from None


def _retrievers_of(run: FinishedRun) -> str:
    """Return an error that lists the keys of a run's retrievers that have encoded passages."""
    trained = {name: lookup(reference, run.store) for name, reference in run.checkpoints.items()}
    keys = [f"{name} {manifest.key}" for name, manifest in trained.items()
            if manifest and newest_vectors(manifest, run.store)]  # fmt: skip
    listed = ", ".join(keys) or "none that has encoded passages"
    return (
        f"{run.name}: a run has several retrievers; expected the key of one, and in {run.store.root} it has {listed}; "
        f"`pretrieve browse {run.name}` searches with all of them"
    )


def folder_of_store(key: str, folder: Path) -> Path:
    """Return the store of an adaptation's folder; for a key the given one."""
    return Path(read_json(Path(key) / ADAPTED, "store")["store"]) if is_adapted(key) else folder


def _of_adaptation(folder: Path) -> Searched:
    """Return what is searched for the folder of `pretrieve adapt`, which names its artifacts and has the model."""
    value = read_json(folder / ADAPTED, "store", "passages", "index", "vectors")
    store = Store.open(Path(value["store"]))
    passages, index, vectors = (artifact(value[name], store) for name in ("passages", "index", "vectors"))
    return Searched(passages, index, vectors, encoder_of(vectors, str((folder / MODEL).resolve()), store))


def _of_vectors(manifest: Manifest, store: Store) -> Searched:
    vectors = artifact(manifest.reference, store)
    encoded = must_exist(manifest.inputs["vectors"], store) if "vectors" in manifest.inputs else manifest  # truncated
    return Searched(_input(encoded, "passages", store), None, vectors, _input(encoded, "checkpoint", store))


def _newest_vectors(checkpoint: Manifest, store: Store) -> Manifest:
    """Return the manifest of the newest vectors that a checkpoint has encoded. Raises UserError where it has none."""
    if newest := newest_vectors(checkpoint, store):
        return newest
    other = next((manifest for _, manifest in store.manifests() if manifest and manifest.schema == "Vectors"), None)
    hint = f"; the store has other vectors, such as {other.key}" if other else ""
    raise UserError(
        f"{checkpoint.key}: no passages were encoded with this checkpoint; a recipe's rounds encode them{hint}"
    )


def _input(manifest: Manifest, parameter: str, store: Store) -> Artifact[Any]:
    """Return an input of an artifact. Raises UserError where it is missing or from outside the store."""
    reference = str(manifest.inputs[parameter])
    if reference.startswith("source/"):
        raise UserError(
            f"{manifest.key}: built with a model from outside the store, which cannot be located by its key; search "
            "with a retriever that a recipe has trained, or measure the model with `pretrieve evaluate`"
        )
    return artifact(reference, store)
