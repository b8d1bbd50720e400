"""The probe: what is drawn, and what it measures."""

from typing import Any

import pytest
import torch

from models.retrievers.towers import load
from models.tokens import Tokenizer
from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Pairs, Passages, Qrels, Queries
from tasks.pretraining.draw_probe import (
    Drawing,
    ProbeSettings,
    RetrievalProbe,
    draw_probe,
    draw_probe_of_pairs,
    reciprocal_ranks,
)
from tests.tiny import WORDS, save_backbone


def passages(number: int) -> list[dict[str, Any]]:
    return [
        {"passage_id": f"d{n}#{part}", "doc_id": f"d{n}", "title": "", "text": f"text {n} {part}", "start": 0, "end": 6,
         "num_tokens": 3}
        for n in range(number)
        for part in range(2)
    ]  # fmt: skip


@pytest.mark.usefixtures("store")
def test_queries_of_different_documents_with_their_first_passage(written: Any, run_stage: Any) -> None:
    queries = [{"query_id": f"q{n}", "text": f"question {n}"} for n in range(12)]
    # Two queries a document, two documents for the last query, and one judged not relevant.
    qrels = [{"query_id": f"q{n}", "doc_id": f"d{n // 2}", "grade": 1} for n in range(12)]
    qrels += [{"query_id": "q11", "doc_id": "d7", "grade": 1}, {"query_id": "q0", "doc_id": "d6", "grade": 0}]
    inputs = written(Queries, queries), written(Qrels, qrels), written(Passages, passages(8))

    for number, expected in ((4, 4), (100, 6)):
        rows = list(read_rows(run_stage(draw_probe, *inputs, settings=Drawing(pairs=number, seed=3)), Pairs))
        assert expected <= len(rows) <= number
        numbers = [int(row["queries"][0].split()[1]) for row in rows]
        documents = [row["passage_id"].partition("#") for row in rows]
        assert len(set(numbers)) == len({doc_id for doc_id, *_ in documents}) == len(rows)
        assert all(part == "0" for *_, part in documents)
        for query, (doc_id, *_) in zip(numbers, documents, strict=True):
            assert doc_id in {f"d{query // 2}", "d7" if query == 11 else ""}


@pytest.mark.usefixtures("store")
def test_too_few_to_probe_with(written: Any, run_stage: Any) -> None:
    inputs = (
        written(Queries, [{"query_id": "q", "text": "t"}]),
        written(Qrels, [{"query_id": "q", "doc_id": "d0", "grade": 1}]),
    )

    with pytest.raises(UserError, match=r"found 1; set pretrain\.probe to null"):
        run_stage(draw_probe, *inputs, written(Passages, passages(3)), settings=Drawing(pairs=4, seed=3))


@pytest.mark.usefixtures("store")
def test_pairs_themselves_where_nobody_asked(written: Any, run_stage: Any) -> None:
    rows = [{"passage_id": f"p{n}", "text": f"t{n}", "queries": [f"q{n}"], "passages": []} for n in range(9)]

    results = list(
        read_rows(run_stage(draw_probe_of_pairs, written(Pairs, rows), settings=Drawing(pairs=4, seed=1)), Pairs)
    )

    assert len(results) == 4
    assert all(row in rows for row in results)


@pytest.mark.usefixtures("store")
def test_pairs_without_queries_are_refused(written: Any, run_stage: Any) -> None:
    rows = [{"passage_id": f"p{n}", "text": f"t{n}", "queries": [], "passages": ["c"]} for n in range(3)]

    with pytest.raises(UserError, match=r"passage p\d has no pseudo-query to probe with; set pretrain\.probe to null"):
        run_stage(draw_probe_of_pairs, written(Pairs, rows), settings=Drawing(pairs=2, seed=1))


def test_ranks_by_hand() -> None:
    scores = torch.tensor([[3.0, 1, 2], [5, 4, 1], [1, 1, 1]])

    assert reciprocal_ranks(scores).tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    alike = torch.ones(30, 30)
    assert not reciprocal_ranks(alike).any()  # nothing was retrieved
    far = torch.zeros(12, 12)
    far[0, 1:10] = 1
    far[0, 0] = 0.5
    assert reciprocal_ranks(far)[0].item() == pytest.approx(1 / 10)
    far[0, 10] = 1
    assert reciprocal_ranks(far)[0].item() == 0


@pytest.mark.usefixtures("store")
def test_texts_that_ask_for_themselves_are_found(written: Any, tmp_path: Any) -> None:
    folder = save_backbone(tmp_path, dropout=0.5, spread=0.2, pooling="mean")
    encoder, tokenizer = load(folder), Tokenizer.load(folder)
    rows = [{"passage_id": word, "text": f"{word} {word}", "queries": [f"{word} {word}"], "passages": []}
            for word in WORDS]  # fmt: skip
    encoder.train()

    watch = RetrievalProbe(written(Pairs, rows), encoder, tokenizer, ProbeSettings(every=5, pairs=16), 12)

    assert watch(3) == {}
    assert watch(0) == watch(5)  # without dropout
    assert watch(5)["probe_MRR@10"] > 0.5
    assert encoder.training
    assert RetrievalProbe(None, encoder, tokenizer, None, 12)(5) == {}
