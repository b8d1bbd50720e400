"""Relatedness of pairs: which are drawn, what scores them, and what is analysis_of of the scores."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from models.retrievers import retriever
from models.retrievers.cross_encoder import encode_pair, pad_pairs
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.tables import Passages, PseudoQueries
from tasks.analyses import pair_relatedness as study
from tasks.analyses.measures.embedding_space import unit
from tasks.analyses.pair_relatedness import Reading, pair_relatedness, sample_documents
from tasks.retrieval.encode import TextEncoder
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.analyses.drawing import section
from tests.tasks.corpora import passage, pseudo_query
from tests.tiny import WORDS, save_tokenizer, tiny_retriever

pytestmark = pytest.mark.usefixtures("store")
SETTINGS: dict[str, Any] = {
    "analysis": "pair_relatedness", "scorer": "cross_encoder", "weights": "tiny", "documents": 9, "seed": 2,
    "strangers": 0.9, "thresholds": [0.0, 99.0], "query_max_tokens": 5, "passage_max_tokens": 12,
}  # fmt: skip
# Document n has n % 4 + 1 passages; every other passage has queries, those of d5 are dropped or empty.
PASSAGES = [
    passage(f"d{n}#{number}", " ".join(np.random.default_rng((n, number)).choice(WORDS, size=7)))
    for n in range(20)
    for number in range(n % 4 + 1)
]
QUERIES = [
    pseudo_query(row["passage_id"], rank, " ".join([*row["text"].split()[:3], WORDS[rank]]))
    for number, row in enumerate(PASSAGES)
    for rank in range(number % 2 * 3)
    if row["doc_id"] != "d5"
] + [pseudo_query("d5#0", 0, ""), pseudo_query("d5#1", 0, "king", kept=False, reason="relevance")]
QUERIES.sort(key=lambda row: [row["passage_id"] for row in PASSAGES].index(row["passage_id"]))


@pytest.fixture(scope="module")
def tables(written: Any) -> tuple[Artifact[Any], ...]:
    return written(Passages, PASSAGES), written(PseudoQueries, QUERIES)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source("encoder", folder_of(tiny_cross_encoder(), tmp_path_factory.mktemp("encoder")))


def analysis_of(results: Artifact[Any]) -> dict[str, Any]:
    return json.loads((results.path / "analysis.json").read_text())  # type: ignore[no-any-return]


def test_a_document_has_its_own_query_and_another_passage(tables: Any) -> None:
    every = sample_documents(*tables, Reading(**SETTINGS | {"documents": 99}))
    some, others = (
        sample_documents(*tables, Reading(**SETTINGS)),
        sample_documents(*tables, Reading(**SETTINGS | {"seed": 3})),
    )

    texts = {row["passage_id"]: row["text"] for row in PASSAGES}
    documents = [row["passage_id"].split("#")[0] for row in every]
    several = {row["doc_id"] for row in PASSAGES if row["passage_id"].endswith("#1")}
    query_vectors = {row["doc_id"] for row in QUERIES if row["kept"]}
    assert sorted(documents) == sorted(several & query_vectors)
    assert "d5" not in documents
    for document, chosen in zip(documents, every, strict=True):
        assert chosen["text"] == texts[chosen["passage_id"]]
        assert chosen["passage"] in {text for name, text in texts.items() if name.startswith(f"{document}#")}
        assert chosen["passage"] != chosen["text"]
        assert chosen["query"] in {row["query"] for row in QUERIES if row["passage_id"] == chosen["passage_id"]}
    assert some == every[:9]
    assert [other["passage_id"] for other in some] != [row["passage_id"] for row in others]
    assert len({row["query"].split()[-1] for row in every}) > 1  # not always the first query


def slow_scores(folder: Path, contexts: list[str], texts: list[str], limit: int) -> list[float]:
    """One pair in a batch, by the network itself."""
    tokenizer, network, results = Tokenizer.load(folder), tiny_cross_encoder(), []
    for context, text in zip(contexts, texts, strict=True):
        (query_vectors,), (read,) = tokenizer.token_ids([context]), tokenizer.token_ids([text])
        pair = encode_pair(tokenizer, query_vectors, read, query_max_tokens=limit, max_tokens=limit + 12)
        results.append(network(pad_pairs(tokenizer, [pair]))[0].item())
    return results


def test_a_cross_encoder_scores_pairs_and_strangers(tables: Any, run_stage: Any, cross_encoder: Source) -> None:
    chosen = sample_documents(*tables, Reading(**SETTINGS))
    texts = [row["text"] for row in chosen]
    own = {kind: slow_scores(cross_encoder.path, [row[kind] for row in chosen], texts, limit)
           for kind, limit in (("passage", 12), ("query", 5))}  # fmt: skip
    strange = {kind: slow_scores(cross_encoder.path, [row[kind] for row in chosen], texts[1:] + texts[:1], limit)
               for kind, limit in (("passage", 12), ("query", 5))}  # fmt: skip

    results = analysis_of(run_stage(pair_relatedness, *tables, cross_encoder, settings=Reading(**SETTINGS)))

    for kind in ("passage", "query"):
        figures = results["kinds"][kind]
        cut = np.quantile(strange[kind], 0.9)
        assert figures["mean"] == pytest.approx(np.mean(own[kind]), abs=1e-4)
        assert figures["strangers_mean"] == pytest.approx(np.mean(strange[kind]), abs=1e-4)
        assert figures["cut"] == pytest.approx(cut, abs=1e-4)
        assert figures["related"]["share"] == np.mean(np.array(own[kind]) > cut)
        assert [row["share"] for row in figures["above"]] == [np.mean(np.array(own[kind]) > 0), 0.0]
        assert sum(results["histogram"]["pairs"][kind]) == sum(results["histogram"]["strangers"][kind]) == 9
    compared = results["comparisons"]["score"]
    assert compared["difference"] == pytest.approx(np.mean(own["query"]) - np.mean(own["passage"]), abs=1e-4)
    assert compared["p"] == pytest.approx(ttest_rel(own["query"], own["passage"]).pvalue, rel=1e-3)
    scores = [example["scores"]["passage"] for example in results["examples"]]
    assert scores == pytest.approx(sorted(own["passage"])[:5], abs=1e-4)
    assert results["examples"][0]["text"] == chosen[int(np.argmin(own["passage"]))]["text"]


def test_a_bi_encoder_scores_by_the_cosine(tables: Any, run_stage: Any, tmp_path: Path) -> None:
    retriever.save(tiny_retriever("dpr"), tmp_path)
    save_tokenizer(tmp_path)
    chosen, encoder = sample_documents(*tables, Reading(**SETTINGS)), TextEncoder(tmp_path)
    query_vectors = unit(encoder([row["query"] for row in chosen], "query", 5).dense)
    own = unit(encoder([row["text"] for row in chosen], "passage", 12).dense)
    other = unit(encoder([row["passage"] for row in chosen], "passage", 12).dense)

    settings = Reading(**SETTINGS | {"scorer": "bi_encoder"})
    results = analysis_of(run_stage(pair_relatedness, *tables, Artifact("train", "1", tmp_path), settings=settings))

    assert results["kinds"]["query"]["mean"] == pytest.approx(
        np.mean([a @ b for a, b in zip(query_vectors, own, strict=True)])
    )
    assert results["kinds"]["passage"]["mean"] == pytest.approx(
        np.mean([a @ b for a, b in zip(other, own, strict=True)])
    )


def test_statistics_of_a_small_sample() -> None:
    scores, strangers = np.array([1.0, 2.0, 3.0, 6.0]), np.array([0.0, 1.0, 2.0, 3.0])

    results = study.statistics(scores, strangers, 2.5, [1.0])

    half = 3.182446 * math.sqrt(14 / 3) / 2  # t of 3 degrees of freedom, standard deviation over the root of 4
    assert results["mean_interval"] == pytest.approx([3 - half, 3 + half], rel=1e-5)
    assert results["strangers_mean"] == 1.5
    assert results["above"] == [{"threshold": 1.0, **study.above(scores, 1.0)}]
    z = 1.959964
    centre, reach = (0.5 + z**2 / 8) / (1 + z**2 / 4), z / (1 + z**2 / 4) * math.sqrt(0.25 / 4 + z**2 / 64)
    assert results["related"] == {"share": 0.5, "interval": pytest.approx([centre - reach, centre + reach], rel=1e-5)}


def test_each_kind_has_its_own_threshold() -> None:
    scores = {"query": np.array([5.0, 6.0, 7.0]), "passage": np.array([1.0, 2.0, 3.0])}

    results = study.compare_kinds(scores, {"query": 6.5, "passage": 1.5}, seed=1)

    assert results["score"]["difference"] == 4.0
    assert results["related"]["difference"] == pytest.approx(1 / 3 - 2 / 3)
    assert results["score"]["p"] == 0.25  # every document differs by the same: the sign test of three
    assert results["related"]["p_randomisation"] == pytest.approx(1.0, abs=0.01)


def test_too_few_documents_are_refused(run_stage: Any, written: Any, cross_encoder: Source) -> None:
    alone = written(Passages, [row for row in PASSAGES if row["passage_id"].endswith("#0")])
    own = written(PseudoQueries, [row for row in QUERIES if row["passage_id"].endswith("#0")])

    with pytest.raises(UserError, match="three documents or more with two passages and a pseudo-query, found 0"):
        run_stage(
            pair_relatedness, passages=alone, pseudo_queries=own, scorer=cross_encoder, settings=Reading(**SETTINGS)
        )


def test_limits_are_reduced_to_the_scorers_positions(tables: Any, run_stage: Any, cross_encoder: Source) -> None:
    lengths = {"query_max_tokens": 500, "passage_max_tokens": 900}
    much, most = ({**SETTINGS, **lengths}, {**SETTINGS, "query_max_tokens": 32, "passage_max_tokens": 32})  # of 64

    one, other = (
        analysis_of(run_stage(pair_relatedness, *tables, cross_encoder, settings=Reading(**limits)))
        for limits in (much, most)
    )

    assert one["kinds"] == other["kinds"]


def test_the_section_shows_the_results(tables: Any, run_stage: Any, cross_encoder: Source) -> None:
    results = analysis_of(run_stage(pair_relatedness, *tables, cross_encoder, settings=Reading(**SETTINGS)))
    results["examples"][0]["query"] = "<script>alert(1)</script> a & b"
    certain = {"difference": -0.25, "p": 1e-6, "p_randomisation": 1e-6}

    seen = section("pair_relatedness", results)
    worse = section("pair_relatedness", results | {"comparisons": {"related": certain, "score": certain}})

    assert "not significantly more or less often related" in seen.text
    assert "are less often related to their passage than other passages of the document are: −25.0 points" in worse.text
    assert seen.tags.count("rect") == 2 * study.BINS
    assert "<script>alert(1)</script> a & b" in seen.text  # as text
    assert "3 more" in seen.text
