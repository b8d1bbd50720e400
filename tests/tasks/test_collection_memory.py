"""Stages take memory that does not grow with the collection: the peaks with 2,000 and with 8,000 passages are close."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import row_index, rows
from storage.artifact import Artifact, Source
from storage.external import mapped_index
from storage.rows import read_table, write_rows
from storage.tables import Pairs, Passages, Positives, PseudoQueries, Qrels, Queries, Run
from tasks.corpus import token_counts
from tasks.evaluation import max_passage
from tasks.evaluation.evaluate import Evaluation, evaluate
from tasks.evaluation.trec_run_file import trec_lines
from tasks.finetuning.select_queries import ExpertSelection, suited_queries
from tasks.pretraining import context_shards, count_terms, pair_contexts
from tasks.retrieval.shared_passages import PassagesWithTexts, share_passages, temporary_index
from tests.memory import peak_bytes
from tests.tasks.corpora import pseudo_query
from tests.tiny import save_tokenizer

SMALL, LARGE = 2_000, 8_000  # passages
QUERIES, DEPTH = 20, 10
EVALUATION = Evaluation(
    dataset="d", split="s", titles=False, relevant_from=1, ignore_identical_ids=False, metrics=["MRR@10"],
    names=["a"], comparisons=[], seed=1, resamples=10_000,
)  # fmt: skip
PAIRING = pair_contexts.Pairing(
    pseudo_queries=1, passages=["nearby"], alone="itself", max_tokens=20, language="en", seed=1
)  # fmt: skip
SELECTION = ExpertSelection(names=["a", "b"], expert="a", cutoff=10)

pytestmark = pytest.mark.usefixtures("store")


class Tables:
    """A collection with as many passages as given, whose queries, run and judgements are always the same."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.passages = self._write(Passages, (
            {"passage_id": f"d{n // 2}#{n % 2}", "doc_id": f"d{n // 2}", "title": "", "text": "king stone. " * 9,
             "start": 0, "end": 9, "num_tokens": 9}
            for n in range(size)
        ))  # fmt: skip
        self.pseudo_queries = self._write(
            PseudoQueries, (pseudo_query(f"d{n // 2}#{n % 2}", 0, "a king") for n in range(size))
        )
        self.pairs = self._write(Pairs, (
            {"passage_id": str(n), "text": "king stone. " * 9, "queries": ["a king"], "passages": []}
            for n in range(size)
        ))  # fmt: skip
        names = [f"q{n}" for n in range(QUERIES)]
        self.run = self._write(Run, (
            {"query_id": name, "passage_id": f"d{rank}#0", "view": "dense", "rank": rank, "score": 1 / rank}
            for name in names for rank in range(1, DEPTH + 1)
        ))  # fmt: skip
        self.queries = self._write(Queries, ({"query_id": name, "text": name} for name in names))
        self.qrels = self._write(Qrels, ({"query_id": name, "doc_id": "d3", "grade": 1} for name in names))
        self.positives = self._write(
            Positives, ({"query_id": name, "passage_id": "d3#0", "doc_id": "d3"} for name in names)
        )
        save_tokenizer(folder)
        self.tokenizer = Source("tiny", folder)

    def _write(self, table: Any, values: Iterator[dict[str, Any]]) -> Artifact[Any]:
        write_rows(self.folder / table.__name__, table, values)
        return Artifact(table.__name__.lower(), "key", self.folder / table.__name__)


def train_corpus(out: Path, tables: Tables) -> None:
    corpus = PassagesWithTexts.share(out, tables.passages)
    assert corpus.texts([5, 0]) == ["king stone. " * 9] * 2
    assert corpus.documents([5, 0]) == ["d2", "d0"]


def export(out: Path, tables: Tables) -> None:
    with temporary_index(tables.passages, ordered=False) as index:
        assert len(list(trec_lines(tables.run, index, "tag", ignore_identical_ids=True))) == QUERIES * DEPTH


STAGES: dict[str, Callable[[Path, Tables], object]] = {
    "evaluate": lambda out, t: evaluate.body(out, t.qrels, None, t.passages, [t.run], settings=EVALUATION),
    "select queries": lambda out, t: suited_queries.body(
        out, t.queries, [t.run, t.run], t.positives, t.passages, settings=SELECTION
    ),
    "pair contexts": lambda out, t: pair_contexts.pair_contexts.body(
        out, t.passages, t.pseudo_queries, t.tokenizer, settings=PAIRING
    ),
    "count terms": lambda out, t: count_terms.count_terms.body(out, t.pairs, t.tokenizer),
    "search": lambda out, t: share_passages(out, t.passages),
    "train": train_corpus,
    "export-run": export,
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Tables]]:
    with pytest.MonkeyPatch.context() as patch:  # buffers so small that they are full with the fewer passages
        patch.setattr(rows, "ROWS_PER_GROUP", 200)
        patch.setattr(row_index, "IDS_PER_BLOCK", 200)
        patch.setattr(mapped_index, "SORTED_AT_ONCE", 400)
        patch.setattr(max_passage, "DOCUMENTS_PER_BLOCK", 200)
        patch.setattr(context_shards, "ROWS_PER_SHARD", 500)
        patch.setattr(token_counts, "TEXTS_PER_BATCH", 100)
        patch.setattr(token_counts, "TEXTS_PER_SHARD", 500)
        yield {size: Tables(tmp_path_factory.mktemp(str(size)), size) for size in (SMALL, LARGE)}


@pytest.mark.parametrize("name", STAGES)
def test_memory_does_not_grow_with_the_collection(name: str, tables: dict[int, Tables], tmp_path: Path) -> None:
    STAGES[name](tmp_path / "first", tables[SMALL])  # what is imported and compiled once

    peaks = {size: peak_bytes(lambda: STAGES[name](tmp_path / str(size), tables[size])) for size in tables}  # noqa: B023

    assert peaks[LARGE] < peaks[SMALL] + 40 * (LARGE - SMALL), peaks  # a table of ids alone has more


def test_a_table_in_memory_is_seen(tables: dict[int, Tables]) -> None:
    peaks = {size: peak_bytes(lambda: read_table(tables[size].passages, Passages)) for size in tables}  # noqa: B023

    assert peaks[LARGE] > peaks[SMALL] + 100 * (LARGE - SMALL), peaks
