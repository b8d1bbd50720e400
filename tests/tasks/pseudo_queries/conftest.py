"""Fixtures of the tests that generate pseudo-queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact, Source
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tasks.pseudo_queries import generate_queries as module
from tasks.pseudo_queries.generate_queries import generate_queries
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tests.tasks.pseudo_queries.small_corpus import SETTINGS, WORDS, Corpus, rows, texts
from tests.tiny import SPECIALS, save_t5


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A random T5 over a few words."""
    return Source("tiny-t5", save_t5(tmp_path_factory.mktemp("generator"), [*SPECIALS, *WORDS]))


@pytest.fixture
def passages(written: Any) -> Artifact[Passages]:
    results: Artifact[Passages] = written(Passages, rows(texts()))
    return results


@pytest.fixture
def corpus(generator: Source, store: Store, tmp_path: Path) -> Corpus:
    """corpus(passages, replaced=..., **changes of the settings) -> what the stage writes, with the test's ledgers."""
    assert store.root.is_relative_to(tmp_path)
    numbers = count()

    def make(
        passages: Artifact[Passages], *, replaced: Source | None = None, by: Source = generator,
        out: Path | None = None, **changes: Any,
    ) -> Artifact[PseudoQueries]:  # fmt: skip
        folder = out or tmp_path / f"corpus-{next(numbers)}"
        generate_queries.body(folder, passages, by, replaced, [], settings=SETTINGS.model_copy(update=changes))
        return Artifact("generate_queries", folder.name, folder)

    return make


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """The requests that the sampler receives."""
    received: list[GenerationRequest] = []

    class Watched(Sampler):
        def __call__(self, inputs: Sequence[GenerationRequest]) -> Iterator[list[tuple[int, list[str]]]]:
            received.extend(inputs)
            return super().__call__(inputs)

    monkeypatch.setattr(module, "Sampler", Watched)
    return received
