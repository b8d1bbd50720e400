"""The changes that shorten a recipe's trainings: for smoke tests (`fast: true`) and for rehearsals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from flows.recipe.round_schema import FewShotQueries, Round
from flows.recipe.schema import Recipe

STEPS, MOST_QUERIES, NEW_TOKENS = 2, 8, 8
SMOKE_ROWS, SMOKE_SAMPLE = 8, 4
"""In a smoke test, the rows of a step of pre-training, and the queries of a few-shot sample."""
MARK = "Smoke test, no result: "
"""Begins the title of a smoke test, which all of its pages show."""


def few_steps(recipe: Recipe[Any], rows: int) -> list[str]:
    """Return the changes, as `--set` takes them: two steps of each training, with `rows` texts in pre-training."""
    changes = []
    if (pretraining := recipe.pretrain) is not None:
        changes += [f"pretrain.steps={STEPS}", "pretrain.epochs=null", "pretrain.probe=null"]
        changes += [f"pretrain.batch={min(pretraining.batch, rows)}", "pretrain.warm_heads=null"]
        changes += ["pretrain.fit.average=null"] if pretraining.fit.average else []
    if recipe.teacher is not None and recipe.teacher.train is not None:
        changes += ["teacher.train.epochs=1", "teacher.train.passages_per_query=2"]
        changes.append(f"teacher.train.batch_queries={min(recipe.teacher.train.batch_queries, MOST_QUERIES)}")
    for number, round_ in enumerate(recipe.rounds):
        changes += [f"rounds.{number}.train.{change}" for change in _of_round(round_)]
    return changes


def _of_round(round_: Round) -> Iterator[str]:
    if (training := round_.train) is not None:
        yield f"steps={STEPS}"
        yield "epochs=null"
        yield f"batch_queries={min(training.batch_queries, MOST_QUERIES)}"
        if training.fit.average:
            yield "fit.average=null"


def smoke_test(recipe: Recipe[Any], changes: Sequence[str]) -> list[str]:
    """Return the changes of a recipe with `fast: true`. What the user's `changes` state is left as it is.

    Other collections are left out, which no fraction makes smaller, and so are claims and the paper's numbers.
    """
    shortened = [*few_steps(recipe, SMOKE_ROWS), *_of_queries(recipe), "transfer=null", "claims=null", "reported={}"]
    shortened.append(f"title={json.dumps(MARK + recipe.title)}")
    if recipe.corpora.pretrain_from is not None:
        shortened += ["corpora.pretrain_from=null", "corpora.pretrain=corpus"]
    for number, round_ in enumerate(recipe.rounds):
        if isinstance(round_.queries, FewShotQueries):
            shortened.append(f"rounds.{number}.queries.queries={min(round_.queries.queries, SMOKE_SAMPLE)}")
    stated = {change.partition("=")[0] for change in changes}
    of_length = {name.removesuffix("epochs") + "steps" for name in stated if name.endswith(".epochs")}
    of_length |= {name.removesuffix("steps") + "epochs" for name in stated if name.endswith(".steps")}
    return [change for change in shortened if change.partition("=")[0] not in stated | of_length]


def _of_queries(recipe: Recipe[Any]) -> Iterator[str]:
    """Yield the changes of the pseudo-queries: a short training of the generator, and short queries."""
    if (queries := recipe.queries) is None:
        return
    if queries.train is not None:
        yield f"queries.train.steps={STEPS}"
        yield f"queries.train.copy_steps={min(queries.train.copy_steps, STEPS - 1)}"
        yield f"queries.train.batch={min(queries.train.batch, SMOKE_ROWS)}"
    if queries.generate is not None:
        yield f"queries.generate.max_new_tokens={NEW_TOKENS}"
    for number in range(len(queries.also)):
        yield f"queries.also.{number}.generate.max_new_tokens={NEW_TOKENS}"
