"""The generation cache: no query is generated twice, and interruptions and damage lose nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.generation_cache.cache import MERGED_AT, GenerationCache
from storage.generation_cache.invalidations import Invalidations
from storage.rows import parts
from storage.store.store import Store
from storage.tables import GeneratedQueries, Passages, passage_sha256
from tasks.pseudo_queries import generate_queries as module
from tasks.pseudo_queries.generate_queries import fill_ledger
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tests.tasks.pseudo_queries.small_corpus import COUNT, SETTINGS, Corpus, by_text, counts, texts


def test_settings_that_decide_a_text_have_ledgers_of_their_own(
    corpus: Corpus, passages: Artifact[Passages], generator: Source, requests: list[GenerationRequest]
) -> None:
    corpus(passages)
    for changes in ({"seed": 43}, {"top_k": 9}, {"prefix": "a "}, {"max_new_tokens": 7}, {"temperature": 0.9}):
        assert counts(corpus(passages, **changes)) == (0, COUNT * 3), changes
    assert counts(corpus(passages, by=Source("another", generator.path))) == (0, COUNT * 3)
    requests.clear()
    for changes in ({"batch_tokens": 50}, {"shard_passages": 2}, {"generator": "another name"}):
        assert counts(corpus(passages, **changes)) == (COUNT * 3, 0), changes
    assert requests == []


def test_replacing_writes_others_for_the_chosen_texts_alone(
    corpus: Corpus, passages: Artifact[Passages], generator: Source, store: Store, requests: list[GenerationRequest]
) -> None:
    ledger, before = SETTINGS.ledger_in(store.root, generator), by_text(corpus(passages))
    requests.clear()
    chosen = passage_sha256(texts()[5])

    assert ledger.invalidated() is None
    after = by_text(corpus(passages, replaced=ledger.invalidate(Invalidations(texts={chosen: 1}))))

    assert [(request.text, request.draw) for request in requests] == [(texts()[5], 1)]
    assert {sha256 for sha256 in before if before[sha256] != after[sha256]} == {chosen}
    requests.clear()
    bucket = passage_sha256(texts()[2])[:2]
    corpus(passages, replaced=ledger.invalidate(Invalidations(buckets={bucket: 1})))
    assert {request.text for request in requests} == {text for text in texts() if passage_sha256(text)[:2] == bucket}
    requests.clear()
    corpus(passages, replaced=ledger.invalidate(Invalidations(all=1)))
    assert sorted((request.text, request.draw) for request in requests) == sorted(
        (text, 1 + (passage_sha256(text) == chosen) + (passage_sha256(text)[:2] == bucket)) for text in texts()
    )
    assert by_text(corpus(passages, replaced=None)) == before


def test_a_killed_run_keeps_the_buckets_it_has_written(
    corpus: Corpus, passages: Artifact[Passages], store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    generator: Source,
) -> None:  # fmt: skip
    seen: list[list[str]] = []

    class Killed(Sampler):
        def __call__(self, inputs: Sequence[GenerationRequest]) -> Iterator[list[tuple[int, list[str]]]]:
            if len(seen) == 2:
                seen.append([])
                raise KeyboardInterrupt
            seen.append([request.text for request in inputs])
            return super().__call__(inputs)

    monkeypatch.setattr(module, "Sampler", Killed)
    with pytest.raises(KeyboardInterrupt):
        corpus(passages, out=tmp_path / "killed")
    ledger = SETTINGS.ledger_in(store.root, generator)
    assert len(ledger.files()) == len(list((tmp_path / "killed").glob("scratch/joined-*"))) == 2
    resumed = corpus(passages, out=tmp_path / "killed")

    assert sorted(text for group in seen for text in group) == sorted(texts()), "none is written twice"
    for path in ledger.files():
        path.unlink()
    for path in parts(corpus(passages).path):
        assert path.read_bytes() == (resumed.path / path.name).read_bytes()


def test_a_damaged_file_of_the_ledger_is_set_aside_and_written_again(
    corpus: Corpus, passages: Artifact[Passages], store: Store, generator: Source
) -> None:
    before = by_text(corpus(passages))
    ledger = SETTINGS.ledger_in(store.root, generator)
    damaged = ledger.files()[0]
    content = bytearray(damaged.read_bytes())
    content[20] ^= 1
    damaged.write_bytes(content)

    again = corpus(passages)

    kept, built = counts(again)
    assert kept > 0
    assert built > 0
    assert by_text(again) == before
    assert [path.name for path in (ledger.folder / "damaged").iterdir()] == [damaged.name]


def test_shares_fill_the_ledger_and_the_corpus_finds_it_full(
    corpus: Corpus, passages: Artifact[Passages], generator: Source, tmp_path: Path
) -> None:
    built = []
    for number in (0, 1):
        share, out = SETTINGS.model_copy(update={"share": (number, 2)}), tmp_path / f"share-{number}"
        fill_ledger.body(out, passages, generator, None, settings=share)
        built.append(json.loads((out / "logs" / "written.json").read_text())["made"])

    assert min(built) > 0
    assert sum(built) == COUNT * 3
    assert counts(corpus(passages)) == (COUNT * 3, 0)


def test_what_was_written_before_a_passage_is_refused_is_kept(
    corpus: Corpus, passages: Artifact[Passages], store: Store, generator: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Sampler):
        def __call__(self, inputs: Sequence[GenerationRequest]) -> Iterator[list[tuple[int, list[str]]]]:
            yield next(iter(super().__call__(inputs)))
            raise UserError("the next does not fit the memory")

    one = {"shard_passages": 100, "batch_tokens": 40}
    with monkeypatch.context() as patch:
        patch.setattr(module, "Sampler", Refusing)
        with pytest.raises(UserError, match="does not fit"):
            corpus(passages, **one)

    kept, built = counts(corpus(passages, **one))

    assert kept > 0
    assert built > 0
    assert kept + built == COUNT * 3


def test_a_reader_without_the_lock_reads_again_where_a_merge_deletes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache := GenerationCache(tmp_path / "key")).folder.mkdir()
    for number in range(MERGED_AT):
        cache.add(0, 255, pa.Table.from_pylist([cached_row(number)], GeneratedQueries.schema))
    listed, merges = GenerationCache.files, []

    def merged_after_listing(self: GenerationCache) -> list[Path]:
        paths = listed(self)
        if not merges:
            merges.append(1)
            cache.merge(0, 255)
        return paths

    monkeypatch.setattr(GenerationCache, "files", merged_after_listing)
    rows = pa.concat_tables(cache.read_unlocked(["query"]))
    assert sorted(set(rows["query"].to_pylist())) == [f"query {number:02d}" for number in range(MERGED_AT)]
    assert len(listed(cache)) == 1


def cached_row(number: int) -> dict[str, object]:
    return {"passage_sha256": f"{number:02x}" * 32, "rank": 0, "draw": 0, "query": f"query {number:02d}"}
