"""The stage that writes queries: what it keeps, what it makes, and in which order it all comes out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.ledger.regenerations import Replaced
from storage.rows import parts, read_rows
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries, passage_sha256
from tasks.pseudo_queries import generate_queries as module
from tasks.pseudo_queries import ledger_join
from tasks.pseudo_queries.generate_queries import Writing, fill_ledger, generate_queries
from tasks.pseudo_queries.generators.sampler import Asked, Sampler
from tasks.pseudo_queries.join_queries import Joining, join_queries
from tests.tasks.corpora import passage
from tests.tiny import SPECIALS, save_t5

WORDS = [
    "the", "a", "of", "river", "city", "king", "old", "war", "painter", "in", "french", "born", "film", "novel",
    "island",
]  # fmt: skip
SETTINGS = Writing(
    queries_per_passage=3, prefix="the ", input_max_tokens=32, top_k=10, top_p=0.95, max_new_tokens=8, seed=42,
    shard_passages=4, batch_tokens=10_000, generator="tiny",
)  # fmt: skip
COUNT = 12


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A random T5 over a few words."""
    return Source("tiny-t5", save_t5(tmp_path_factory.mktemp("generator"), [*SPECIALS, *WORDS]))


def texts(count: int = COUNT) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(count)]


def rows(given: Sequence[str]) -> list[dict[str, Any]]:
    return [passage(f"d{number}#0", text) for number, text in enumerate(given)]


@pytest.fixture
def passages(written: Any) -> Artifact[Passages]:
    found: Artifact[Passages] = written(Passages, rows(texts()))
    return found


Corpus = Callable[..., Artifact[PseudoQueries]]


@pytest.fixture
def corpus(generator: Source, store: Store, tmp_path: Path) -> Corpus:
    """corpus(passages, replaced=..., **changes of the settings) -> what the stage writes, with the test's ledgers."""
    assert store.root.is_relative_to(tmp_path)
    numbers = count()

    def make(
        passages: Artifact[Passages], *, replaced: Source | None = None, by: Source = generator,
        out: Path | None = None, **changes: Any,
    ) -> Artifact[PseudoQueries]:  # fmt: skip
        folder = out or tmp_path / f"corpus-{next(numbers)}"
        generate_queries.body(folder, passages, by, replaced, [], settings=SETTINGS.model_copy(update=changes))
        return Artifact("generate_queries", folder.name, folder)

    return make


