"""Retrievers: encode texts, and search the passages that a run has encoded."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from flows.adapted_folder import MODEL, is_adapted
from flows.chain.model_weights import model_weights
from flows.evaluate.systems import by_name
from flows.search import folder_of_store, open_key, search_open
from pretrieve.runs import Checkpoint
from pretrieve.settings import Store, store_folder
from storage.artifact import Manifest, Source
from storage.errors import UserError, quoted
from storage.store.lookup import lookup, newest_vectors
from storage.store.store import Store as OpenStore
from storage.vectors import Encoded
from tasks.retrieval.encode import Model, TextEncoder, views_and_max_tokens
from tasks.retrieval.interactive import Answer, Searched
from tasks.retrieval.open_searches import OpenSearches
from tasks.session import Session, session

Role = Literal["query", "passage"]
LENGTHS = {"query": 64, "passage": 512}  # tokens, where no run has encoded passages with the retriever


class LoadedRetriever:
    """A retriever of a store, of a folder or of the hub. Its weights and its index are read when they are first used.

    Searches keep about 100 bytes a passage in a temporary folder, which is removed by `close`, at the end of
    `with pretrieve.load(model) as retriever:`, or with the object.
    """

    def __init__(self, model: Model, name: str, store: OpenStore, index: Path | None = None) -> None:
        self.name = name
        """A key, a folder or a hub name."""
        self.views, self.max_tokens = views_and_max_tokens(model.path)
        self._model, self._store, self._index = model, store, index
        self._encoder: TextEncoder | None = None
        self._searches = OpenSearches(store)
        self._searched: Searched | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index and remove the temporary files; a later search opens the newest vectors again."""
        self._searches.close()
        self._searched = None

    @property
    def path(self) -> Path:
        """The folder of the checkpoint."""
        return self._model.path

    def argument(self, store: Path) -> str:
        """Return the retriever as `pretrieve evaluate` takes it with a store."""
        if self._index is not None:
            return f"{self._index.resolve().name}={self.path}"
        here = isinstance(self._model, Source) or self._store.root.resolve() == store.resolve()
        return self.name if here else f"{self.name}={self.path}"

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the dense vectors of queries [N, H]: `retriever.encode_queries(["what melts ice"])`."""
        return self._dense(texts, "query")

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the dense vectors of passages [N, H]: `retriever.encode_passages(["Salt melts ice."])`.

        A passage with a title is its title, a blank and its text.
        """
        return self._dense(texts, "passage")

    def representations(self, texts: Sequence[str], role: Role) -> Encoded:
        """Return all representations of texts: `retriever.representations(["salt"], "passage").lexical`."""
        _check_texts(texts)
        with session(Session(self._store)):
            if self._encoder is None:
                self._encoder = TextEncoder(self.path)
            return self._encoder(list(texts), role, self._length(role))

    def search(self, question: str, *, top_k: int = 10, view: str | None = None) -> list[Answer]:
        """Return the best passages that a run has encoded with this retriever, each with its scores by view.

        `[answer.text for answer in retriever.search("what melts ice", top_k=3)]`. Raises `UserError` for a retriever
        that has encoded no passages in the store, such as one from the hub. The first search opens the newest vectors.
        """
        if not isinstance(question, str):
            raise UserError(f"question: expected one question as a text, found {quoted(question)}")
        try:
            number = operator.index(top_k)  # also of NumPy
        except TypeError:
            raise UserError(f"top_k: expected a number of passages, found {quoted(top_k)}") from None
        if self._index is None and isinstance(self._model, Source):
            raise UserError(
                f"{self.name}: no run of the store has encoded passages with this model; search with a checkpoint of a "
                "run, or compare passages with encode_queries and encode_passages"
            )
        if self._searched is None:
            self._searched = open_key(str(self._index) if self._index else self._model.key, self._store)
        return search_open(self._searches, self._searched, question, top=number, view=view)

    def _dense(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        if self.views != ("dense",):
            raise UserError(
                f"{self.name}: has the views {', '.join(self.views)}, not one dense vector; representations() has all"
            )
        _check_texts(texts)
        dense = self.representations(list(texts) or [""], role).dense  # for the width where there are no texts
        if dense is None:
            raise TypeError("a dense retriever has dense vectors")
        return dense[: len(texts)]

    def _length(self, role: Role) -> int:
        """Return the number of tokens at which a text is cut: as the newest vectors in the store, else 64 and 512."""
        vectors = self._vectors()
        stated = vectors.settings[f"{role}_max_tokens"] if vectors else LENGTHS[role]
        return min(int(stated), self.max_tokens)

    def _vectors(self) -> Manifest | None:
        if isinstance(self._model, Source):
            return None
        manifest = lookup(self._model.reference, self._store)
        return newest_vectors(manifest, self._store) if manifest else None


def _check_texts(texts: Sequence[str]) -> None:
    """Raise UserError for what is no list of texts, as of a notebook without a type checker."""
    if isinstance(texts, str):
        raise UserError("texts: expected a list of texts, found one text; write [text]")
    if not isinstance(texts, Collection):
        raise UserError(f"texts: expected a list of texts, found {quoted(texts)}")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"texts[{number}]: expected a text, found {quoted(text)}")


def load(model: Checkpoint | str | Path, *, store: Store = None) -> LoadedRetriever:
    """Return a retriever: a checkpoint of a run, a key of the store, a folder, package:NAME/FOLDER or a hub name.

    The folder of `pretrieve adapt` is one, too, and has an index to search.

    retriever = pretrieve.load(run["retriever_2"])
    retriever = pretrieve.load("checkpoints/minilm")
    """
    if isinstance(model, Checkpoint):
        return _loaded(model.key, model.store)
    if not isinstance(model, str | os.PathLike):
        raise UserError(
            f"{type(model).__name__}: expected a checkpoint of a run, such as run['retriever_2'], a key, a folder or a "
            "model's name"
        )
    return _loaded(str(model), store_folder(store))


def _loaded(name: str, folder: Path) -> LoadedRetriever:
    if is_adapted(name):
        store = OpenStore.open(folder_of_store(name, folder))
        return LoadedRetriever(model_weights(str((Path(name) / MODEL).resolve())), name, store, Path(name))
    store = OpenStore.open_or_new(folder)
    _, _, model = by_name(name, store)
    if isinstance(model, Source):
        with session(Session(store)):
            model = model_weights(name)  # converted, where the weights are only in pytorch_model.bin
    return LoadedRetriever(model, name, store)
