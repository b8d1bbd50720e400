"""Seismic against a loop over all rows: what is found, that scores are exact, that bytes repeat."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages
from storage.vectors import Encoded
from tasks.retrieval.engines import seismic
from tasks.retrieval.engines.seismic import Seismic
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import index
from tasks.retrieval.ranking import Hits, in_order
from tests.tasks import clustered
from tests.tasks.clustered import Sparse
from tests.tasks.retrieval.engines.approximate import Engine, assert_exact_scores, assert_reproducible, cut
from tests.tasks.stored import names

pytestmark = pytest.mark.usefixtures("on_one_thread")
pytest.importorskip("seismic", reason="pyseismic-lsr has no wheel for this machine")
COUNT, DEPTH, VOCABULARY = 1200, 20, 300
IDS = names(COUNT)
ROWS = clustered.sparse(np.random.default_rng(0), COUNT, VOCABULARY)
QUERIES = [*clustered.sparse(np.random.default_rng(1), 38, VOCABULARY), {}, {VOCABULARY + 5: 1.0}]
ENGINE = Engine(
    seismic, "lexical", Encoded(lexical=clustered.as_sparse(ROWS)), Encoded(lexical=clustered.as_sparse(QUERIES))
)
LARGE = Seismic(
    engine="seismic", n_postings=COUNT, max_fraction=6, summary_energy=1, query_cut=VOCABULARY, heap_factor=0
)
SMALL = Seismic(engine="seismic", n_postings=20, centroid_fraction=0.2, query_cut=4, heap_factor=1)


def score(query: dict[int, float], row: dict[int, float]) -> float:
    return sum(weight * row.get(piece, 0.0) for piece, weight in as_float32(query).items())


def as_float32(query: dict[int, float]) -> dict[int, float]:
    return {piece: float(np.float32(weight)) for piece, weight in query.items()}


def expected(queries: Sparse = QUERIES, depth: int = DEPTH) -> list[Hits]:
    """The best passages that share a token with the query."""
    lists = []
    for query in queries:
        matches = np.array([row for row, weights in enumerate(ROWS) if query.keys() & weights.keys()], np.int64)
        scores = np.array([score(query, ROWS[row]) for row in matches]).astype(np.float32)
        lists.append(in_order(IDS, matches, scores))
    return cut(lists, depth)


def test_a_small_index_has_high_recall_and_exact_scores(find) -> None:
    results = find(SMALL)
    assert 0.4 < clustered.recall(results, expected()) < 0.999
    assert_exact_scores(ENGINE, results, expected(depth=COUNT))


@pytest.mark.parametrize(
    ("depth", "change"),
    [(20, {"query_cut": 30}), (20, {"n_postings": 400}), (20, {"refine": 8}), (1, {"heap_factor": 0})],
)
def test_recall_grows_with_each_setting(
    find, monkeypatch: pytest.MonkeyPatch, depth: int, change: dict[str, float]
) -> None:
    shallow = SMALL
    if "heap_factor" in change:  # clusters are only skipped when a list is full before all of them are seen
        monkeypatch.setattr("tasks.retrieval.two_stage.EXTRA_CANDIDATES", 0)
        shallow = SMALL.model_copy(update={"n_postings": 100, "summary_energy": 0.1})
    settings = (shallow, shallow.model_copy(update=change))
    before, after = (clustered.recall(find(setting, depth=depth), expected(depth=depth)) for setting in settings)
    assert before < after


def test_the_default_settings_have_high_recall(find) -> None:
    assert clustered.recall(find(Seismic(engine="seismic")), expected()) > 0.9


def test_an_index_is_reproducible(run_stage, passages: Artifact[Passages], vectors: Artifact) -> None:
    build = partial(run_stage, index, passages=passages, vectors=vectors, settings=SMALL)
    assert_reproducible(ENGINE, build, passages, vectors, SMALL, DEPTH)


def test_rows_are_written_as_seismic_reads_them(vectors: Artifact, tmp_path: Path) -> None:
    seismic.write_rows(tmp_path / "rows.bin", StoredVectors(vectors.path, "lexical"))
    content, at = (tmp_path / "rows.bin").read_bytes(), 4
    filled = [row for row in ROWS if row]
    assert len(filled) < COUNT
    assert int.from_bytes(content[:4], "little") == len(filled)
    for row in filled:
        length = int.from_bytes(content[at : at + 4], "little")
        ids = np.frombuffer(content[at + 4 : at + 4 + 4 * length], "<u4")
        weights = np.frombuffer(content[at + 4 + 4 * length : at + 4 + 8 * length], "<f4")
        assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == row
        at += 4 + 8 * length
    assert at == len(content)


def test_negative_query_weights_count_but_propose_no_candidates(find) -> None:
    queries = [{1: 2.0, 2: -1.0}, {1: -1.0}]
    encoded = Encoded(lexical=clustered.as_sparse(queries))
    assert clustered.same(find(LARGE, COUNT, encoded)[:1], [_with(1, queries[0])])
    assert not len(find(LARGE, queries=encoded)[1].rows)


def _with(token: int, query: dict[int, float]) -> Hits:
    rows = np.array([row for row, weights in enumerate(ROWS) if token in weights])
    return in_order(IDS, rows, np.array([score(query, ROWS[row]) for row in rows]).astype(np.float32))


def test_weights_below_zero_are_refused(passages: Artifact[Passages], tmp_path: Path) -> None:
    rows = [{1: 1.0}] * 700 + [{}, {1: 0.5, 4: -0.25}] + [{1: 1.0}] * 498
    signed = clustered.vectors_in(tmp_path / "vectors", Encoded(lexical=clustered.as_sparse(rows)))
    with pytest.raises(UserError, match=r"passage 701 has a token of weight -0\.25.*below 0.*engine: exact"):
        index.body(tmp_path / "index", passages, signed, None, settings=LARGE)


def test_a_vocabulary_beyond_sixteen_bits_is_refused(written, tmp_path: Path) -> None:
    large = clustered.vectors_in(tmp_path / "vectors", Encoded(lexical=clustered.as_sparse([{1: 1.0, 65_536: 1.0}])))
    with pytest.raises(UserError, match="65,536 tokens"):
        index.body(tmp_path / "index", written(Passages, clustered.passage_rows(1)), large, None, settings=LARGE)


def test_passages_without_tokens_can_be_searched(written, run_stage, tmp_path: Path) -> None:
    empty = clustered.vectors_in(tmp_path, Encoded(lexical=clustered.as_sparse([{}] * COUNT)))
    built = run_stage(index, passages=written(Passages, clustered.passage_rows(COUNT)), vectors=empty, settings=LARGE)
    assert [len(hits.rows) for hits in ENGINE.search(built, empty, DEPTH)] == [0] * len(QUERIES)


def test_nothing_is_printed(
    run_stage, passages: Artifact[Passages], vectors: Artifact, capfd: pytest.CaptureFixture[str]
) -> None:
    ENGINE.search(run_stage(index, passages=passages, vectors=vectors, settings=SMALL), vectors, DEPTH)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "values",
    [
        {"n_postings": 0}, {"centroid_fraction": 0}, {"centroid_fraction": 1.5}, {"min_cluster_size": 0},
        {"summary_energy": 0}, {"summary_energy": 1.1}, {"max_fraction": 0.5}, {"doc_cut": 0}, {"query_cut": 0},
        {"heap_factor": -0.1}, {"heap_factor": 1.1}, {"refine": 0}, {"n_postings": 500_000},
    ],
    ids=lambda values: "{}={}".format(*next(iter(values.items()))),
)  # fmt: skip
def test_invalid_settings_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Seismic.model_validate({"engine": "seismic", **values})
