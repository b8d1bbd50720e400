"""Queries, passages, positives, negatives and runs for a tiny cross-encoder, and its score of a pair, one by one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import encode_pair, pad_pairs
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.rows import parts
from storage.tables import Negatives, Passages, Positives, Queries, Run, passage_text
from tests.tiny import WORDS

PASSAGES = [
    {"passage_id": f"p{n}", "doc_id": f"d{n // 2}", "title": "king" if n % 4 == 0 else "", "text": text, "start": 0,
     "end": len(text), "num_tokens": 8}
    for n in range(30)
    for text in [" ".join(np.random.default_rng(n).choice(WORDS, size=n % 13))]
]  # fmt: skip
QUERIES = {
    f"q{n}": " ".join(np.random.default_rng(100 + n).choice(WORDS, size=n % 7 + 1)) for n in (3, 1, 7, 2, 0, 9, 4)
}
POSITIVES = [("q0", "p5"), ("q3", "p0"), ("q0", "p2"), ("q7", "p9"), ("q8", "p1"), ("q2", "p28"), ("q2", "p12")]
NEGATIVES = [
    ("q0", "p9"), ("q0", "p7"), ("q0", "p5"), ("q3", "p9"), ("q3", "p9"), ("q1", "p29"), ("q1", "p3"), ("q8", "p4"),
    ("q7", "p13"), ("q7", "p14"), ("q7", "p4"),
]  # fmt: skip


class Tables:
    """The tables above as artifacts, with changes."""

    def __init__(self, written: Any) -> None:
        self.written = written
        self.queries = written(Queries, [{"query_id": name, "text": text} for name, text in QUERIES.items()])
        self.passages = written(Passages, PASSAGES)

    def inputs(
        self, positives: Iterable[tuple[str, str]] = POSITIVES, negatives: Iterable[tuple[str, str]] = NEGATIVES
    ) -> Any:
        right = [{"query_id": query, "passage_id": passage, "doc_id": "d"} for query, passage in positives]
        wrong = [{"query_id": query, "passage_id": passage, "rank": 1, "score": 0.5} for query, passage in negatives]
        return self.queries, self.passages, self.written(Positives, right), self.written(Negatives, wrong)

    def run(self, lists: dict[str, list[int]], view: str = "dense") -> Artifact[Run]:
        return self.written(  # type: ignore[no-any-return]
            Run,
            [
                {"query_id": query, "passage_id": f"p{n}", "view": view, "rank": rank + 1, "score": -float(rank)}
                for query, results in lists.items()
                for rank, n in enumerate(results)
            ],
        )


def slow_score(teacher: Source, query: str, passage: str) -> float:
    """One pair, alone in its batch."""
    tokenizer, row = Tokenizer.load(teacher.path), PASSAGES[int(passage[1:])]
    query_ids, text = tokenizer.token_ids([QUERIES[query], passage_text(row["title"], row["text"])])
    pair = encode_pair(tokenizer, query_ids, text, query_max_tokens=6, max_tokens=14)
    with torch.inference_mode():
        return float(cross_encoder.load(teacher.path)(pad_pairs(tokenizer, [pair]))[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in parts(folder)}
