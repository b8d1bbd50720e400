"""The engine bm25s against Lucene, which it is to equal: lists, scores, ties, odd texts and queries."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.rows import read_table
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries, Queries, Run
from tasks.retrieval.engines import bm25, bm25s
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.index import engine, index
from tasks.retrieval.lucene.jvm import java
from tasks.retrieval.ranking import Hits
from tasks.retrieval.search import Search, search
from tasks.session import Execution, Session, session
from tests.passage_index import read_index
from tests.tasks.corpora import passage, pseudo_query

WORDS = [f"{start}{end}" for start in ("ba", "ko", "mi", "tu", "zer") for end in ("ran", "lo", "nik", "stel", "mo")]
TEXTS = ["a \U0001f600 smiling walrus", 'a "quoted" \\ walrus', " \n", "the of and", "", "Ünder café, 1,000 walruses"]
QUERIES = ["walrus)  AND (\U0001f600", "", "?! \x00", "the", "unknown", "baran baran lo", "miran mimo tulo", *WORDS]
pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    draw = random.Random(3)
    texts = [" ".join(draw.choices(WORDS, k=draw.choice([1, 2, 3, 30, 70, 300]))) for _ in range(300)]
    names = draw.sample(range(1000), 306)  # so that the order of ids is not that of the table
    return written(Passages, [passage(f"d{name}", text) for name, text in zip(names, [*texts, *TEXTS], strict=True)])


def search_index(built: Artifact[Any], passages: Artifact[Passages], depth: int) -> list[Hits]:
    described = built.path / "index.json"
    name = "bm25s" if '"bm25s"' in described.read_text() else "bm25"
    lookup = engine(name).open_index(built.path, None, None, read_index(passages), "bm25")(QUERIES)
    hits: list[Hits] = lookup(range(len(QUERIES)), depth)
    return hits


def as_lists(hits: list[Hits]) -> list[list[tuple[int, float]]]:
    return [list(zip(hit.rows.tolist(), hit.scores.tolist(), strict=True)) for hit in hits]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (2.0, 1.0), (0.0, 0.5), (1.2, 0.0)])
def test_lists_equal_lucenes(run_stage, passages: Artifact[Passages], k1: float, b: float) -> None:
    theirs, ours = (
        run_stage(index, passages=passages, settings=Bm25(engine=name, k1=k1, b=b)) for name in ("bm25", "bm25s")
    )
    for depth in (1, 2, 7, 40, 1000):
        lists = as_lists(search_index(ours, passages, depth))
        assert lists == as_lists(search_index(theirs, passages, depth))
        assert max(map(len, lists)) == min(depth, max(map(len, lists)))
        assert [lists[number] for number in (1, 2, 3, 4)] == [[], [], [], []]


@pytest.fixture(scope="module")
def built(run_stage, on_one_thread, passages: Artifact[Passages]) -> Artifact[Any]:
    return run_stage(index, passages=passages, settings=Bm25(engine="bm25s", k1=0.9, b=0.4))  # type: ignore[no-any-return]


def test_lists_do_not_depend_on_the_number_of_threads(
    built: Artifact[Any], passages: Artifact[Passages], store: Store
) -> None:
    alone = as_lists(search_index(built, passages, 20))
    with session(Session(store, Execution(threads=3, device="cpu"))):
        assert as_lists(search_index(built, passages, 20)) == alone


def test_a_list_is_deepened_until_its_ties_end(
    built: Artifact[Any], passages: Artifact[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = as_lists(search_index(built, passages, 3))
    monkeypatch.setattr(bm25s, "EXTRA_HITS", 1)
    assert as_lists(search_index(built, passages, 3)) == far


def test_pseudo_queries_are_found_with_their_passage(written, run_stage, passages: Artifact[Passages]) -> None:
    names = read_table(passages, Passages)["passage_id"].to_pylist()
    rows = written(PseudoQueries, [pseudo_query(names[7], 0, "gargoyle"), pseudo_query(names[9], 1, "baran")])
    theirs, ours = (
        run_stage(index, passages=passages, pseudo_queries=rows, settings=Bm25(engine=name, k1=0.9, b=0.4))
        for name in ("bm25", "bm25s")
    )
    assert as_lists(search_index(ours, passages, 50)) == as_lists(search_index(theirs, passages, 50))
    lookup = bm25s.open_index(ours.path, None, None, read_index(passages), "bm25")(["gargoyle"])
    assert lookup([0], 5)[0].rows.tolist() == [7]


def test_runs_equal_lucenes(written, run_stage, passages: Artifact[Passages]) -> None:
    queries = written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(QUERIES)])
    runs = [
        read_table(
            run_stage(
                search,
                index=run_stage(index, passages=passages, settings=Bm25(engine=name, k1=0.9, b=0.4)),
                queries=queries,
                passages=passages,
                settings=Search(view="bm25", documents=30),
            ),
            Run,
        )
        for name in ("bm25", "bm25s")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 100


def test_bytes_do_not_depend_on_how_many_texts_are_read_at_once(
    run_stage, built: Artifact[Any], passages: Artifact[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25s, "TEXTS_PER_BLOCK", 37)
    again = run_stage(index, passages=passages, settings=Bm25(engine="bm25s", k1=0.9, b=0.4))
    files = sorted(path.relative_to(built.path) for path in (built.path / bm25s.INDEX).iterdir())
    assert len(files) == 5
    for file in files:
        assert (built.path / file).read_bytes() == (again.path / file).read_bytes()


def test_texts_without_terms_are_not_retrieved(written, run_stage) -> None:
    blank = written(Passages, [passage("d1", " "), passage("d2", "the")])
    built = run_stage(index, passages=blank, settings=Bm25(engine="bm25s", k1=0.9, b=0.4))
    assert as_lists(search_index(built, blank, 5)) == [[] for _ in QUERIES]


def test_lengths_are_rounded_as_lucene_rounds_them() -> None:
    small = java("org.apache.lucene.util.SmallFloat")
    lengths = [*range(200), 255, 256, 257, 1000, 4095, 4097, 123_456, 2**31 - 1]
    theirs = [small.byte4ToInt(small.intToByte4(length)) for length in lengths]
    assert bm25s.rounded_length(np.array(lengths)).tolist() == theirs


def test_term_scores_equal_the_formula() -> None:
    counts, vocabulary = bm25s.term_counts(["walrus walrus sea", "sea", "", "walrus ice ice ice"])
    results = bm25s.term_scores(counts, 0.9, 0.4)
    assert counts.shape == (4, 3)
    table = {(int(p), w): float(s) for w, number in vocabulary.items()
             for p, s in zip(counts.indices[counts.indptr[number] : counts.indptr[number + 1]],
                             results[counts.indptr[number] : counts.indptr[number + 1]], strict=True)}  # fmt: skip
    average = 8 / 3  # of the three passages that have words
    for (row, word), (times, length, having) in {
        (0, "walru"): (2, 3, 2), (0, "sea"): (1, 3, 2), (1, "sea"): (1, 1, 2), (3, "walru"): (1, 4, 2),
        (3, "ic"): (3, 4, 1),
    }.items():  # fmt: skip
        idf = math.log(1 + (3 - having + 0.5) / (having + 0.5))
        score = idf * times / (times + 0.9 * (1 - 0.4 + 0.4 * length / average))
        assert table.pop((row, word)) == pytest.approx(score, rel=1e-6)
    assert not table


def test_vectors_are_refused(passages: Artifact[Passages], tmp_path: Path) -> None:
    for engine_ in (bm25, bm25s):
        with pytest.raises(TypeError, match="BM25 reads no vectors"):
            engine_.build(tmp_path, passages, passages, None, Bm25(engine="bm25s", k1=0.9, b=0.4))
