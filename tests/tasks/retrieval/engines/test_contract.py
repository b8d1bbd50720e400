"""What every engine has to do: exhaustive search equals a slow reference in double precision, and a build resumes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.store.manifest_checks import MANIFEST
from storage.tables import Passages, Vectors
from storage.vectors import Encoded, SparseRows, TokenRows
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.candidates import Candidates
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.engines.seismic import Seismic
from tasks.retrieval.index import INDEX_JSON, EngineSettings, describe, engine, index
from tasks.retrieval.ranking import Hits
from tests.tasks import clustered
from tests.tasks.corpora import passage
from tests.tasks.stored import names, offsets, pair_score, texts

pytestmark = pytest.mark.usefixtures("on_one_thread")
COUNT, DEPTHS = 33, (1, 7, 100)  # no more passages than an approximate engine proposes for a list of one
IDS = names(COUNT)
DRAW = np.random.default_rng(1)
# Passages 4 to 14 are equal, as are some of the others, so lists of 1 and 7 end within ties.
PASSAGES = texts(DRAW, 15).taken(np.where(abs(np.arange(COUNT) - 9) <= 5, 3, DRAW.integers(0, 15, COUNT)))
UNKNOWN = Encoded(
    np.ones((1, 7), np.float32),
    SparseRows(offsets([1]), np.array([99], np.int32), np.ones(1, np.float32)),  # a token that no passage has
    TokenRows(offsets([1]), np.ones((1, 5), np.float32), np.array([99], np.int32)),
)
EMPTY = Encoded(
    np.zeros((1, 7), np.float32),
    SparseRows(offsets([0]), np.zeros(0, np.int32), np.zeros(0, np.float32)),
    TokenRows(offsets([0]), np.zeros((0, 5), np.float32), np.zeros(0, np.int32)),
)
QUERIES = Encoded.concatenated([PASSAGES.taken([0, 9]), texts(DRAW, 6), UNKNOWN, EMPTY])
EMPTY_QUERY = len(QUERIES) - 1


def words(encoded: Encoded, row: int) -> list[str]:
    """The words of a row for BM25: one for each token of the lexical view, so that an empty row is an empty text."""
    return [f"w{token}" for token in encoded.lexical.rows(row, row + 1).ids]


# A passage repeats some of its words; a query does not, since repetition may change the last bit of `bm25s`.
PASSAGE_WORDS = [
    [word for n, word in enumerate(words(PASSAGES, row)) for _ in range(1 + n % 3)] for row in range(COUNT)
]
QUERY_WORDS = [words(QUERIES, row) for row in range(len(QUERIES))]
QUERY_TEXTS = [" ".join(query) for query in QUERY_WORDS]


@dataclass(frozen=True)
class Case:
    """An engine with settings that let it look at every passage, and the view that it searches."""

    settings: EngineSettings
    view: str
    exact_match: bool = False


EXACT = Exact(engine="exact")
LISTS_ALL = ("exact", "faiss")
"""The engines that list passages which share nothing with a query; others list only those that do."""

ALL_TOKENS = Candidates(
    engine="candidates", factory="Flat", ef_search=None, nprobe=None, tokens_per_query_token=999, candidates=COUNT
)
ALL_POSTINGS = Seismic(engine="seismic", max_fraction=6, summary_energy=1, query_cut=99, heap_factor=0)
CASES = {
    "exact dense": Case(EXACT, "dense"),
    "exact lexical": Case(EXACT, "lexical"),
    "exact late": Case(EXACT, "late"),
    "exact late, equal tokens": Case(EXACT, "late", exact_match=True),
    "exact sum": Case(EXACT, "sum"),
    "faiss flat": Case(Faiss(engine="faiss", factory="Flat", ef_search=None, nprobe=None, refine=1), "dense"),
    "faiss cells": Case(Faiss(engine="faiss", factory="IVF2,Flat", ef_search=None, nprobe=2, refine=1), "dense"),
    "seismic": Case(ALL_POSTINGS, "lexical"),
    "candidates": Case(ALL_TOKENS, "late"),
    "bm25": Case(Bm25(engine="bm25", k1=0.9, b=0.4), "bm25"),
    "bm25s": Case(Bm25(engine="bm25s", k1=0.9, b=0.4), "bm25"),
}  # fmt: skip


class Contract:
    """A case's inputs, its index in `folder`, and what its lists should be."""

    def __init__(self, case: Case, passages: Artifact[Passages], folder: Path) -> None:
        self.case, self.passages, self.folder = case, passages, folder / "index"
        self.vectors: Artifact[Vectors] | None = None
        if case.view != "bm25":
            self.vectors = clustered.vectors_in(folder / "vectors", PASSAGES, rows=25, exact_match=case.exact_match)

    def build(self, folder: Path) -> None:
        index.body(folder, self.passages, self.vectors, None, settings=self.case.settings)

    def search(self, folder: Path, depth: int, queries: list[int] | None = None) -> list[Hits]:
        """The lists of an index that is opened for these queries, or for all."""
        rows = list(range(len(QUERIES))) if queries is None else queries
        encode = None if self.vectors is None else lambda texts: QUERIES.taken(rows)
        searcher = engine(self.case.settings.engine).open_index(folder, self.vectors, encode, IDS, self.case.view)
        lists: list[Hits] = searcher([QUERY_TEXTS[row] for row in rows])(range(len(rows)), depth)
        return lists

    def files(self, folder: Path) -> dict[str, int]:
        """The time of the last change of each file of the index."""
        files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        others = {"scratch", INDEX_JSON, MANIFEST}
        return {str(name): path.stat().st_mtime_ns for name, path in files.items() if name.parts[0] not in others}

    def reference(self, query: int, depth: int) -> Hits:
        """The list by the formula, pair by pair in double precision: ties by descending id."""
        if self.case.view == "bm25":
            return bm25_reference(query, depth)
        encoded = QUERIES.taken([query])
        scores = {
            row: np.float32(pair_score(encoded, PASSAGES.taken([row]), self.case.view, self.case.exact_match))
            for row in range(COUNT)
            if self.matches(query, row)
        }
        rows = sorted(scores, key=lambda row: (scores[row], f"p{row}"), reverse=True)[:depth]
        return Hits(np.array(rows, np.int64), np.array([scores[row] for row in rows], np.float32))

    def matches(self, query: int, row: int) -> bool:
        """Whether the engine lists the passage."""
        if self.case.settings.engine in LISTS_ALL:
            return True
        if self.case.settings.engine == "candidates":
            return bool(words(QUERIES, query) and words(PASSAGES, row))
        return bool({*words(QUERIES, query)} & {*words(PASSAGES, row)})