def by_text(corpus: Artifact[PseudoQueries]) -> dict[str, list[str]]:
    """The queries of each text, by rank."""
    found: dict[str, list[str]] = {}
    for row in read_rows(corpus, PseudoQueries):
        assert row["rank"] == len(found.setdefault(row["passage_sha256"], []))
        found[row["passage_sha256"]].append(row["query"])
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Of each row."""
    return [(row["passage_id"], row["rank"]) for row in found]


def counts(corpus: Artifact[PseudoQueries]) -> tuple[int, int]:
    """How many rows were kept and how many made."""
    found = json.loads((corpus.path / "logs" / "written.json").read_text())
    return found["kept"], found["made"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What the sampler is asked for."""
    seen: list[Asked] = []

    class Watched(Sampler):
        def __call__(self, given: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
            seen.extend(given)
            return super().__call__(given)

    monkeypatch.setattr(module, "open_sampler", Watched)
    return seen


def test_every_passage_has_its_rows_in_order_with_what_made_them(corpus: Corpus, passages: Artifact[Passages]) -> None:
    made = corpus(passages)

    found = list(read_rows(made, PseudoQueries))
    assert places(found) == [(f"d{number}#0", rank) for number in range(COUNT) for rank in range(3)]
    assert [row["passage_sha256"] for row in found[::3]] == [passage_sha256(text) for text in texts()]
    assert {(row["doc_id"], row["generator"], row["revision"], row["seed"], row["draw"]) for row in found[:3]} == {
        ("d0", "tiny", "tiny-t5", 42, 0)
    }
    assert all((row["kept"], row["reason"]) == (bool(row["query"]), "" if row["query"] else "empty") for row in found)
    assert any(row["kept"] for row in found)
    assert counts(made) == (0, COUNT * 3)


def test_a_text_gets_its_queries_whatever_the_order_the_shards_and_the_parts(
    corpus: Corpus, passages: Artifact[Passages], written: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shuffled = written(Passages, rows([texts()[place] for place in np.random.default_rng(3).permutation(COUNT)]))
    monkeypatch.setattr(ledger_join, "SORTED_AT_ONCE", 5)
    monkeypatch.setattr(ledger_join, "PASSAGES_PER_PART", 5)
    made = corpus(passages)
    (tmp_path / "store" / "ledger").rename(tmp_path / "gone")  # so that all are written again

    again = corpus(shuffled, shard_passages=3, batch_tokens=40)

    assert [path.name for path in parts(made.path)] == [f"part-0000{n}.parquet" for n in range(3)]
    assert counts(again) == (0, COUNT * 3)
    assert by_text(again) == by_text(made)


def test_only_what_is_new_is_written(
    corpus: Corpus, passages: Artifact[Passages], written: Any, asked: list[Asked]
) -> None:
    before = corpus(passages)
    asked.clear()
    changed = ["a new king", *texts()[3:], "an old film"]  # three removed, two new, all in other places

    after = corpus(written(Passages, rows(changed)))

    assert sorted(each.text for each in asked) == ["a new king", "an old film"]
    assert counts(after) == ((COUNT - 3) * 3, 2 * 3)
    old, new = by_text(before), by_text(after)
    assert all(new[sha256] == old[sha256] for sha256 in new.keys() & old.keys())
    assert [row["passage_id"] for row in read_rows(after, PseudoQueries)][::3] == [f"d{n}#0" for n in range(COUNT - 1)]


def test_a_sixth_query_is_added_and_the_others_stay(
    corpus: Corpus, passages: Artifact[Passages], asked: list[Asked]
) -> None:
    three = by_text(corpus(passages))
    asked.clear()

    made = corpus(passages, queries_per_passage=4)

    assert {each.ranks for each in asked} == {range(3, 4)}
    assert counts(made) == (COUNT * 3, COUNT)
    assert {sha256: queries[:3] for sha256, queries in by_text(made).items()} == three
    asked.clear()
    assert {sha256: queries[:2] for sha256, queries in three.items()} == by_text(
        corpus(passages, queries_per_passage=2)
    )
    assert asked == []


def test_the_same_text_twice_is_written_once(corpus: Corpus, written: Any, asked: list[Asked]) -> None:
    made = corpus(written(Passages, rows([*texts(4), texts(4)[2]])))

    assert Counter(each.text for each in asked) == Counter(texts(4))
    found = list(read_rows(made, PseudoQueries))
    assert [row["query"] for row in found[6:9]] == [row["query"] for row in found[12:15]]
    assert [row["passage_id"] for row in found[12:15]] == ["d4#0"] * 3


def test_settings_that_decide_a_text_have_ledgers_of_their_own(
    corpus: Corpus, passages: Artifact[Passages], generator: Source, asked: list[Asked]
) -> None:
    corpus(passages)
    for changes in ({"seed": 43}, {"top_k": 9}, {"prefix": "a "}, {"max_new_tokens": 7}, {"temperature": 0.9}):
        assert counts(corpus(passages, **changes)) == (0, COUNT * 3), changes
    assert counts(corpus(passages, by=Source("another", generator.path))) == (0, COUNT * 3)
    asked.clear()
    for changes in ({"batch_tokens": 50}, {"shard_passages": 2}, {"generator": "another name"}):
        assert counts(corpus(passages, **changes)) == (COUNT * 3, 0), changes
    assert asked == []


def test_replacing_writes_others_for_the_chosen_texts_alone(
    corpus: Corpus, passages: Artifact[Passages], generator: Source, store: Store, asked: list[Asked]
) -> None:
    ledger, before = SETTINGS.ledger_in(store.root, generator), by_text(corpus(passages))
    asked.clear()
    chosen = passage_sha256(texts()[5])

    assert ledger.replaced() is None
    after = by_text(corpus(passages, replaced=ledger.replace(Replaced(texts={chosen: 1}))))

    assert [(each.text, each.draw) for each in asked] == [(texts()[5], 1)]
    assert {sha256 for sha256 in before if before[sha256] != after[sha256]} == {chosen}
    asked.clear()
    bucket = passage_sha256(texts()[2])[:2]
    corpus(passages, replaced=ledger.replace(Replaced(buckets={bucket: 1})))
    assert {each.text for each in asked} == {text for text in texts() if passage_sha256(text)[:2] == bucket}
    asked.clear()
    corpus(passages, replaced=ledger.replace(Replaced(all=1)))
    assert sorted((each.text, each.draw) for each in asked) == sorted(
        (text, 1 + (passage_sha256(text) == chosen) + (passage_sha256(text)[:2] == bucket)) for text in texts()
    )
    assert by_text(corpus(passages, replaced=None)) == before


def test_a_killed_run_keeps_the_buckets_it_has_written(
    corpus: Corpus, passages: Artifact[Passages], store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    generator: Source,
) -> None:  # fmt: skip
    seen: list[list[str]] = []

    class Killed(Sampler):
        def __call__(self, given: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
            if len(seen) == 2:
                seen.append([])
                raise KeyboardInterrupt
            seen.append([each.text for each in given])
            return super().__call__(given)

    monkeypatch.setattr(module, "open_sampler", Killed)
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

    kept, made = counts(again)
    assert kept > 0
    assert made > 0
    assert by_text(again) == before
    assert [path.name for path in (ledger.folder / "damaged").iterdir()] == [damaged.name]


def test_shares_fill_the_ledger_and_the_corpus_finds_it_full(
    corpus: Corpus, passages: Artifact[Passages], generator: Source, tmp_path: Path
) -> None:
    made = []
    for number in (0, 1):
        share, out = SETTINGS.model_copy(update={"share": (number, 2)}), tmp_path / f"share-{number}"
        fill_ledger.body(out, passages, generator, None, settings=share)
        made.append(json.loads((out / "logs" / "written.json").read_text())["made"])

    assert min(made) > 0
    assert sum(made) == COUNT * 3
    assert counts(corpus(passages)) == (COUNT * 3, 0)


def test_two_generators_stand_side_by_side(corpus: Corpus, passages: Artifact[Passages], made: Any) -> None:
    first, second = corpus(passages), corpus(passages, generator="other", seed=7, queries_per_passage=2)

    joined = made(join_queries, [first, second], settings=Joining(queries_per_passage=[3, 2]))

    found = list(read_rows(joined, PseudoQueries))
    expected = {row["passage_id"]: [] for row in found}
    for corpora in (first, second):
        for row in read_rows(corpora, PseudoQueries):
            expected[row["passage_id"]].append((row["generator"], row["query"]))
    assert places(found) == [(f"d{number}#0", rank) for number in range(COUNT) for rank in range(5)]
    assert [(row["generator"], row["query"]) for row in found] == [one for each in expected.values() for one in each]
    with pytest.raises(ValueError, match="expected 2 rows of each passage"):
        made(join_queries, [second, first], settings=Joining(queries_per_passage=[2, 2]))


def test_a_generator_that_writes_nothing_is_refused(
    corpus: Corpus, passages: Artifact[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Sampler):
        def __call__(self, asked: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
            for batch in super().__call__(asked):
                yield [(place, [""] * len(queries)) for place, queries in batch]

    monkeypatch.setattr(module, "open_sampler", Silent)

    with pytest.raises(UserError, match="wrote only empty queries"):
        corpus(passages)


def test_what_was_written_before_a_passage_is_refused_is_kept(
    corpus: Corpus, passages: Artifact[Passages], store: Store, generator: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Sampler):
        def __call__(self, given: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
            yield next(iter(super().__call__(given)))
            raise UserError("the next does not fit the memory")

    one = {"shard_passages": 100, "batch_tokens": 40}
    with monkeypatch.context() as patch:
        patch.setattr(module, "open_sampler", Refusing)
        with pytest.raises(UserError, match="does not fit"):
            corpus(passages, **one)

    kept, made = counts(corpus(passages, **one))

    assert kept > 0
    assert made > 0
    assert kept + made == COUNT * 3
