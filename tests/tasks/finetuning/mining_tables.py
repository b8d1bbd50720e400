"""Small runs, labels and teacher scores for the tests of mining."""

from typing import Any

import numpy as np

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import Negatives, Passages, Positives, Run, TeacherScores
from tasks.finetuning.mine import mine
from tasks.finetuning.miners import MiningSettings


def ranked(names: list[str]) -> list[dict[str, object]]:
    return [
        {"query_id": "q", "passage_id": name, "view": "dense", "rank": rank, "score": 1.0 / rank}
        for rank, name in enumerate(names, start=1)
    ]


def passages_of(written: Any, documents: int = 30) -> Artifact[Passages]:
    """Two passages a document: d3#0, d3#1."""
    return written(Passages, [
        {"passage_id": f"d{doc}#{n}", "doc_id": f"d{doc}", "title": "", "text": "x", "start": 0, "end": 1,
         "num_tokens": 1}
        for doc in range(documents) for n in range(2)
    ])  # fmt: skip


class RandomTables:
    """Random runs, positives and scores of a teacher, and what mining makes of them."""

    def __init__(self, written: Any, run_stage: Any, seed: int, num_runs: int) -> None:
        self.run_stage, random = run_stage, np.random.default_rng(seed)
        self.passages = passages_of(written)
        names = [f"d{doc}#{n}" for doc in range(30) for n in range(2)]
        self.positives = {f"q{n}": [f"d{doc}#0" for doc in random.choice(30, size=1 + n % 3, replace=False)]
                          for n in range(0, 12, 2)}  # fmt: skip
        self.runs: list[dict[str, list[tuple[str, float]]]] = []
        for _ in range(num_runs):
            lists = {}
            for n in range(12):
                if random.random() < 0.85:
                    results = random.permutation(names)[: random.integers(1, 40)].tolist()
                    lists[f"q{n}"] = list(
                        zip(results, np.sort(random.normal(3, 2, len(results)))[::-1].tolist(), strict=True)
                    )
            self.runs.append(lists)
        self.teacher = {(query, name): float(random.normal()) for query in self.positives for name in names}
        self.run_tables = [
            written(Run, [
                {"query_id": query, "passage_id": name, "view": "late", "rank": rank, "score": score}
                for query, results in lists.items() for rank, (name, score) in enumerate(results, start=1)
            ])
            for lists in self.runs
        ]  # fmt: skip
        self.labels = written(Positives, [
            {"query_id": query, "passage_id": name, "doc_id": name.partition("#")[0]}
            for query, results in self.positives.items() for name in results
        ])  # fmt: skip
        self.scores = written(TeacherScores, [
            {"query_id": query, "passage_id": name, "score": score} for (query, name), score in self.teacher.items()
        ])  # fmt: skip

    def mined(self, settings: MiningSettings) -> dict[str, list[tuple[str, int, float]]]:
        scores = self.scores if settings.miner == "cross_encoder" else None
        table = self.run_stage(
            mine, runs=self.run_tables, positives=self.labels, passages=self.passages, scores=scores, settings=settings
        )
        results: dict[str, list[tuple[str, int, float]]] = {}
        for row in read_rows(table, Negatives):
            results.setdefault(row["query_id"], []).append((row["passage_id"], row["rank"], row["score"]))
        return results

    def without_positives(self, query: str, run: int, depth: int) -> list[tuple[str, int, float]]:
        """By the rules: no passage of a relevant document, then the cut."""
        relevant = {name.partition("#")[0] for name in self.positives[query]}
        rows = [(name, rank, score) for rank, (name, score) in enumerate(self.runs[run].get(query, []), start=1)]
        return [row for row in rows if row[0].partition("#")[0] not in relevant][:depth]


def run_of(written: Any, queries: str) -> Artifact[Run]:
    """A passage for each of these queries, in this order."""
    return written(Run, [
        {"query_id": query, "passage_id": "d1#0", "view": "late", "rank": 1, "score": 1.0} for query in queries
    ])  # fmt: skip
