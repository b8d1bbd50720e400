"""CoT-MoTE's divergence: which pairs are drawn, and what is recorded of a retriever's vectors."""

import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from models.retrievers import retriever
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Checkpoint, Qrels, Queries
from storage.tables import Passages as PassageTable
from tasks.analyses.divergence import Reading, divergence, sample_pairs
from tasks.analyses.measures import embedding_space as space
from tasks.retrieval.encode import TextEncoder
from tests.tasks.analyses.drawing import section
from tests.tasks.corpora import passage
from tests.tiny import WORDS, save_tokenizer, tiny_retriever

pytestmark = pytest.mark.usefixtures("store")
SETTINGS = {
    "analysis": "divergence", "round": "retriever_1", "pairs": 8, "seed": 3, "seeds": [1, 2], "perplexity": 4.0,
    "query_max_tokens": 8, "passage_max_tokens": 16, "relevant_from": 1,
}  # fmt: skip
TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, size=9)) for n in range(24)]
# Each document has two passages; d11 was judged and is not in the collection.
PASSAGES = [passage(f"d{n // 2}#{n % 2}", text, title="king" if n == 6 else "") for n, text in enumerate(TEXTS[:22])]


def judged(query: int, document: int, grade: int = 1) -> dict[str, Any]:
    return {"query_id": f"q{query}", "doc_id": f"d{document}", "grade": grade}


QRELS = [*(judged(n, n) for n in range(12)), judged(0, 7), judged(12, 3), judged(13, 4, grade=0), judged(99, 2)]


@pytest.fixture(scope="module")
def tables(written: Any) -> tuple[Artifact[Any], ...]:
    queries = [{"query_id": f"q{n}", "text": " ".join(text.split()[::-1])} for n, text in enumerate(TEXTS[:14])]
    return written(Queries, queries), written(Qrels, QRELS), written(PassageTable, PASSAGES)


def checkpoint(folder: Any, kind: str = "dpr") -> Artifact[Checkpoint]:
    folder.mkdir()
    retriever.save(tiny_retriever(kind), folder)
    save_tokenizer(folder)
    return Artifact("train", kind, folder)


def test_sampled_pairs_are_relevant_and_have_distinct_documents(tables: Any) -> None:
    every = sample_pairs(*tables, Reading(**SETTINGS | {"pairs": 99}))
    some = sample_pairs(*tables, Reading(**SETTINGS))
    others = sample_pairs(*tables, Reading(**SETTINGS | {"seed": 4}))

    relevant = {(row["query_id"], row["doc_id"]) for row in QRELS if row["grade"]}
    assert {(row["query_id"], row["passage_id"].split("#")[0]) for row in every} <= relevant
    assert all(row["passage_id"].endswith("#0") for row in every)  # the document's first passage
    assert len({row["passage_id"] for row in every}) == len(every) >= 10
    assert not {"q11", "q13", "q99"} & {row["query_id"] for row in every}
    assert some == every[:8]  # a smaller draw lies within a larger one
    assert {other["query_id"] for other in others} != {row["query_id"] for row in some}
    assert {row["passage"] for row in every if row["passage_id"] == "d3#0"} == {f"king {TEXTS[6]}"}


def test_lower_grades_are_not_relevant(tables: Any, written: Any) -> None:
    queries, _, passages = tables
    qrels = written(Qrels, [judged(n, n, grade=n % 3) for n in range(8)])

    results = sample_pairs(queries, qrels, passages, Reading(**SETTINGS | {"relevant_from": 2}))

    assert {row["query_id"] for row in results} == {"q2", "q5"}


def test_the_analysis_equals_measures_of_the_vectors(tables: Any, run_stage: Any, tmp_path: Any) -> None:
    settings, model = Reading(**SETTINGS), checkpoint(tmp_path / "dpr")
    drawn = sample_pairs(*tables, settings)
    encoder = TextEncoder(model.path)
    queries = space.unit(encoder([row["query"] for row in drawn], "query", 8).dense)
    passages = space.unit(encoder([row["passage"] for row in drawn], "passage", 16).dense)
    distances = space.cosine_distances(np.concatenate([queries, passages]))
    planes = [space.plane(distances, perplexity=4.0, seed=seed) for seed in (1, 2)]

    result = run_stage(divergence, *tables, model, settings=settings)

    recorded = json.loads((result.path / "analysis.json").read_text())
    by_seed = [space.on_common_support(plane[:8], plane[8:]) for plane in planes]
    assert recorded["common_support"]["kl"] == pytest.approx({
        "mean": (by_seed[0]["kl"] + by_seed[1]["kl"]) / 2, "spread": np.std([row["kl"] for row in by_seed], ddof=1)
    })  # fmt: skip
    own = [space.on_own_points(plane[:8], plane[8:]) for plane in planes]
    assert recorded["own_points"]["js"]["mean"] == pytest.approx(np.mean([row["js"] for row in own if row]))
    assert recorded["cosines"] == pytest.approx(space.mean_cosines(queries, passages))
    assert recorded["probe_accuracy"] == space.probe_accuracy(queries, passages)
    assert recorded["squared_mmd"] == pytest.approx(space.squared_mmd(queries, passages))
    assert (recorded["analysis"], recorded["round"], recorded["drawn"]) == ("divergence", "retriever_1", 8)
    assert recorded["bandwidth"] == pytest.approx(0.5**0.5)

    seen = section("divergence", recorded)
    assert seen.tags.count("circle") == 8 + 1  # and in the legend
    assert "How far retriever_1 separates queries from passages" in seen.text
    assert f"{100 * recorded['probe_accuracy']:.1f} %" in seen.text
    assert f"{recorded['cosines']['pairs']:.3f}" in seen.text
    assert "log-densities differ in sign" in section("divergence", recorded | {"own_points": None}).text

    rows = pq.read_table(result.path / "points.parquet").to_pylist()
    assert len(rows) == 2 * 16
    assert [(row["x"], row["y"]) for row in rows[16:24]] == [tuple(point) for point in planes[1][:8].tolist()]
    assert [row["query_id"] for row in rows[24:]] == [row["query_id"] for row in drawn]
    picture = np.array([*recorded["picture"]["queries"], *recorded["picture"]["passages"]])
    assert (picture.min(0) == 0).all()
    assert picture.max() == 1000
    assert np.corrcoef(picture[:, 0], planes[0][:, 0])[0, 1] > 0.999


def test_equal_inputs_give_equal_bytes(tables: Any, run_stage: Any, tmp_path: Any) -> None:
    model = checkpoint(tmp_path / "dpr")
    one, other = (run_stage(divergence, *tables, model, settings=Reading(**SETTINGS)) for _ in range(2))

    for name in ("analysis.json", "points.parquet"):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()


def test_impossible_analyses_are_refused(tables: Any, run_stage: Any, tmp_path: Any) -> None:
    with pytest.raises(UserError, match=r"at least 16 queries .* perplexity of 30, found 8; lower perplexity"):
        run_stage(divergence, *tables, None, settings=Reading(**SETTINGS | {"perplexity": 30.0}))
    with pytest.raises(UserError, match="retriever_1: its retriever has no dense view"):
        run_stage(divergence, *tables, checkpoint(tmp_path / "splade", "splade"), settings=Reading(**SETTINGS))
