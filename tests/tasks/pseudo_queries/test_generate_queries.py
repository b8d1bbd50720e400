"""The stage that generates queries: which rows it writes, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_rows
from storage.tables import Passages, PseudoQueries, passage_sha256
from tasks.pseudo_queries import generate_queries as module
from tasks.pseudo_queries import ledger_join
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tasks.pseudo_queries.join_queries import Joining, join_queries
from tests.tasks.pseudo_queries.small_corpus import COUNT, Corpus, by_text, counts, ranked_ids, rows, texts


def test_every_passage_has_its_rows_in_order_with_what_made_them(corpus: Corpus, passages: Artifact[Passages]) -> None:
    built = corpus(passages)

    results = list(read_rows(built, PseudoQueries))
    assert ranked_ids(results) == [(f"d{number}#0", rank) for number in range(COUNT) for rank in range(3)]
    assert [row["passage_sha256"] for row in results[::3]] == [passage_sha256(text) for text in texts()]
    assert {(row["doc_id"], row["generator"], row["revision"], row["seed"], row["draw"]) for row in results[:3]} == {
        ("d0", "tiny", "tiny-t5", 42, 0)
    }
    assert all((row["kept"], row["reason"]) == (bool(row["query"]), "" if row["query"] else "empty") for row in results)
    assert any(row["kept"] for row in results)
    assert counts(built) == (0, COUNT * 3)


def test_a_text_gets_its_queries_whatever_the_order_the_shards_and_the_parts(
    corpus: Corpus, passages: Artifact[Passages], written: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shuffled = written(Passages, rows([texts()[row] for row in np.random.default_rng(3).permutation(COUNT)]))
    monkeypatch.setattr(ledger_join, "SORTED_AT_ONCE", 5)
    monkeypatch.setattr(ledger_join, "PASSAGES_PER_PART", 5)
    built = corpus(passages)
    (tmp_path / "store" / "ledger").rename(tmp_path / "gone")  # so that all are written again

    again = corpus(shuffled, shard_passages=3, batch_tokens=40)

    assert [path.name for path in parts(built.path)] == [f"part-0000{n}.parquet" for n in range(3)]
    assert counts(again) == (0, COUNT * 3)
    assert by_text(again) == by_text(built)


def test_a_large_bucket_is_divided_and_has_the_same_rows(
    corpus: Corpus, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"king {number}" for number in range(3000)]
    in_one_bucket = [text for text in names if passage_sha256(text).startswith("07")][:7]
    in_others = [text for text in names if passage_sha256(text).startswith(("06", "08"))][:4]
    passages = written(Passages, rows([*in_one_bucket, *in_others]))
    as_one = corpus(passages, shard_passages=100)
    (tmp_path / "store" / "ledger").rename(tmp_path / "gone")  # so that all are generated again
    sizes: list[int] = []
    write = module.write_buckets
    monkeypatch.setattr(module, "write_buckets", lambda task, *args, **named: (
        sizes.append(task.shard.rows), write(task, *args, **named)
    ))  # fmt: skip

    divided = corpus(passages, shard_passages=2)

    assert sum(sizes) == 11
    assert max(sizes) <= 2
    assert counts(divided) == (0, 11 * 3)
    assert [path.read_bytes() for path in parts(divided.path)] == [path.read_bytes() for path in parts(as_one.path)]


def test_only_what_is_new_is_written(
    corpus: Corpus, passages: Artifact[Passages], written: Any, requests: list[GenerationRequest]
) -> None:
    before = corpus(passages)
    requests.clear()
    changed = ["a new king", *texts()[3:], "an old film"]  # three removed, two new, all in other places

    after = corpus(written(Passages, rows(changed)))

    assert sorted(request.text for request in requests) == ["a new king", "an old film"]
    assert counts(after) == ((COUNT - 3) * 3, 2 * 3)
    old, new = by_text(before), by_text(after)
    assert all(new[sha256] == old[sha256] for sha256 in new.keys() & old.keys())
    assert [row["passage_id"] for row in read_rows(after, PseudoQueries)][::3] == [f"d{n}#0" for n in range(COUNT - 1)]


def test_a_sixth_query_is_added_and_the_others_stay(
    corpus: Corpus, passages: Artifact[Passages], requests: list[GenerationRequest]
) -> None:
    three = by_text(corpus(passages))
    requests.clear()

    built = corpus(passages, queries_per_passage=4)

    assert {request.ranks for request in requests} == {range(3, 4)}
    assert counts(built) == (COUNT * 3, COUNT)
    assert {sha256: queries[:3] for sha256, queries in by_text(built).items()} == three
    requests.clear()
    assert {sha256: queries[:2] for sha256, queries in three.items()} == by_text(
        corpus(passages, queries_per_passage=2)
    )
    assert requests == []


def test_the_same_text_twice_is_written_once(corpus: Corpus, written: Any, requests: list[GenerationRequest]) -> None:
    built = corpus(written(Passages, rows([*texts(4), texts(4)[2]])))

    assert Counter(request.text for request in requests) == Counter(texts(4))
    results = list(read_rows(built, PseudoQueries))
    assert [row["query"] for row in results[6:9]] == [row["query"] for row in results[12:15]]
    assert [row["passage_id"] for row in results[12:15]] == ["d4#0"] * 3


def test_two_generators_stand_side_by_side(corpus: Corpus, passages: Artifact[Passages], run_stage: Any) -> None:
    first, second = corpus(passages), corpus(passages, generator="other", seed=7, queries_per_passage=2)

    joined = run_stage(join_queries, [first, second], settings=Joining(queries_per_passage=[3, 2]))

    results = list(read_rows(joined, PseudoQueries))
    expected = {row["passage_id"]: [] for row in results}
    for corpora in (first, second):
        for row in read_rows(corpora, PseudoQueries):
            expected[row["passage_id"]].append((row["generator"], row["query"]))
    assert ranked_ids(results) == [(f"d{number}#0", rank) for number in range(COUNT) for rank in range(5)]
    assert [(row["generator"], row["query"]) for row in results] == [
        one for queries in expected.values() for one in queries
    ]
    with pytest.raises(ValueError, match="expected 2 rows of each passage"):
        run_stage(join_queries, [second, first], settings=Joining(queries_per_passage=[2, 2]))


def test_a_generator_that_writes_nothing_is_refused(
    corpus: Corpus, passages: Artifact[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Sampler):
        def __call__(self, requests: Sequence[GenerationRequest]) -> Iterator[list[tuple[int, list[str]]]]:
            for batch in super().__call__(requests):
                yield [(number, [""] * len(queries)) for number, queries in batch]

    monkeypatch.setattr(module, "Sampler", Silent)

    with pytest.raises(UserError, match="generated only empty queries"):
        corpus(passages)
