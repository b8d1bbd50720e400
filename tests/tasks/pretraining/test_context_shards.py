"""Contexts are the same in one shard and in many, which begin within documents and between pseudo-queries."""

import random
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Source
from storage.rows import parts, read_rows
from storage.tables import Pairs, Passages, PseudoQueries, Terms
from tasks.corpus import token_counts
from tasks.pretraining import context_shards, count_terms
from tasks.pretraining.pair_contexts import Pairing, pair_contexts
from tests.tasks.corpora import pseudo_query
from tests.tiny import WORDS, save_tokenizer

DRAW = random.Random(1)
LENGTHS = [1, 2, 1, 9, 3, 1, 14, 2, 5]
PASSAGES = [
    {"passage_id": f"d{document}#{number}", "doc_id": f"d{document}", "title": "", "start": 0, "end": 9,
     "num_tokens": 9, "text": " ".join(DRAW.choices(WORDS, k=7)).capitalize() + ". River castles. King. "}
    for document, length in enumerate(LENGTHS) for number in range(length)
]  # fmt: skip
QUERIES = [
    pseudo_query(passage["passage_id"], rank, f"query {rank}")
    for number, passage in enumerate(PASSAGES) if number % 4
    for rank in range(number % 3 + 1)
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Source:
    save_tokenizer(tmp_path)
    return Source("tiny", tmp_path)


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
@pytest.mark.parametrize(
    "contexts",
    [
        {"pseudo_queries": 0, "passages": ["nearby", "overlap", "random"], "alone": "leave_out"},
        {"pseudo_queries": 0, "passages": ["sentences"], "alone": None},
        {"pseudo_queries": 2, "passages": [], "alone": None},
        {"pseudo_queries": 1, "passages": ["nearby"], "alone": "itself"},
    ],
)
def test_shards_have_the_rows_of_one(
    contexts: dict[str, Any],
    size: int,
    written: Any,
    run_stage: Any,
    tokenizer: Source,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Pairing.model_validate({**contexts, "max_tokens": 20, "language": "en", "seed": 1})
    inputs = {"passages": written(Passages, PASSAGES), "pseudo_queries": written(PseudoQueries, QUERIES)}
    complete = run_stage(pair_contexts, **inputs, tokenizer=tokenizer, settings=settings)
    monkeypatch.setattr(context_shards, "ROWS_PER_SHARD", size)
    sharded = run_stage(pair_contexts, **inputs, tokenizer=tokenizer, settings=settings)

    assert list(read_rows(sharded, Pairs)) == list(read_rows(complete, Pairs))
    assert len(parts(complete.path)) == 1
    leading = len(QUERIES) if contexts["pseudo_queries"] else len(PASSAGES)
    assert len(parts(sharded.path)) == 1 if size == 1000 else leading / size / 3 < len(parts(sharded.path))


def test_a_missing_shard_is_written_again_and_no_other(
    written: Any, tokenizer: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_shards, "ROWS_PER_SHARD", 10)
    settings = Pairing(pseudo_queries=2, passages=[], alone=None, max_tokens=20, language="en", seed=1)
    inputs = written(Passages, PASSAGES), written(PseudoQueries, QUERIES), tokenizer
    pair_contexts.body(tmp_path / "out", *inputs, settings=settings)
    before = {path.name: (path.read_bytes(), path.stat().st_ino) for path in parts(tmp_path / "out")}
    (tmp_path / "out" / "part-00002.parquet").rename(tmp_path / "kept")  # else its inode may be used again

    pair_contexts.body(tmp_path / "out", *inputs, settings=settings)

    after = {path.name: (path.read_bytes(), path.stat().st_ino) for path in parts(tmp_path / "out")}
    assert {name: content for name, (content, _) in after.items()} == {name: old for name, (old, _) in before.items()}
    assert [name for name in before if before[name] != after[name]] == ["part-00002.parquet"]


@pytest.mark.parametrize("order", [["d0#0", "d3#2", "d1#0", "d8#0"], ["d0#0", "unknown", "d8#0"]])
def test_queries_out_of_order_are_refused_in_many_shards(
    order: list[str], written: Any, run_stage: Any, tokenizer: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_shards, "ROWS_PER_SHARD", 1)
    settings = Pairing(pseudo_queries=2, passages=[], alone=None, max_tokens=20, language="en", seed=1)
    queries = written(PseudoQueries, [pseudo_query(passage, 0, "a") for passage in order])

    with pytest.raises(ValueError, match=r"the pseudo-queries of (unknown|d1#0) are out of the passages' order"):
        run_stage(pair_contexts, passages=written(Passages, PASSAGES), pseudo_queries=queries, tokenizer=tokenizer,
             settings=settings)  # fmt: skip


def test_terms_are_counted_in_shards(
    written: Any, run_stage: Any, tokenizer: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"passage_id": str(n), "text": row["text"], "queries": [], "passages": []} for n, row in enumerate(PASSAGES)
    ]
    pairs = written(Pairs, rows)
    complete = run_stage(count_terms.count_terms, pairs=pairs, tokenizer=tokenizer)
    monkeypatch.setattr(token_counts, "TEXTS_PER_SHARD", 5)
    sharded = run_stage(count_terms.count_terms, pairs=pairs, tokenizer=tokenizer)

    assert (sharded.path / "part-00000.parquet").read_bytes() == (complete.path / "part-00000.parquet").read_bytes()
    assert sum(row["occurrences"] for row in read_rows(sharded, Terms)) > len(PASSAGES)
