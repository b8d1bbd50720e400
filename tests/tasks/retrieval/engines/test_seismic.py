"""Seismic against a loop over all rows: what is found, that scores are exact, that bytes repeat."""

from collections.abc import Callable
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
from tasks.retrieval.ranking import Hits
from tests.tasks import clustered
from tests.tasks.clustered import Sparse
from tests.tasks.stored import names

pytestmark = pytest.mark.usefixtures("on_one_thread")
pytest.importorskip("seismic", reason="pyseismic-lsr has no wheel for this machine")
COUNT, DEPTH, VOCABULARY = 1200, 20, 300
IDS = names(COUNT)
ROWS = clustered.sparse(np.random.default_rng(0), COUNT, VOCABULARY)
QUERIES = [*clustered.sparse(np.random.default_rng(1), 38, VOCABULARY), {}, {VOCABULARY + 5: 1.0}]
LARGE = Seismic(
    engine="seismic", n_postings=COUNT, max_fraction=6, summary_energy=1, query_cut=VOCABULARY, heap_factor=0
)
SMALL = Seismic(engine="seismic", n_postings=20, centroid_fraction=0.2, query_cut=4, heap_factor=1)


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    return written(Passages, clustered.passage_rows(COUNT))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return clustered.vectors_in(tmp_path_factory.mktemp("vectors"), Encoded(lexical=clustered.as_sparse(ROWS)))


@pytest.fixture(scope="module")
def find(made, passages: Artifact[Passages], vectors: Artifact) -> Callable[..., list[Hits]]:
    """find(settings, queries, depth) -> what a new index finds."""

    def found(settings: Seismic, queries: Sparse = QUERIES, depth: int = DEPTH) -> list[Hits]:
        return search(made(index, passages=passages, vectors=vectors, settings=settings), vectors, queries, depth)

    return found


def search(built: Artifact, vectors: Artifact, queries: Sparse = QUERIES, depth: int = DEPTH) -> list[Hits]:
    encode = clustered.asking(Encoded(lexical=clustered.as_sparse(queries)))
    searcher = seismic.open_index(built.path, vectors, encode, IDS, "lexical")
    return searcher([str(number) for number in range(len(queries))])(range(len(queries)), depth)


def score(query: dict[int, float], row: dict[int, float]) -> float:
    return sum(weight * row.get(piece, 0.0) for piece, weight in as_float32(query).items())


def as_float32(query: dict[int, float]) -> dict[int, float]:
    return {piece: float(np.float32(weight)) for piece, weight in query.items()}


def expected(queries: Sparse = QUERIES, depth: int = DEPTH) -> list[Hits]:
    """The best passages that share a word piece with the query."""
    found = []
    for query in queries:
        sharing = np.array([place for place, row in enumerate(ROWS) if query.keys() & row.keys()], np.int64)
        hits = IDS.in_order(sharing, np.array([score(query, ROWS[place]) for place in sharing]).astype(np.float32))
        found.append(Hits(hits.rows[:depth], hits.scores[:depth]))
    return found


def test_a_large_index_finds_what_a_loop_over_all_finds(find) -> None:
    found = find(LARGE)
    assert clustered.same(found, expected())
    assert [len(hits.rows) for hits in found[-2:]] == [0, 0]  # no word piece, and one that no passage has
    assert clustered.same(find(LARGE, depth=3 * COUNT), expected(depth=COUNT))


def test_a_small_index_finds_most_with_exact_scores(find) -> None:
    found, all_hits = find(SMALL), expected(depth=COUNT)
    assert 0.4 < clustered.recall(found, expected()) < 0.999
    for hits, everything in zip(found, all_hits, strict=True):
        scores = dict(zip(everything.rows, everything.scores, strict=True))
        listed = np.array([scores[place] for place in hits.rows], np.float32)
        assert clustered.same([hits], [IDS.in_order(hits.rows, listed)])


@pytest.mark.parametrize(
    ("depth", "change"),
    [(20, {"query_cut": 30}), (20, {"n_postings": 400}), (20, {"refine": 8}), (1, {"heap_factor": 0})],
)
def test_each_setting_that_looks_further_finds_more(
    find, monkeypatch: pytest.MonkeyPatch, depth: int, change: dict[str, float]
) -> None:
    shallow = SMALL
    if "heap_factor" in change:  # clusters are only skipped when a list is full before all of them are seen
        monkeypatch.setattr("tasks.retrieval.two_stage.EXTRA_CANDIDATES", 0)
        shallow = SMALL.model_copy(update={"n_postings": 100, "summary_energy": 0.1})
    settings = (shallow, shallow.model_copy(update=change))
    before, after = (clustered.recall(find(each, depth=depth), expected(depth=depth)) for each in settings)
    assert before < after


def test_the_default_settings_find_nearly_everything(find) -> None:
    assert clustered.recall(find(Seismic(engine="seismic")), expected()) > 0.9


def test_an_index_is_the_same_each_time_and_when_it_is_read_again(
    made, passages: Artifact[Passages], vectors: Artifact
) -> None:
    one, other = (made(index, passages=passages, vectors=vectors, settings=SMALL) for _ in range(2))
    assert (one.path / seismic.INDEX).read_bytes() == (other.path / seismic.INDEX).read_bytes()
    assert clustered.same(search(one, vectors), search(one, vectors))
    before = (one.path / seismic.INDEX).stat().st_mtime_ns
    index.body(one.path, passages, vectors, None, settings=SMALL)
    assert (one.path / seismic.INDEX).stat().st_mtime_ns == before


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


def test_word_pieces_that_take_from_a_score_count_but_propose_nothing(find) -> None:
    lists = [{1: 2.0, 2: -1.0}, {1: -1.0}]
    assert clustered.same(find(LARGE, lists, COUNT)[:1], [_with(1, lists[0])])
    assert not len(find(LARGE, lists)[1].rows)


def _with(piece: int, query: dict[int, float]) -> Hits:
    places = np.array([place for place, row in enumerate(ROWS) if piece in row])
    return IDS.in_order(places, np.array([score(query, ROWS[place]) for place in places]).astype(np.float32))


def test_weights_below_zero_are_refused(passages: Artifact[Passages], tmp_path: Path) -> None:
    rows = [{1: 1.0}] * 700 + [{}, {1: 0.5, 4: -0.25}] + [{1: 1.0}] * 498
    signed = clustered.vectors_in(tmp_path / "vectors", Encoded(lexical=clustered.as_sparse(rows)))
    with pytest.raises(UserError, match=r"passage 701 has a token of weight -0\.25.*below 0.*engine: exact"):
        index.body(tmp_path / "index", passages, signed, None, settings=LARGE)


def test_a_vocabulary_that_sixteen_bits_cannot_count_is_refused(written, tmp_path: Path) -> None:
    large = clustered.vectors_in(tmp_path / "vectors", Encoded(lexical=clustered.as_sparse([{1: 1.0, 65_536: 1.0}])))
    with pytest.raises(UserError, match="65,536 tokens"):
        index.body(tmp_path / "index", written(Passages, clustered.passage_rows(1)), large, None, settings=LARGE)


def test_passages_without_any_word_piece_can_be_searched(written, made, tmp_path: Path) -> None:
    empty = clustered.vectors_in(tmp_path, Encoded(lexical=clustered.as_sparse([{}] * COUNT)))
    built = made(index, passages=written(Passages, clustered.passage_rows(COUNT)), vectors=empty, settings=LARGE)
    assert [len(hits.rows) for hits in search(built, empty)] == [0] * len(QUERIES)


def test_nothing_is_printed(
    made, passages: Artifact[Passages], vectors: Artifact, capfd: pytest.CaptureFixture[str]
) -> None:
    search(made(index, passages=passages, vectors=vectors, settings=SMALL), vectors)
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
def test_settings_that_mean_nothing_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Seismic.model_validate({"engine": "seismic", **values})
