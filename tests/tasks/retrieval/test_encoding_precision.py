"""The precision of vectors and of a cross-encoder's scores is part of their key, and decides their bytes on a CPU."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.recipe.suite_schema import load_suite
from models.retrievers import retriever
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.tables import Passages, Queries, Vectors
from storage.vectors import VECTORS_JSON, Encoded, read_shard
from tasks.cross_encoder.pairs import Scorer, Scoring
from tasks.cross_encoder.score import score
from tasks.job import Job
from tasks.pseudo_queries.filter_settings import Relevance
from tasks.retrieval.encode import Encoding, TextEncoder, encode
from tasks.retrieval.search import QueryEncoder
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.retrieval.test_encode import saved
from tests.tiny import WORDS, tiny_retriever

pytestmark = pytest.mark.usefixtures("on_one_thread")
LENGTHS = {"query_max_tokens": 12, "passage_max_tokens": 24}
PAIR_LENGTHS = {"query_max_tokens": 6, "max_tokens": 14}
RELATIVE = {"bfloat16": 2.0**-5, "float16": 2.0**-8}
"""The tolerance of a difference to float32, relative to the largest number: about ten roundings of a product."""
PAIRS = [([2, 20, 21, 3, 33, 3], 4), ([2, 14, 3, 15, 16, 17, 3], 3)]


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    blank = {"title": "", "start": 0, "end": 1, "num_tokens": 1}
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(WORDS, size=number % 20 + 1)) for number in range(40)]
    return written(Passages, [{"passage_id": f"p{n}", "doc_id": "d", "text": text, **blank} for n, text in
                              enumerate(texts)])  # fmt: skip


def bytes_of(folder: Path) -> Mapping[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != VECTORS_JSON)
    assert files
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def arrays(encoded: Encoded) -> dict[str, np.ndarray]:
    """The numbers of each view; lexical weights with the sum of each text, since small ones may vanish."""
    assert encoded.dense is not None
    assert encoded.lexical is not None
    assert encoded.late is not None
    sums = np.add.reduceat(encoded.lexical.values, encoded.lexical.offsets[:-1])
    return {"dense": encoded.dense, "lexical": sums, "late": encoded.late.vectors}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_vectors_of_a_lower_precision_are_near_float32_and_have_a_key_of_their_own(
    precision: str, passages: Artifact[Passages], run_stage: Callable[..., Artifact[Vectors]], tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path, "mixture")

    def built(precision: str | None) -> Artifact[Vectors]:
        settings = Encoding.model_validate({**LENGTHS, "precision": precision})
        return run_stage(encode, passages, checkpoint, settings=settings)

    def key(precision: str | None) -> str:
        settings = Encoding.model_validate({**LENGTHS, "precision": precision})
        return Job(encode, [passages, checkpoint], settings).key

    lower, again, exact, default = built(precision), built(precision), built("float32"), built(None)

    assert bytes_of(lower.path) == bytes_of(again.path) != bytes_of(exact.path) == bytes_of(default.path)
    assert len({key(precision), key("float32"), key(None)}) == 3
    ours, reference = (arrays(read_shard(one.path, 0)) for one in (lower, exact))
    for view, values in ours.items():
        difference, largest = np.abs(values - reference[view]).max(), np.abs(reference[view]).max()
        assert 0 < difference < RELATIVE[precision] * largest, view


def test_without_a_precision_dumps_are_as_before_the_setting() -> None:
    assert Encoding.model_validate(LENGTHS).model_dump() == LENGTHS
    assert Scoring.model_validate(PAIR_LENGTHS).model_dump() == PAIR_LENGTHS


def test_queries_are_encoded_in_the_precision_of_the_stored_vectors(
    passages: Artifact[Passages], run_stage: Callable[..., Artifact[Vectors]], tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path, "dpr")
    for precision in (None, "bfloat16"):
        settings = Encoding.model_validate({**LENGTHS, "precision": precision})
        vectors = run_stage(encode, passages, checkpoint, settings=settings)
        expected = TextEncoder(checkpoint.path, settings.precision)(["king of the island"], "query", 12)
        assert np.array_equal(QueryEncoder(vectors, checkpoint)(["king of the island"]).dense, expected.dense)


def test_a_query_whose_vector_is_not_finite_is_refused(
    passages: Artifact[Passages], run_stage: Callable[..., Artifact[Vectors]], tmp_path: Path
) -> None:
    vectors = run_stage(encode, passages, saved(tmp_path, "dpr"), settings=Encoding.model_validate(LENGTHS))
    network = tiny_retriever("dpr")
    with torch.no_grad():
        for name, weights in network.named_parameters():
            if name.endswith("LayerNorm.weight"):
                weights.fill_(3e38)  # finite itself, and most of its products are not
    retriever.save(network, tmp_path)

    with pytest.raises(UserError, match="search: the dense representation of a query is not finite"):
        QueryEncoder(vectors, Artifact("train", "dpr", tmp_path))(["king of the island"])


def test_scores_of_a_lower_precision_are_near_float32_and_have_a_key_of_their_own(
    passages: Artifact[Passages], tmp_path: Path
) -> None:
    teacher = Source("teacher", folder_of(tiny_cross_encoder(), tmp_path))
    queries: Artifact[Queries] = Artifact("queries", "q", tmp_path)

    def scores(precision: str | None) -> np.ndarray:
        settings = Scoring.model_validate({**PAIR_LENGTHS, "precision": precision})
        return Scorer(teacher, settings)(PAIRS, lambda number: None)

    def key(precision: str | None) -> str:
        settings = Scoring.model_validate({**PAIR_LENGTHS, "precision": precision})
        return Job(score, [teacher, queries, passages, queries, queries], settings).key

    lower, exact = scores("bfloat16"), scores("float32")
    assert np.array_equal(lower, scores("bfloat16"))
    assert np.array_equal(exact, scores(None))
    assert 0 < np.abs(lower - exact).max() < RELATIVE["bfloat16"] * np.abs(exact).max()
    assert len({key("bfloat16"), key("float32"), key(None)}) == 3


def test_a_filter_scores_in_its_precision() -> None:
    relevance = Relevance.model_validate({"model": "m", **PAIR_LENGTHS, "precision": "bfloat16"})
    assert relevance.scoring == Scoring.model_validate({**PAIR_LENGTHS, "precision": "bfloat16"})


def test_a_collection_of_a_suite_has_its_own_lengths_and_the_suites_precision() -> None:
    suite, _ = load_suite("small", ["encode.precision=bfloat16"])
    first = suite.collections[0]
    lengths = {"query_max_tokens": 5, "passage_max_tokens": 9}
    for given, expected in (
        (None, suite.encode.model_dump()),
        (lengths, {**lengths, "precision": "bfloat16"}),
        ({**lengths, "precision": "float32"}, {**lengths, "precision": "float32"}),
    ):
        encoding = None if given is None else Encoding.model_validate(given)
        assert suite.encoding_of(first.model_copy(update={"encode": encoding})).model_dump() == expected