def bm25_reference(query: int, depth: int) -> Hits:
    """BM25 in double precision, in Anserini's order: ties by ascending id, each lowered by 1e-6 more than the last."""
    lengths = [len(text) for text in PASSAGE_WORDS if text]
    scores: dict[int, float] = {}
    for word in QUERY_WORDS[query]:
        containing = [row for row, text in enumerate(PASSAGE_WORDS) if word in text]
        idf = math.log(1 + (len(lengths) - len(containing) + 0.5) / (len(containing) + 0.5))
        for row in containing:
            count, length = PASSAGE_WORDS[row].count(word), len(PASSAGE_WORDS[row]) / (sum(lengths) / len(lengths))
            scores[row] = scores.get(row, 0) + idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * length))
    rows = sorted(scores, key=lambda row: (-round(scores[row], 9), f"p{row}"))[:depth]
    return Hits(np.array(rows, np.int64), np.array([*lowered([scores[row] for row in rows])], np.float32))


def lowered(scores: list[float]) -> Iterator[float]:
    """Yield scores with four decimals, and each that is within 1e-4 of the one before 1e-6 lower than that one's."""
    previous, ties = math.inf, 0
    for score in scores:
        rounded = math.floor(score * 1e4 + 0.5) / 1e4
        ties = ties + 1 if previous - rounded <= 1e-4 else 0
        previous = rounded - 1e-6 * ties
        yield previous


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    return written(Passages, [passage(f"p{row}", " ".join(text)) for row, text in enumerate(PASSAGE_WORDS)])


