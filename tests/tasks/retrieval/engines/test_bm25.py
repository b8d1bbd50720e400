"""BM25 against pyserini's own searcher, and the texts and queries that Lucene finds odd."""

import json
import math
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.rows import read_table, write_rows
from storage.store.manifest_checks import find_damage
from storage.store.store import Store
from storage.tables import Index, Passages, PseudoQueries, Queries, Run
from tasks.retrieval.engines import bm25
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.index import index
from tasks.retrieval.lucene.jvm import java, java_list
from tasks.retrieval.search import Search, search
from tasks.retrieval.shared_passages import temporary_index
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests.passage_index import read_index
from tests.tasks.corpora import pseudo_query

WORDS = [f"{start}{end}" for start in ("ba", "ko", "mi", "tu", "zer") for end in ("ran", "lo", "nik", "stel", "mo")]
SETTINGS = Bm25(engine="bm25", k1=0.9, b=0.4)
pytestmark = pytest.mark.usefixtures("on_one_thread")
ODD = {
    "emoji": "a \U0001f600 smiling walrus",
    "quotes": 'a "quoted" \\ walrus {"id": 1}',
    "with space": "walrus in an id with a space",
    "blank": " \n",
    "stop": "the of and",
}


def passage(passage_id: str, text: str) -> dict[str, object]:
    ids = {"passage_id": passage_id, "doc_id": passage_id.split("#")[0]}
    return {**ids, "title": "", "text": text, "start": 0, "end": 1, "num_tokens": 1}


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    draw = random.Random(1)
    texts = {f"d{n % 120}#{n // 120}": " ".join(draw.choices(WORDS, k=draw.randint(3, 40))) for n in range(300)}
    return written(Passages, [passage(name, text) for name, text in {**texts, **ODD}.items()])


@pytest.fixture(scope="module")
def queries(written) -> Artifact[Queries]:
    draw = random.Random(2)
    texts = [" ".join(draw.choices(WORDS, k=3)) for _ in range(20)] + ["walrus)  AND (\U0001f600", "", "?! \x00", "the"]
    texts.append(" ".join(f"word{n}" for n in range(3000)) + " walrus")  # more words than Lucene allows by default
    return written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(texts)])


@pytest.fixture(scope="module")
def built(run_stage, on_one_thread, passages: Artifact[Passages]) -> Artifact[Index]:
    return run_stage(index, passages=passages, settings=SETTINGS)


@pytest.fixture(scope="module")
def run(run_stage, built: Artifact[Index], queries: Artifact[Queries], passages: Artifact[Passages]) -> pa.Table:
    return read_table(
        run_stage(
            search, index=built, queries=queries, passages=passages, settings=Search(view="bm25", documents=1000)
        ),
        Run,
    )


def lists(run: pa.Table) -> dict[str, list[tuple[str, float]]]:
    results: dict[str, list[tuple[str, float]]] = {}
    for row in run.to_pylist():
        results.setdefault(row["query_id"], []).append((row["passage_id"], row["score"]))
    return results


