"""`pretrieve search`: one question to an index or a retriever of the store, so that a person can look."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flows.store_commands import find
from flows.terminal import Terminal
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.store.store import Store
from storage.tables import Checkpoint, Index, Passages, Vectors
from tasks.retrieval.interactive import Answer, answer
from tasks.stage import Session, session

SNIPPET = 240  # characters of a passage


@dataclass(frozen=True)
class Opened:
    """All that a search reads."""

    passages: Artifact[Passages]
    index: Artifact[Index] | None
    """Null where the vectors are searched as they are."""
    vectors: Artifact[Vectors] | None
    checkpoint: Artifact[Checkpoint] | None


def show_answer(key: str, question: str, folder: Path, top: int, view: str | None) -> None:
    """Print the passages that stand first for a question, with their scores by view."""
    if not question.strip():
        raise UserError("the question is empty; expected some words")
    store = Store.open(folder)
    opened = open_key(key, store)
    for artifact in (opened.passages, opened.index, opened.vectors, opened.checkpoint):
        if artifact is not None:
            store.check(artifact)
    with session(Session(store)):
        found = answer(question, opened.passages, opened.index, opened.vectors, opened.checkpoint, top=top, view=view)
    Terminal().print(table(found, question))
    if not found:
        print("nothing matches")


def table(found: list[Answer], question: str) -> Table:
    """Ranks, scores by view, ids and texts."""
    made = Table(title=cut(question), title_justify="left", show_lines=True)
    made.add_column("", justify="right")
    views = list(found[0].scores) if found else []
    for view in views:
        made.add_column(view, justify="right")
    made.add_column("passage", overflow="fold", ratio=1)
    for each in found:
        title = f"{each.title} · " if each.title else ""
        text = cut(f"{title}{each.text}")
        scores = [f"{each.scores[view]:.3f}" for view in views]
        made.add_row(str(each.rank), *scores, Text.assemble((each.passage_id, "bold"), "  ", text))
    return made


def cut(text: str) -> str:
    """In one line, and of at most `SNIPPET` characters: not at words, which not every script sets apart."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET else f"{line[: SNIPPET - 1]}…"


def open_key(key: str, store: Store) -> Opened:
    """What a key of an index, of vectors, or of a retriever stands for."""
    folder, manifest = find(key, store)
    if manifest.schema == "Checkpoint":
        return _of_vectors(*_vectors_of(manifest, store), store)
    if manifest.schema == "Vectors":
        return _of_vectors(folder, manifest, store)
    if manifest.schema != "Index":
        raise UserError(f"{key}: {manifest.stage} made {manifest.schema}; expected an index, vectors or a checkpoint")
    index: Artifact[Any] = Artifact(manifest.stage, manifest.key, folder)
    if manifest.inputs["vectors"] is None:
        return Opened(_input(manifest, "passages", store), index, None, None)
    vectors = _input(manifest, "vectors", store)
    opened = _of_vectors(vectors.path, _manifest(vectors, store), store)
    return Opened(opened.passages, index, opened.vectors, opened.checkpoint)


def _of_vectors(folder: Path, manifest: Manifest, store: Store) -> Opened:
    vectors: Artifact[Any] = Artifact(manifest.stage, manifest.key, folder)
    return Opened(_input(manifest, "passages", store), None, vectors, _input(manifest, "checkpoint", store))


def _vectors_of(checkpoint: Manifest, store: Store) -> tuple[Path, Manifest]:
    """The newest vectors that a checkpoint made."""
    wanted = f"{checkpoint.stage}/{checkpoint.key}"
    made = [
        (folder, each)
        for folder, each in store.manifests()
        if each and each.schema == "Vectors" and each.inputs["checkpoint"] == wanted
    ]
    if not made:
        others = [each.key for _, each in store.manifests() if each and each.schema == "Vectors"]
        near = difflib.get_close_matches(checkpoint.key, others, 1, cutoff=0.0)
        hint = f"; vectors there are, such as {near[0]}" if near else ""
        raise UserError(
            f"{checkpoint.key}: no passages were encoded with this checkpoint; a recipe's rounds encode them{hint}"
        )
    return max(made, key=lambda each: str(each[1].built["at"]))


def _input(manifest: Manifest, name: str, store: Store) -> Artifact[Any]:
    """An input of an artifact, which must still be there."""
    stage, _, key = str(manifest.inputs[name]).partition("/")
    if stage == "source":
        raise UserError(
            f"{manifest.key}: made with a model from outside the store, which cannot be found by its key; search with "
            "what a recipe has made, or measure the model with `pretrieve evaluate`"
        )
    artifact: Artifact[Any] = Artifact(stage, key, store.folder(stage, key))
    _manifest(artifact, store)
    return artifact


def _manifest(artifact: Artifact[Any], store: Store) -> Manifest:
    found = store.manifest(artifact.stage, artifact.key)
    if found is None:
        raise UserError(f"{artifact.reference} is gone from {store.root}; run its recipe again to rebuild it")
    return found
