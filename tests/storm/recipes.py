"""Two recipes with nearly every kind of stage, on a collection and a BERT so small that a chain takes seconds.

They share the collection's stages and differ from pre-training on, so that two runs at once on one store build some
artifacts together and others apart.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

from flows.recipe.shipped import find_recipe
from tests.storm.schedule import PAIRS, TEXTS
from tests.test_retrievers_end_to_end import recipe as retrievers
from tests.tiny import ENDINGS, WORDS, save_backbone

DOCUMENTS, QUERIES = 90, {"train": 48, "dev": 12, "test": 12}
GENERATION = {
    "queries_per_passage": 2, "prefix": "text2query: ", "input_max_tokens": 40, "top_k": 10, "top_p": 0.95,
    "max_new_tokens": 8, "shard_passages": 30, "batch_tokens": 1024,
}  # fmt: skip
LARGEST = {"dim": 8, "top_passages": 20, "top_queries": 20}
CONTEXTS = {"pseudo_queries": 1, "passages": [], "alone": None}


def write(folder: Path) -> None:
    """Write the collection, the BERT and the recipes into a folder."""
    _write_collection(folder / "collection")
    (folder / "bert").mkdir()
    save_backbone(folder / "bert", spread=0.2)
    (folder / "negatives.jsonl").write_text("".join(
        json.dumps({"qid": f"train-{number}", "pos": [{"pid": f"d{number}", "ce-score": 5.0}],
                    "neg": {"bm25": [{"pid": f"d{number + offset}", "ce-score": -offset} for offset in (1, 2)]}}) + "\n"
        for number in range(QUERIES["train"])
    ))  # fmt: skip
    for name, value in {PAIRS: with_pseudo_queries(), TEXTS: without_pseudo_queries()}.items():
        (folder / name).write_text(yaml.safe_dump(value, sort_keys=False))


def _write_collection(folder: Path) -> None:
    """Documents of random words; the query of a document is some of its words."""
    drawn = random.Random(17)
    words = WORDS + [f"{word}{ending[2:]}" for word in WORDS for ending in ENDINGS]
    texts = [" ".join(drawn.choices(words, k=drawn.randint(6, 18))) + "." for _ in range(DOCUMENTS)]
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(
        json.dumps({"_id": f"d{number}", "title": words[number], "text": text}) + "\n"
        for number, text in enumerate(texts)
    ))  # fmt: skip
    queries = []
    for split, count in QUERIES.items():
        rows = ["query-id\tcorpus-id\tscore"]
        for number in range(count):
            queries.append({"_id": f"{split}-{number}", "text": " ".join(drawn.sample(texts[number][:-1].split(), 3))})
            rows.append(f"{split}-{number}\td{number}\t1")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))


def with_pseudo_queries() -> dict[str, Any]:
    """A generator and its filtered queries, CoT-MAE, experts, a teacher, hard negatives and all kinds of indexes."""
    value = _small(retrievers())
    value["title"] = "Storm, pairs"
    quickstart = yaml.safe_load(find_recipe("quickstart").read_text())
    cot_mae = yaml.safe_load(find_recipe("study/cot_mae_query").read_text())
    training = quickstart["queries"]["train"] | {
        "vocabulary": 200, "layers": 2, "hidden_size": 16, "heads": 2, "input_max_tokens": 40, "query_max_tokens": 8,
        "copy_steps": 5, "steps": 40, "batch": 8, "copy_min_tokens": 1, "copy_max_tokens": 3,
    }  # fmt: skip
    value["queries"] = quickstart["queries"] | {
        "train": training, "generate": GENERATION, "quality": {"passages": 20, "samples": 5},
        "filter": {"round_trip": {"depth": 90}, "relevance": None, "cut": {"round_trip": 60, "relevance": None}},
    }  # fmt: skip
    value["contexts"] = CONTEXTS
    value["pretrain"] |= {
        "paper": "cot_mae",
        "objective": cot_mae["pretrain"]["objective"] | {"max_tokens": 48, "context_max_tokens": 12},
    }
    value["analyses"] += [{"analysis": "text_statistics", "tagger": None, "texts": 10}]
    return value


def without_pseudo_queries() -> dict[str, Any]:
    """CPDAE, which counts terms, and two rounds of a dense retriever."""
    value = _small(retrievers())
    value["title"] = "Storm, texts"
    cpdae = yaml.safe_load(find_recipe("small/cpdae").read_text())
    value["pretrain"] |= {
        "paper": "cpdae", "objective": cpdae["pretrain"]["objective"] | {"max_tokens": 48}, "probe": None,
    }  # fmt: skip
    few = next(round_ for round_ in value["rounds"] if round_["name"] == "few")
    first = few | {"name": "first", "queries": None}
    second = first | {"name": "second", "mine_with": "first"}
    for name in ("teacher", "fusions", "approximate", "transfer"):
        value.pop(name, None)
    return value | {
        "rounds": [first, second], "headline": value["headline"] | {"run": "second"},
        "analyses": [{"analysis": "word_distribution", "texts": 10, "shown": 1, "words": 5, "common": 0.5}],
        "evaluate": value["evaluate"] | {"comparisons": [{"run": "second", "baseline": "first"}]},
    }  # fmt: skip


def _small(value: dict[str, Any]) -> dict[str, Any]:
    """The recipe of every kind of retriever on the small collection and the small BERT."""
    value["dataset"] = {
        "reader": "beir", "path": "collection", "description": "random words", "train_split": "train",
        "eval_splits": ["dev", "test"], "fraction": None,
    }  # fmt: skip
    value["split"] |= {"max_tokens": 48}
    value["backbone"] |= {"weights": "bert", "layers": None}
    value["train_documents"] = 12
    value["search"] = {"documents": 12}
    value["pretrain"] |= {"steps": 40, "batch": 8, "probe": {"every": 20, "pairs": 10}}
    value["pretrain"]["objective"] |= {"max_tokens": 48}
    for round_ in value["rounds"]:
        retriever = round_["train"]["retriever"]
        for view in retriever.values():
            if isinstance(view, dict):
                view.update({name: min(view[name], most) for name, most in LARGEST.items() if view.get(name)})
        round_["train"] = round_["train"] | {"epochs": None, "steps": 30, "batch_queries": 8}
        round_["mine"] = round_["mine"] and round_["mine"] | {"depth": 10, "negatives": 4}
        if "samples" in (round_.get("queries") or {}):
            round_["queries"] = {"queries": 16, "samples": [0, 1]}
    value.pop("transfer")
    return value
