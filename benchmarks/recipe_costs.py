"""Count FLOPs by kind of stage of each recipe that reproduces a row of a paper: `python -m benchmarks.recipe_costs`.

The counts are those of `pretrieve plan` (`tasks/estimates`): every text fills its `max_tokens`. Two counts are added: a
T5-base that generates queries for the spans of pre-training, by the formula of `t5_base.py`, and the pairs of a query
and a passage that exact search compares, by representation. The command takes some minutes and writes
`benchmarks/results/recipe_costs.json`.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import results, t5_base
from flows.documentation.paper_coverage import reproducing_recipes
from flows.plan.costs import CostEstimate, passes_texts
from flows.plan.labels import detail
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.round_schema import expanded
from flows.recipe.schema import Recipe
from models.retrievers.retriever import SUM
from storage.datasets import msmarco, num_rows
from storage.files import write_atomically
from storage.store import sources
from storage.store.store import Store
from tasks.job import Job
from tasks.retrieval.search import search
from tasks.session import Done

SYSTEMS = (
    "cot_mae", "cot_mae_query_as_context", "co_condenser_query_as_context", "cot_mote", "retro_mae", "dup_mae", "cpdae",
    "came",
)  # fmt: skip
"""The papers' main systems, which `docs/scale.md` shows."""
PASSAGES, QUERIES = msmarco.NUM_ROWS["corpus", None], msmarco.NUM_ROWS["queries", "train"]
WIKIPEDIA_WORDS, BOOK_WORDS = 2_500_000_000, 800_000_000  # Devlin et al. 2019, section 3.1
PIECES_PER_WORD = 1.3  # of BERT's vocabulary: what is assumed of these two
PASSAGE_PIECES = 77  # of a passage of MS MARCO, assumed
PIECES = {
    "wikipedia": WIKIPEDIA_WORDS * PIECES_PER_WORD,
    "wikipedia_bookcorpus": (WIKIPEDIA_WORDS + BOOK_WORDS) * PIECES_PER_WORD,
    "wikipedia_bookcorpus_msmarco": (WIKIPEDIA_WORDS + BOOK_WORDS) * PIECES_PER_WORD + PASSAGES * PASSAGE_PIECES,
}
"""Word pieces of what is pre-trained on by epochs, by reader; texts are then counted as if each were full."""
KINDS = {
    "pretrain": "pre-train", "train": "train", "encode": "encode", "train_teacher": "teacher", "score": "teacher",
    "rerank": "teacher",
}  # fmt: skip
WIDTH = 768  # of the vectors that are searched
VIEWS = ("dense", "lexical", "late")


def main() -> None:
    """Count every recipe, one after another; each is written as soon as it is counted."""
    path = results.path_of("recipe_costs", "cpu")
    counts: dict[str, Any] = {}
    for name in dict.fromkeys([*SYSTEMS, *reproducing_recipes()]):
        counts[name] = counted(name)
        print(name, json.dumps(counts[name]), flush=True)
        write_atomically(path, json.dumps(counts, indent=1) + "\n")


def counted(name: str) -> dict[str, Any]:
    """Return a recipe's title and its FLOPs by kind of stage."""
    recipe, path = load_recipe(name, ["dataset.path=nowhere"])
    if recipe.pretrain and recipe.pretrain.epochs and recipe.corpora.pretrain_from:
        recipe = in_steps(recipe)
    with tempfile.TemporaryDirectory() as folder, sources.assuming_present():
        store = Store(Path(folder))
        plan = planned(recipe, path.stem, store)
        steps = list(plan.done.values())
        estimate = CostEstimate(recipe, steps)
        flops: defaultdict[str, float] = defaultdict(float)
        for step in filter(passes_texts, steps):
            flops[KINDS[step.stage]] += cost.flops if (cost := estimate.of(step)) else scored(recipe, step, estimate)
    if recipe.queries and recipe.queries.queries_per_passage:
        flops["generate queries"] = t5_base.PASSAGES * t5_base.flops(
            float(recipe.split.max_tokens or 0), recipe.queries.queries_per_passage
        )
    return {
        "title": recipe.title, "flops": {kind: float(f"{number:.4g}") for kind, number in flops.items()},
        "pairs": searched_pairs(recipe, plan.jobs),
    }  # fmt: skip


def searched_pairs(recipe: Recipe[Any], jobs: Mapping[str, Job]) -> dict[str, int]:
    """Return how many pairs of a query and a passage exact search compares, by representation.

    A search by the sum of all compares each. Other collections are left out, and splits whose number of queries is not
    known.
    """
    views = {round_.name: round_.train.retriever.views for round_ in expanded(recipe.rounds) if round_.train}
    reader, pairs = recipe.dataset.reader, Counter[str]()
    passages = num_rows(reader, recipe.corpora.retrieve)
    assert passages
    for job in jobs.values():
        if job.stage.name != search.name or job.round not in views or job.values["view"] not in (*VIEWS, SUM):
            continue
        queries = num_rows(reader, "queries", detail(job, jobs).split()[0])
        view = str(job.values["view"])
        for one in views[job.round] if view == SUM else (view,):
            pairs[one] += passages * (queries or 0)
    return dict(pairs)


def in_steps(recipe: Recipe[Any]) -> Recipe[Any]:
    """Return the recipe with its epochs as steps over texts of full length."""
    assert recipe.pretrain
    assert recipe.pretrain.epochs
    assert recipe.corpora.pretrain_from
    texts = PIECES[recipe.corpora.pretrain_from.reader] / recipe.pretrain.objective.max_tokens
    steps = math.ceil(texts * recipe.pretrain.epochs / recipe.pretrain.batch)
    pretraining = recipe.pretrain.model_copy(update={"epochs": None, "steps": steps})
    return recipe.model_copy(update={"pretrain": pretraining})


def scored(recipe: Recipe[Any], step: Done, estimate: CostEstimate) -> float:
    """Return the FLOPs of the pairs that a cross-encoder scores or re-ranks."""
    assert recipe.teacher
    if step.stage == "score":
        mining = next(round_.mine for round_ in recipe.rounds if round_.name == step.round)
        assert mining
        return QUERIES * (1 + (mining.negatives or mining.depth)) * estimate.costs.scoring(recipe.teacher.score).flops
    splits = recipe.dataset.eval_splits
    topics = sum(msmarco.NUM_ROWS["queries", split] for split in splits) / len(splits)
    return topics * recipe.teacher.rerank.depth * estimate.costs.scoring(recipe.teacher.rerank).flops


if __name__ == "__main__":
    main()
