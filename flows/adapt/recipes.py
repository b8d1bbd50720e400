"""The recipes of an adaptation: how much is trained, and what the chain runs.

The base is `small/retro_mae`: RetroMAE needs no pairs, so it pre-trains on the documents of any collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.recipe.shipped import find_recipe
from storage.errors import UserError, suggestion
from tasks.machine import num_cores
from tasks.retrieval.stated_model import StatedModel

BASE = "small/retro_mae"
SPLIT_TOKENS, PASSAGE_TOKENS, QUERY_TOKENS = 144, 160, 64
METRIC = "nDCG@10"
NEGATIVES = 8  # of a query, in training
RERANKED = 20  # passages of a query
COSINE_TEMPERATURE = 0.05  # as sentence-transformers scales cosines by 20
MOST_THREADS = 8
START, FIRST, SECOND, PRETRAINED = "start", "adapted_bm25", "adapted_mined", "adapted_pretrained"
DISTILLED = "adapted_distilled"


@dataclass(frozen=True)
class Size:
    """The part of the chain that is run."""

    name: str
    pretraining_steps: int
    mines: bool
    """Whether a second round mines negatives with the retriever of the first."""
    epochs: int | None
    steps: int | None

    def candidates(self, teacher: str | None) -> list[str]:
        """Return the rounds that train a retriever; a teacher, which may be a weak one, adds a round to the others."""
        rounds = {FIRST: True, SECOND: self.mines, PRETRAINED: self.pretraining_steps, DISTILLED: teacher}
        return [name for name, is_trained in rounds.items() if is_trained]


SIZES = (
    Size("complete", 400, True, 5, None),
    Size("medium", 150, True, 3, None),
    Size("without pre-training", 0, True, 3, None),
    Size("one round", 0, False, 3, None),
    Size("300 steps", 0, False, None, 300),
    Size("100 steps", 0, False, None, 100),
)
"""The first that fits is run; how much the last ones compute depends less on the collection than that of the others."""


def sizes(name: str | None) -> Sequence[Size]:
    """Return all sizes, or the one of a name. Raises UserError where there is none of this name."""
    known = {size.name: size for size in SIZES}
    if name is not None and name not in known:
        raise UserError(f"size {name!r}: there is no such plan; {suggestion(name, known)}")
    return SIZES if name is None else [known[name]]


@dataclass(frozen=True)
class Start:
    """The model that is adapted, and what it reads."""

    weights: str
    """By folder, package:NAME/FOLDER or hub name."""
    stated: StatedModel
    max_tokens: int
    teacher: str | None = None
    teacher_max_tokens: int = 512

    def limit(self, tokens: int) -> int:
        """Return a number of tokens that the model can read."""
        return min(tokens, self.max_tokens)


def threads() -> int:
    """Return the threads of a stage: all cores that this process may use, at most 8.

    The recipe states the number, since it changes the last digits. Small encoders gain little from more.
    """
    return min(num_cores(), MOST_THREADS)


def recipe_content(
    name: str, collection: Path, start: Start, size: Size, language: str, chunk: int | None = None
) -> dict[str, Any]:
    """Return the content of the recipe file; `chunk` queries are trained at a time, None is a complete batch."""
    content: dict[str, Any] = yaml.safe_load(find_recipe(BASE).read_text(encoding="utf-8"))
    training = content["rounds"][0]["train"]
    length, passage = start.limit(SPLIT_TOKENS), start.limit(PASSAGE_TOKENS)
    return content | {
        "title": f"Adaptation to {name}",
        "dataset": {
            "reader": "beir", "path": str(collection), "description": f"{name}, with pseudo-queries",
            "train_split": "train", "eval_splits": ["heldout"], "fraction": None,
        },
        "corpora": {"pretrain": "documents", "pretrain_from": None, "retrieve": "corpus"},
        "split": {"max_tokens": length, "titles": True, "language": language},
        "backbone": {
            "weights": start.weights, "start": "weights", "towers": "siamese", "layers": None, "dropout": 0.0,
            "pooling": start.stated.pooling,
        },
        "queries": None, "contexts": None,
        "pretrain": None if not size.pretraining_steps else content["pretrain"] | {
            "objective": content["pretrain"]["objective"] | {"max_tokens": length},
            "steps": size.pretraining_steps, "probe": {"every": max(1, size.pretraining_steps // 5), "pairs": 300},
        },
        "encode": {"query_max_tokens": start.limit(QUERY_TOKENS), "passage_max_tokens": passage},
        "search": {"documents": 100},
        "rounds": list(_rounds(training | {"fit": training["fit"] | {"chunk": chunk}}, start, size, passage)),
        **_teacher(start, passage),
        "fusions": [{"name": "hybrid", "members": ["bm25", FIRST], "fuse": {"kind": "sum_rr", "depth": 100}}],
        "evaluate": {
            "metrics": [METRIC, "MRR@10", "recall@100"], "resamples": 10_000,
            "comparisons": [{"run": candidate, "baseline": START} for candidate in size.candidates(start.teacher)],
        },
        "headline": {"run": size.candidates(start.teacher)[-1], "baseline": START, "metric": METRIC},
        "reported": {}, "execution": {"threads": threads()},
    }  # fmt: skip


def _rounds(training: dict[str, Any], start: Start, size: Size, passage: int) -> Iterator[dict[str, Any]]:
    yield {"name": START, "mine_with": None, "mine": None, "start": "backbone", "train": None}
    train = training | {
        "epochs": size.epochs, "steps": size.steps, "query_max_tokens": start.limit(QUERY_TOKENS),
        "passage_max_tokens": passage, "passages_per_query": 2,
        "temperature": COSINE_TEMPERATURE if start.stated.normalises else 1.0,
    }  # fmt: skip
    mine = {"miner": "top", "depth": 50, "negatives": NEGATIVES}
    yield {"name": FIRST, "mine_with": "bm25", "mine": mine, "start": "backbone", "train": train}
    if size.mines:
        yield {"name": SECOND, "mine_with": FIRST, "mine": mine, "start": "backbone", "train": train}
    if size.pretraining_steps:
        yield {"name": PRETRAINED, "mine_with": FIRST, "mine": mine, "start": "pretrained", "train": train}
    if start.teacher:
        distillation = {"targets": "margins", "teacher_temperature": 1.0, "contrast_weight": 0.1}
        yield {
            "name": DISTILLED, "mine_with": FIRST if size.mines else "bm25", "mine": mine,
            "start": "pretrained" if size.pretraining_steps else "backbone",
            "train": train | {"distillation": distillation, "passages_per_query": 4},
        }  # fmt: skip


def _teacher(start: Start, passage: int) -> dict[str, Any]:
    """Return the recipe's section `teacher`, whose soft labels one round learns from."""
    if start.teacher is None:
        return {"teacher": None}
    pair = min(passage + start.limit(QUERY_TOKENS), start.teacher_max_tokens)
    lengths = {"query_max_tokens": min(start.limit(QUERY_TOKENS), pair // 2), "max_tokens": pair}
    return {"teacher": {
        "weights": start.teacher, "mine_with": "bm25", "mine": {"miner": "top", "depth": 50, "negatives": 4},
        "train": None, "score": lengths, "reranks": FIRST, "rerank": lengths | {"depth": RERANKED},
    }}  # fmt: skip


def query_recipe_content(content: dict[str, Any], collection: Path, generator: str) -> dict[str, Any]:
    """Return a recipe that generates queries for all passages of the original collection and stops there."""
    generated = yaml.safe_load(find_recipe("small/beir").read_text(encoding="utf-8"))["queries"]
    generate = generated["generate"] | {"queries_per_passage": 3, "max_new_tokens": 32, "input_max_tokens": 200}
    return content | {
        "title": f"Pseudo-queries of {content['title']}",
        "dataset": content["dataset"] | {
            "path": str(collection), "description": "the documents", "train_split": None, "eval_splits": ["judged"],
        },
        "corpora": {"pretrain": "corpus", "pretrain_from": None, "retrieve": "corpus"},
        "queries": {
            "for": ["retrieve"], "model": generator, "train": None, "generate": generate, "filter": {"round_trip": 20},
            "quality": {"passages": 500, "samples": 20},
        },
        "pretrain": None, "fusions": [],
        "rounds": [row for row in content["rounds"] if row["name"] == START],
        "evaluate": content["evaluate"] | {"comparisons": []},
        "teacher": None, "headline": content["headline"] | {"run": START, "baseline": "bm25"},
    }  # fmt: skip