def test_lists_equal_pyserinis(
    run: pa.Table, built: Artifact[Index], queries: Artifact[Queries], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # pyserini's import asks for one and never uses it here
    from pyserini.search.lucene import LuceneSearcher

    searcher = LuceneSearcher(str(built.path / bm25.LUCENE))
    searcher.set_bm25(0.9, 0.4)
    ours = lists(run)
    for query in read_table(queries, Queries).to_pylist()[:20]:
        assert ours[query["query_id"]] == [(hit.docid, hit.score) for hit in searcher.search(query["text"], 1000)]


@pytest.mark.parametrize("threads", [1, 2])
def test_lists_are_cut_where_pyserini_cuts_them(
    built: Artifact[Index], queries: Artifact[Queries], passages: Artifact[Passages], store: Store, threads: int
) -> None:
    texts = [*read_table(queries, Queries)["text"].to_pylist()[:21], *WORDS]
    names, ids = java_list([str(number) for number in range(len(texts))]), read_index(passages)
    searcher = java("io.anserini.search.SimpleSearcher")(str(built.path / bm25.LUCENE))
    searcher.set_bm25(0.9, 0.4)
    with session(Session(store, Execution(threads=threads, device="cpu"))):
        lookup = bm25.open_index(built.path, None, None, ids, "bm25")(texts)
        for depth in (1, 2, 7, 50):
            results = searcher.batch_search(java_list(texts), names, depth, 1)
            for number, ours in enumerate(lookup(range(len(texts)), depth)):
                named = [ids.ids[int(row)].as_py() for row in ours.rows]
                theirs = [(hit.docid, hit.score) for hit in results.get(str(number))]
                assert list(zip(named, ours.scores.tolist(), strict=True)) == theirs


def test_lists_do_not_depend_on_the_size_of_blocks(
    built: Artifact[Index], passages: Artifact[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = bm25.open_index(built.path, None, None, read_index(passages), "bm25")(WORDS)
    whole = lookup(range(len(WORDS)), 30)
    monkeypatch.setattr(bm25, "HITS_PER_CALL", 70)
    for one, other in zip(whole, lookup(range(len(WORDS)), 30), strict=True):
        assert (one.rows == other.rows).all()
        assert (one.scores == other.scores).all()


def test_lists_do_not_depend_on_lucenes_numbers(passages: Artifact[Passages], tmp_path: Path) -> None:
    rows = read_table(passages, Passages, ["passage_id", "text"]).to_pylist()
    (tmp_path / "logs").mkdir()
    bm25._write_lucene(tmp_path / bm25.LUCENE, ((row["passage_id"], row["text"]) for row in reversed(rows)))
    (tmp_path / "index.json").write_text(json.dumps(SETTINGS.model_dump()))
    results = bm25.open_index(tmp_path, None, None, read_index(passages), "bm25")(["gazing walrus"])([0], 10)
    assert {rows[row]["passage_id"] for row in results[0].rows} == {"emoji", "quotes", "with space"}


def reference_ties(scores: list[float]) -> list[np.float32]:
    """One list, as Anserini describes it: rounded, and each near copy of the score before 1e-6 lower than its own."""
    results: list[np.float32] = []
    before = 0
    for score in scores:
        rounded = np.float32(math.floor(score * 1e4 + 0.5) / 1e4)
        near = results and results[-1] - rounded <= np.float32(1e-4)
        before = before + 1 if near else 0
        results.append(rounded - np.float32(1e-6) * np.float32(before))
    return results


@given(st.lists(st.lists(st.integers(0, 3000), max_size=9), max_size=6), st.sampled_from([1e-2, 1e-4, 3e-5, 7e-6]))
def test_ties_are_separated_within_each_list(steps: list[list[int]], unit: float) -> None:
    lists = [[float(np.float32(step * unit)) for step in sorted(row, reverse=True)] for row in steps]
    flat = np.array([score for ranked in lists for score in ranked], np.float32)
    result = bm25.separate_ties(flat, np.array([len(ranked) for ranked in lists], np.int32))
    assert result.tolist() == [float(score) for ranked in lists for score in reference_ties(ranked)]


def test_unusual_texts_and_queries(run: pa.Table) -> None:
    results = lists(run)
    assert {name for name, _ in results["q20"]} == {"emoji", "quotes", "with space"}
    assert {name for name, _ in results["q24"]} == {"emoji", "quotes", "with space"}  # 3,001 words
    assert not {"q21", "q22", "q23"} & set(results)  # empty, no letters, stop words alone


def test_pseudo_queries_are_found_with_their_passage(written, run_stage, passages: Artifact[Passages]) -> None:
    row_of = read_table(passages, Passages)["passage_id"].to_pylist().index
    rows = [("d0#0", 0, "chimney"), ("d3#1", 1, "second"), ("d3#1", 0, "gargoyle"), ("d3#1", 2, "")]
    queries = [pseudo_query(*row) for row in sorted(rows, key=lambda row: row_of(row[0]))]
    dropped = pseudo_query("d3#1", 3, "zeppelin", kept=False, reason="relevance")
    expanded = run_stage(
        index, passages=passages, pseudo_queries=written(PseudoQueries, [*queries, dropped]), settings=SETTINGS
    )
    search = bm25.open_index(expanded.path, None, None, read_index(passages), "bm25")
    for word, results in {"gargoyle": ["d3#1"], "second": ["d3#1"], "chimney": ["d0#0"], "zeppelin": []}.items():
        assert search([word])([0], 10)[0].rows.tolist() == [row_of(passage_id) for passage_id in results]


def test_two_indexes_of_the_same_passages_do_not_share_lucenes_numbers(
    passages: Artifact[Passages], tmp_path: Path
) -> None:
    rows = read_table(passages, Passages, ["passage_id", "doc_id", "text"])
    with temporary_index(passages) as ids:
        results = []
        for name, step in (("one", 1), ("other", -1)):
            (tmp_path / name / "logs").mkdir(parents=True)
            texts = [(row["passage_id"], row["text"]) for row in rows.to_pylist()[::step]]
            bm25._write_lucene(tmp_path / name / bm25.LUCENE, iter(texts))
            (tmp_path / name / "index.json").write_text(json.dumps(SETTINGS.model_dump()))
            found = bm25.open_index(tmp_path / name, None, None, ids, "bm25")(["gazing walrus"])([0], 10)
            results.append({rows["passage_id"][int(row)].as_py() for row in found[0].rows})

    assert results == [{"emoji", "quotes", "with space"}] * 2


def test_pseudo_queries_of_unknown_passages_are_refused(written, run_stage, passages: Artifact[Passages]) -> None:
    strangers = written(PseudoQueries, [pseudo_query("nobody", 0, "x")])
    with pytest.raises(ValueError, match="of other passages"):
        run_stage(index, passages=passages, pseudo_queries=strangers, settings=SETTINGS)


@stage(version=1, table=Passages)
def three_walruses(out: Path) -> None:
    write_rows(out, Passages, [passage(f"d{n}", f"walrus number {n}") for n in range(3)])


def test_lucenes_files_are_listed_and_not_hashed(tmp_path: Path) -> None:
    results = []
    for name in ("one", "other"):
        with session(Session(Store(tmp_path / name), Execution(threads=1, device="cpu"))) as current:
            built = index(passages=three_walruses(), settings=SETTINGS)
            results.append(current.store.manifest(built.stage, built.key))
            assert find_damage(built.path) == []
    one, other = results
    assert one.hash == other.hash
    assert set(one.files) == {"index.json"}
    assert any(file.startswith("logs/lucene/segments") for file in one.logs)


TOGETHER = """
import faulthandler, sys, tempfile
faulthandler.enable()
from pathlib import Path
import numpy as np
from tasks.retrieval.engines import bm25
from tasks.retrieval.lucene.jvm import java

def lucene():
    folder = Path(tempfile.mkdtemp())
    bm25._write_lucene(folder, ((str(n), f"walrus number w{n % 50}") for n in range(500)))
    assert len(java("io.anserini.search.SimpleSearcher")(str(folder)).search("walrus w7", 20)) == 20

def torch():
    import torch
    torch.set_num_threads(2)
    x = torch.randn(600, 300, requires_grad=True)
    (x @ x.T).softmax(-1).sum().backward()

def faiss():
    import faiss
    faiss.omp_set_num_threads(2)
    x = np.random.default_rng(0).random((5000, 32), dtype=np.float32)
    index = faiss.index_factory(32, "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(x); index.add(x); index.search(x[:200], 10)

for _ in range(2):
    for name in sys.argv[1].split(","):
        globals()[name]()
print("alive")
"""


@pytest.mark.parametrize("order", ["lucene,torch,faiss", "faiss,torch,lucene"])
def test_java_torch_and_faiss_work_in_one_process(order: str) -> None:
    done = subprocess.run([sys.executable, "-c", TOGETHER, order], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "alive", "")  # and Java says nothing


STOPPED = """
import os, signal, sys
from tasks.retrieval.lucene.jvm import java
java("java.lang.Object")
os.kill(os.getpid(), int(sys.argv[1]))
import time; time.sleep(900)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_java_leaves_signals_to_python(number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", STOPPED, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == code
    assert ("KeyboardInterrupt" in done.stderr) == (number == signal.SIGINT)
    assert "Java" not in done.stdout + done.stderr