@pytest.fixture(scope="module", params=CASES)
def contract(
    request: pytest.FixtureRequest, on_one_thread, passages, tmp_path_factory: pytest.TempPathFactory
) -> Contract:
    if request.param == "seismic":
        pytest.importorskip("seismic", reason="pyseismic-lsr has no wheel for this machine")
    contract = Contract(CASES[request.param], passages, tmp_path_factory.mktemp("contract"))
    contract.build(contract.folder)
    return contract


@pytest.mark.parametrize("depth", DEPTHS)
def test_lists_and_ties_equal_the_reference(contract: Contract, depth: int) -> None:
    results = contract.search(contract.folder, depth)
    for query, hits in enumerate(results):
        reference = contract.reference(query, depth)
        assert hits.rows.tolist() == reference.rows.tolist()
        assert hits.scores.dtype == np.float32
        # BM25 is computed in single precision and rounded to four decimals; the others' sums are exact.
        np.testing.assert_allclose(
            hits.scores, reference.scores, rtol=0, atol=2e-6 if contract.case.view == "bm25" else 0
        )
    assert max(len(hits.rows) for hits in results) <= min(depth, COUNT)


def test_an_empty_query_lists_all_passages_by_id_or_none(contract: Contract) -> None:
    (hits,) = contract.search(contract.folder, 9, [EMPTY_QUERY])
    by_id = sorted(range(COUNT), key=lambda row: f"p{row}", reverse=True)
    assert hits.rows.tolist() == (by_id[:9] if contract.case.settings.engine in LISTS_ALL else [])
    assert not hits.scores.any()


def test_a_list_does_not_depend_on_the_other_queries(contract: Contract) -> None:
    separate = [contract.search(contract.folder, 7, [query])[0] for query in range(len(QUERIES))]
    assert clustered.same(separate, contract.search(contract.folder, 7))


def test_a_finished_index_is_kept_and_described(contract: Contract) -> None:
    files, description = contract.files(contract.folder), (contract.folder / INDEX_JSON).read_bytes()
    (contract.folder / MANIFEST).write_text("written, but the folder was not renamed")
    contract.build(contract.folder)
    assert contract.files(contract.folder) == files
    assert (contract.folder / INDEX_JSON).read_bytes() == description
    described = describe(contract.folder)
    assert described["passages"] == COUNT
    size = sum((contract.folder / name).stat().st_size for name in files)
    assert described["bytes_per_passage"] == size / COUNT
    assert (size > 0) == (contract.case.settings.engine != "exact")


def test_an_interrupted_build_resumes(contract: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine_folder in ("lucene", "bm25s"):  # what an attempt leaves that was killed while it wrote
        (tmp_path / "scratch" / engine_folder).mkdir(parents=True)
        (tmp_path / "scratch" / engine_folder / "left over").write_text("half")
    if contract.files(contract.folder):
        with monkeypatch.context() as patch:
            patch.setattr("tasks.runtime.leftovers.write_atomically", _interrupt)  # complete, and not yet recorded
            with pytest.raises(KeyboardInterrupt):
                contract.build(tmp_path)
    contract.build(tmp_path)
    expected = contract.search(contract.folder, COUNT)
    assert clustered.same(contract.search(tmp_path, COUNT), expected)
    assert not list(tmp_path.glob("[!s]*/**/left over"))
    for name in contract.files(tmp_path):
        (tmp_path / name).write_bytes(b"damaged")
    contract.build(tmp_path)
    assert clustered.same(contract.search(tmp_path, COUNT), expected)


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt
