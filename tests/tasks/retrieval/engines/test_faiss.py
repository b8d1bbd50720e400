"""FAISS engines against a loop over all vectors: what is found, that scores are exact, that bytes repeat."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages
from storage.vectors import Encoded
from tasks.retrieval.engines import faiss
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.index import index
from tasks.retrieval.ranking import Hits
from tasks.session import Execution, Session, session
from tests.tasks import clustered
from tests.tasks.retrieval.engines.approximate import Engine, assert_exact_scores, assert_reproducible, cut
from tests.tasks.stored import names

pytestmark = pytest.mark.usefixtures("on_one_thread")
COUNT, DEPTH = 1500, 20
IDS = names(COUNT)
VECTORS = clustered.dense(np.random.default_rng(0), COUNT)
QUERIES = clustered.dense(np.random.default_rng(1), 40)
ENGINE = Engine(faiss, "dense", Encoded(dense=VECTORS), Encoded(dense=QUERIES), rows_per_shard=400)
KINDS = [
    Faiss(engine="faiss", factory="Flat", ef_search=None, nprobe=None, refine=1),
    Faiss(engine="faiss", factory="HNSW16", ef_search=64, nprobe=None, refine=1),
    Faiss(engine="faiss", factory="IVF16,Flat", ef_search=None, nprobe=4, refine=1),
    Faiss(engine="faiss", factory="IVF16,PQ8x4", ef_search=None, nprobe=8, refine=4),
    Faiss(engine="faiss", factory="IVF16_HNSW8,SQ8", ef_search=16, nprobe=4, refine=1),
]


def scores(query: np.ndarray) -> list[float]:
    return [sum(float(a) * float(b) for a, b in zip(query, vector, strict=True)) for vector in VECTORS]


@pytest.fixture(scope="module")
def expected() -> list[Hits]:
    return [clustered.truth(scores(query), COUNT, IDS) for query in QUERIES]


def test_a_search_of_all_cells_or_the_complete_graph_is_exact(find, expected: list[Hits]) -> None:
    assert clustered.same(find(KINDS[2].model_copy(update={"nprobe": 16})), cut(expected, DEPTH))
    # By inner product, a graph has a few passages that no other leads to.
    assert clustered.recall(find(KINDS[1].model_copy(update={"ef_search": COUNT})), cut(expected, DEPTH)) > 0.98


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.factory)
def test_recall_is_high_and_scores_are_exact(find, expected: list[Hits], kind: Faiss) -> None:
    results = find(kind)
    assert clustered.recall(results, cut(expected, DEPTH)) > 0.85
    assert all(len(hits.rows) <= DEPTH for hits in results)
    assert_exact_scores(ENGINE, results, expected)


def test_refinement_compensates_for_compression(find, expected: list[Hits]) -> None:
    coarse = Faiss(engine="faiss", factory="PQ2x4", ef_search=None, nprobe=None, refine=1)
    deeper = coarse.model_copy(update={"refine": 10})
    lost, kept = (clustered.recall(find(kind), cut(expected, DEPTH)) for kind in (coarse, deeper))
    assert lost < 0.8 < kept


def test_recall_grows_with_cells_and_candidates(find, expected: list[Hits]) -> None:
    cells = KINDS[2].model_copy(update={"factory": "IVF64,Flat"})
    one, eight = (find(cells.model_copy(update={"nprobe": number}), depth=200) for number in (1, 8))
    assert clustered.recall(one, cut(expected, 200)) < 0.6 < clustered.recall(eight, cut(expected, 200))
    assert all(len(hits.rows) < 200 for hits in one)  # a cell has fewer; FAISS fills up with -1
    graph = KINDS[1].model_copy(update={"factory": "HNSW4"})
    few, many = (find(graph.model_copy(update={"ef_search": number}), depth=1) for number in (1, 400))
    assert clustered.recall(few, cut(expected, 1)) < clustered.recall(many, cut(expected, 1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.factory)
def test_an_index_is_reproducible_with_any_number_of_threads(
    run_stage, passages: Artifact[Passages], vectors: Artifact, kind: Faiss
) -> None:
    threads = iter((1, 2))

    def build() -> Artifact:
        with session(Session(None, Execution(workers=1, threads=next(threads), device="cpu"))):  # type: ignore[arg-type]
            return run_stage(index, passages=passages, vectors=vectors, settings=kind)

    assert_reproducible(ENGINE, build, passages, vectors, kind, DEPTH)


def test_lists_do_not_depend_on_the_size_of_blocks(
    run_stage, passages: Artifact[Passages], vectors: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = run_stage(index, passages=passages, vectors=vectors, settings=KINDS[1])
    together = ENGINE.search(built, vectors, DEPTH)
    monkeypatch.setattr("tasks.retrieval.two_stage.PAIRS_PER_BLOCK", 120)
    assert clustered.same(ENGINE.search(built, vectors, DEPTH), together)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("Flatt", "FAISS cannot build 'Flatt' for vectors of 16 dimensions .*could not parse"),
        ("PQ5", "FAISS cannot build 'PQ5' for vectors of 16 dimensions .*multiple of the number of subquantizers"),
        ("PQ4x11", "'PQ4x11' cannot be trained on 1500 vectors .*1500.* number of clusters .2048"),
    ],
)
def test_factories_that_faiss_refuses_are_user_errors(
    passages: Artifact[Passages], vectors: Artifact, tmp_path: Path, factory: str, message: str
) -> None:
    with pytest.raises(UserError, match=rf"index\.factory: {message}"):
        index.body(tmp_path, passages, vectors, None, settings=KINDS[0].model_copy(update={"factory": factory}))


def test_more_cells_than_vectors_are_refused(written, tmp_path: Path) -> None:
    few = clustered.vectors_in(tmp_path / "vectors", Encoded(dense=VECTORS[:10]))
    with pytest.raises(UserError, match=r"'IVF16,Flat' cannot be trained on 10 vectors .*use fewer cells"):
        index.body(tmp_path, written(Passages, clustered.passage_rows(10)), few, None, settings=KINDS[2])


def test_no_passages_and_no_dense_view_are_errors(
    written, passages: Artifact[Passages], vectors: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no vectors to index"):
        index.body(tmp_path, written(Passages, []), vectors, None, settings=KINDS[0])
    other = clustered.vectors_in(tmp_path / "other", Encoded(lexical=clustered.as_sparse([{1: 1.0}] * COUNT)))
    with pytest.raises(UserError, match="indexes the dense view, and the retriever has lexical"):
        index.body(tmp_path, passages, other, None, settings=KINDS[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"factory": "HNSW32", "ef_search": None, "nprobe": None}, "ef_search: expected a number"),
        ({"factory": "Flat", "ef_search": 10, "nprobe": None}, "ef_search: expected null"),
        ({"factory": "IVF8,Flat", "ef_search": None, "nprobe": None}, "nprobe: expected a number"),
        ({"factory": "Flat", "ef_search": None, "nprobe": 1}, "nprobe: expected null"),
        ({"factory": "IVF8,Flat", "ef_search": None, "nprobe": 9}, "9 is more cells"),
        ({"factory": "IVF8,Flat", "ef_search": None, "nprobe": 0}, "greater than 0"),
        ({"factory": "Flat", "ef_search": None, "nprobe": None, "refine": 0}, "greater than 0"),
        ({"factory": "Flat", "ef_search": None}, "nprobe"),
        ({"factory": "NSG16", "ef_search": None, "nprobe": None}, "cannot be built shard by shard"),
    ],
)
def test_search_parameters_have_to_fit_the_factory(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Faiss.model_validate({"engine": "faiss", "refine": 1, **values})


def test_the_training_sample_is_limited_and_even_over_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [VECTORS[:740], VECTORS[740:760], VECTORS[760:]]
    assert len(faiss._sample(shards.__getitem__, 3)) == COUNT
    monkeypatch.setattr(faiss, "TRAINING_VECTORS", 1200)
    sample = faiss._sample(shards.__getitem__, 3)
    assert np.array_equal(sample, np.concatenate([shards[0][::2], shards[1], shards[2][::2]]))
    monkeypatch.setattr(faiss, "TRAINING_VECTORS", 3)
    assert np.array_equal(faiss._sample(shards.__getitem__, 3), VECTORS[[0, 740, 760]])
