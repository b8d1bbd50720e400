"""What generators have written is found by text, once, whatever files it lies in."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import UserError
from storage.generation_cache import cache as module
from storage.generation_cache.cache import BUCKETS, GenerationCache, generation_caches, is_damaged
from storage.generation_cache.invalidations import Invalidations
from storage.tables import GeneratedQueries, passage_sha256

HASHES = [passage_sha256(str(number)) for number in range(200)]


def bucket_of(sha256: str) -> int:
    """Return the bucket of a text: its hash's first two digits."""
    return int(sha256[:2], 16)


def rows(*written: tuple[str, int, int, str]) -> pa.Table:
    names = ("passage_sha256", "rank", "draw", "query")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in written], schema=GeneratedQueries.schema)


def values(table: pa.Table) -> list[tuple[str, int, int, str]]:
    return [(row["passage_sha256"], row["rank"], row["draw"], row["query"]) for row in table.to_pylist()]


@pytest.fixture
def ledger(tmp_path: Path) -> GenerationCache:
    return GenerationCache.of(tmp_path, made_by())


def made_by(version: int = 1, generator: str = "source/t5", seed: int = 42) -> dict[str, Any]:
    return {"version": version, "generator": generator, "settings": {"seed": seed}}


def test_its_key_is_of_all_that_decides_a_text(tmp_path: Path) -> None:
    others = [made_by(version=2), made_by(seed=43), made_by(generator="source/other")]
    ledger = GenerationCache.of(tmp_path, made_by())

    assert len({ledger.key, *(GenerationCache.of(tmp_path, other).key for other in others)}) == 4
    ledger.describe(made_by())
    written = json.loads((ledger.folder / "made_by.json").read_text())
    assert GenerationCache.of(tmp_path, written).key == ledger.key


def test_rows_of_buckets_are_read_from_any_files(ledger: GenerationCache) -> None:
    written = [(sha256, rank, 0, f"{sha256[:4]} {rank}") for sha256 in HASHES for rank in range(2)]
    for first, last in ((0, 99), (100, 254), (255, 255)):
        ledger.add(first, last, rows(*(row for row in written if first <= bucket_of(row[0]) <= last)))
    ledger.add(0, 255, rows(*((sha256, 2, 0, "third") for sha256 in HASHES)))

    for first, last in ((0, 255), (90, 110), (7, 7), (255, 255)):
        expected = [row for row in (*written, *((sha256, 2, 0, "third") for sha256 in HASHES))
                    if first <= bucket_of(row[0]) <= last]  # fmt: skip
        assert values(ledger.rows(first, last)) == sorted(expected, key=lambda row: (row[0], row[2], row[1]))
    some = [sha256 for sha256 in HASHES if bucket_of(sha256) < 40][:3]
    assert {sha256 for sha256, *_ in values(ledger.rows(0, 255, pa.array(some)))} == set(some)
    assert [cache.key for cache in generation_caches(ledger.folder.parent.parent)] == [ledger.key]


def test_duplicate_rows_are_read_once_and_draws_are_distinct(ledger: GenerationCache) -> None:
    one = HASHES[0]
    for queries in (["a", "b"], ["a"]):
        ledger.add(0, BUCKETS - 1, rows(*((one, rank, 0, query) for rank, query in enumerate(queries))))
    ledger.add(0, BUCKETS - 1, rows((one, 0, 1, "c")))

    assert values(ledger.rows(0, BUCKETS - 1)) == [(one, 0, 0, "a"), (one, 1, 0, "b"), (one, 0, 1, "c")]


def test_many_small_files_become_one(ledger: GenerationCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGED_AT", 3)
    low = [sha256 for sha256 in HASHES if bucket_of(sha256) < 16]
    ledger.add(10, 31, rows(*((sha256, 0, 0, "other") for sha256 in HASHES if 16 <= bucket_of(sha256) < 32)))
    for number, sha256 in enumerate(low[:3]):
        before = ledger.files()
        ledger.merge(0, 15)
        assert ledger.files() == before
        ledger.add(bucket_of(sha256), 15, rows((sha256, 0, 0, str(number))))  # spans move as a corpus grows
    held = values(ledger.rows(0, BUCKETS - 1))

    ledger.merge(0, 15)

    assert len(ledger.files()) == 2
    assert values(ledger.rows(0, BUCKETS - 1)) == held
    assert not any(is_damaged(path) for path in ledger.files())


def test_a_damaged_file_is_quarantined_when_it_is_read(ledger: GenerationCache) -> None:
    ledger.add(0, 127, rows(*((sha256, 0, 0, "a") for sha256 in HASHES if bucket_of(sha256) < 128)))
    ledger.add(128, 255, rows(*((sha256, 0, 0, "b") for sha256 in HASHES if bucket_of(sha256) >= 128)))
    path = ledger.files()[0]
    path.write_bytes(path.read_bytes()[:-1])

    assert {query for *_, query in values(ledger.rows(0, 255))} == {"b"}
    assert len(ledger.files()) == 1
    assert (ledger.folder / "damaged" / path.name).exists()


def test_invalidations_add_up(ledger: GenerationCache) -> None:
    one, other = HASHES[:2]
    assert Invalidations.read(ledger.invalidated()).draw(one) == 0
    keys = [
        ledger.invalidate(invalidations).key
        for invalidations in (Invalidations(texts={one: 1}), Invalidations(all=1), Invalidations(texts={one: 1}))
    ]
    last = ledger.invalidate(Invalidations(buckets={other[:2]: 1}))

    assert len({*keys, last.key}) == 4
    assert ledger.invalidated() == last
    result = Invalidations.read(last)
    assert result.draw(one) == 3 + (one[:2] == other[:2])
    assert result.draw(other) == 2
    assert Invalidations.read(GenerationCache(ledger.folder).invalidated()) == result
    assert Invalidations.last(last) == Invalidations(buckets={other[:2]: 1})
    last.path.write_text("{")
    with pytest.raises(UserError, match="do not match the hash in its name"):
        Invalidations.read(ledger.invalidated())


def test_a_file_that_a_merge_deleted_is_not_damaged(ledger: GenerationCache) -> None:
    ledger.add(0, 255, rows((HASHES[0], 0, 0, "a")))
    [path] = ledger.files()
    path.unlink()

    assert not is_damaged(path)


@given(st.integers(0, BUCKETS - 1), st.integers(0, BUCKETS - 1), st.sampled_from(HASHES))
def test_a_range_of_hashes_holds_those_of_its_buckets(first: int, last: int, sha256: str) -> None:
    (_, _, low), (_, _, high) = module.hashes_within(first, last)

    assert (low <= sha256 < high) == (first <= bucket_of(sha256) <= last)
