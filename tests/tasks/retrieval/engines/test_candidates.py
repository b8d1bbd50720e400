"""Late interaction by candidates against MaxSim of all passages by the formula."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages
from storage.vectors import Encoded
from tasks.retrieval.engines import candidates
from tasks.retrieval.engines.candidates import Candidates, best_candidates
from tasks.retrieval.index import index
from tasks.retrieval.ranking import Hits, in_order
from tests.tasks import clustered
from tests.tasks.retrieval.engines.approximate import Engine, assert_exact_scores, assert_reproducible, cut
from tests.tasks.stored import names

pytestmark = pytest.mark.usefixtures("on_one_thread")
COUNT, DEPTH = 250, 10
IDS = names(COUNT)
ROWS = clustered.tokens(np.random.default_rng(0), COUNT)
QUERIES = [*clustered.tokens(np.random.default_rng(1), 15, longest=6), ROWS[0][:0]]
ENGINE = Engine(
    candidates,
    "late",
    Encoded(late=clustered.as_tokens(ROWS)),
    Encoded(late=clustered.as_tokens(QUERIES)),
    rows_per_shard=40,
)
TOKENS = sum(len(row) for row in ROWS)
ALL = Candidates(
    engine="candidates", factory="Flat", ef_search=None, nprobe=None, tokens_per_query_token=TOKENS, candidates=COUNT
)
SOME = Candidates(
    engine="candidates", factory="IVF16,PQ8x4", ef_search=None, nprobe=4, tokens_per_query_token=60, candidates=40
)


@pytest.fixture(scope="module")
def expected() -> list[Hits]:
    """All passages that have a token, by MaxSim; nothing for a query without tokens."""
    lists = []
    for query in QUERIES:
        rows = np.array([row for row, tokens in enumerate(ROWS) if len(tokens) and len(query)], np.int64)
        scores = np.array([clustered.max_sim(query, ROWS[row]) for row in rows])
        lists.append(in_order(IDS, rows, scores.astype(np.float32)))
    return lists


def test_a_compressed_index_has_high_recall_and_exact_scores(find, expected: list[Hits]) -> None:
    results = find(SOME)
    assert 0.8 < clustered.recall(results, cut(expected, DEPTH)) < 1
    assert_exact_scores(ENGINE, results, expected, rtol=2e-7)


def test_recall_grows_with_candidates_and_tokens(find, expected: list[Hits]) -> None:
    few = SOME.model_copy(update={"candidates": DEPTH, "tokens_per_query_token": 10, "nprobe": 1})
    assert all(len(hits.rows) <= DEPTH for hits in find(few, depth=COUNT))  # no list is longer than the candidates
    recalls = [
        clustered.recall(find(few.model_copy(update=change)), cut(expected, DEPTH))
        for change in ({}, {"tokens_per_query_token": 60}, {"tokens_per_query_token": 60, "candidates": 60})
    ]
    assert recalls == sorted(set(recalls))


def test_missing_similarities_are_imputed_by_the_lowest_retrieved_one() -> None:
    offsets = np.array([0, 2, 2, 3, 5])  # passages of 2, 0, 1 and 2 tokens
    tokens_LK = np.array([[0, 1, 3], [2, 4, -1]])
    scores_LK = np.array([[0.9, 0.8, 0.5], [0.7, 0.6, -9.0]], np.float32)
    # By hand: passage 0: 0.9 + 0.6 (its own worst stands for what is missing) = 1.5; passage 2: 0.5 + 0.7 = 1.2;
    # passage 3: 0.5 + 0.6 = 1.1. Passage 1 has no token.
    assert best_candidates(scores_LK, tokens_LK, offsets, names(4), 9).tolist() == [0, 2, 3]
    assert best_candidates(scores_LK, tokens_LK, offsets, names(4), 2).tolist() == [0, 2]
    nothing = best_candidates(np.full((2, 3), -9.0, np.float32), np.full((2, 3), -1), offsets, names(4), 9)
    assert not len(nothing)


def test_a_query_token_counts_a_passage_once_by_its_best() -> None:
    offsets, scores_LK = np.array([0, 3, 4, 5]), np.array([[0.5, 0.9, 0.6, 0.7, 0.1]], np.float32)
    # Passage 0 has three tokens, whose gains above the worst (0.4, 0.5 and 0.6 against 0.8) add up to more.
    assert best_candidates(scores_LK, np.array([[0, 3, 1, 2, 4]]), offsets, names(3), 9).tolist() == [1, 0, 2]


def test_missing_similarities_below_zero_are_no_gain() -> None:
    """With 0 for what is missing, passage 1, which only one query token found, would come first."""
    tokens_LK, scores_LK = np.array([[0, 1], [0, 2]]), np.array([[-0.2, -0.3], [-0.2, -0.9]], np.float32)
    assert best_candidates(scores_LK, tokens_LK, np.arange(4), names(3), 1).tolist() == [0]


@pytest.mark.parametrize("kind", [ALL, SOME], ids=lambda kind: kind.factory)
def test_an_index_is_reproducible(run_stage, passages: Artifact[Passages], vectors: Artifact, kind: Candidates) -> None:
    build = partial(run_stage, index, passages=passages, vectors=vectors, settings=kind)
    assert_reproducible(ENGINE, build, passages, vectors, kind, DEPTH)


def test_exact_matches_are_refused(passages: Artifact[Passages], tmp_path: Path) -> None:
    coil = clustered.vectors_in(tmp_path, Encoded(late=clustered.as_tokens(ROWS)), exact_match=True)
    with pytest.raises(UserError, match=r"exact_match.*search it with \{engine: exact\}"):
        index.body(tmp_path / "index", passages, coil, None, settings=ALL)


def test_passages_without_any_token_cannot_be_indexed(passages: Artifact[Passages], tmp_path: Path) -> None:
    empty = clustered.vectors_in(tmp_path, Encoded(late=clustered.as_tokens([ROWS[0][:0]] * COUNT)))
    with pytest.raises(UserError, match="no vectors to index"):
        index.body(tmp_path / "index", passages, empty, None, settings=ALL)


@pytest.mark.parametrize("change", [{"candidates": 0}, {"tokens_per_query_token": 0}, {"nprobe": 3}, {"refine": 2}])
def test_invalid_settings_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Candidates.model_validate(ALL.model_dump() | change)
