"""Small tables of queries, passages and labels that a retriever is trained on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.tables import (
    Checkpoint,
    Negatives,
    Passages,
    Positives,
    Queries,
    passage_text,
)  # fmt: skip
from tasks.finetuning.train import RetrieverBatches, Training
from tasks.finetuning.training_data import ExampleSettings, TrainingData
from tasks.retrieval.shared_passages import PassagesWithTexts
from tasks.training.optimiser import OptimisationSettings
from tests.tiny import WORDS

FITTING = OptimisationSettings(
    learning_rate=3e-3, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None
)


TRAINING = Training(
    retriever=RetrieverSettings(dense=DenseSettings(dim=None)), contrasts=["sum"],
    epochs=4, batch_queries=4, passages_per_query=3, temperature=1.0, mask_known_positives=True, query_max_tokens=12,
    passage_max_tokens=20, fit=FITTING, seed=5,
)  # fmt: skip


# Passage p0 of document d0 has the text of number 0, and so on; documents d0 and d1 have two passages each.
DOCUMENTS = ["d0", "d0", "d1", "d1", *(f"d{n}" for n in range(2, 18))]


TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, size=8)) for n in range(20)]


POSITIVES = {"q0": ["p0", "p2"], "q1": ["p5"], "q2": ["p6", "p7", "p8"], "q3": ["p9"], "q4": ["p10"], "q5": ["p11"]}


NEGATIVES = {"q0": ["p4", "p5", "p6", "p7", "p8"], "q1": ["p0", "p1"], "q2": ["p9"], "q3": ["p12", "p13", "p14", "p15"],
             "q4": ["p1", "p2", "p3", "p11"]}  # fmt: skip


def passages() -> list[dict[str, Any]]:
    return [
        {"passage_id": f"p{n}", "doc_id": DOCUMENTS[n], "title": "king" if n == 3 else "", "text": text, "start": 0,
         "end": len(text), "num_tokens": 8}
        for n, text in enumerate(TEXTS)
    ]  # fmt: skip


def positives(inputs: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": passage, "doc_id": DOCUMENTS[int(passage[1:])]}
        for query, results in inputs.items()
        for passage in results
    ]


def negatives(inputs: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": passage, "rank": rank + 1, "score": 1.0}
        for query, results in inputs.items()
        for rank, passage in enumerate(results)
    ]


def queries(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"query_id": name, "text": TEXTS[int(name[1:])].split()[0] + " " + WORDS[int(name[1:])]} for name in names]


def read_data(
    queries: Artifact[Queries], passages: Artifact[Passages], positives: Artifact[Positives],
    negatives: Artifact[Negatives], settings: ExampleSettings, mined_only: bool = False,
) -> TrainingData:  # fmt: skip
    """The training data of these tables, whose passages are shared in a folder next to theirs."""
    corpus = PassagesWithTexts.share(passages.path.with_name(f"{passages.path.name}-shared"), passages)
    return TrainingData.read(queries, corpus, positives, negatives, settings, mined_only=mined_only)


class TrainingTables:
    """The tables above as inputs of a training, with changes."""

    def __init__(self, written: Any, backbone: Path) -> None:
        self.written, self.start = written, Artifact[Checkpoint]("initialise", "tiny", backbone)

    def inputs(
        self, *, names: Iterable[str] = (*POSITIVES, "q9"), positive: Any = POSITIVES, negative: Any = NEGATIVES
    ) -> Any:
        return (
            self.start, self.written(Queries, queries(names)), self.written(Passages, passages()),
            self.written(Positives, positives(positive)), self.written(Negatives, negatives(negative)), None,
        )  # fmt: skip

    def data(self, settings: Training = TRAINING, **changes: Any) -> TrainingData:
        return read_data(*self.inputs(**changes)[1:5], settings)

    def batches(self, settings: Training = TRAINING, **changes: Any) -> RetrieverBatches:
        return RetrieverBatches(self.data(settings, **changes), Tokenizer.load(self.start.path), settings, None)


def passages_texts() -> list[str]:
    return [passage_text(row["title"], row["text"]) for row in passages()]
