"""`--set`: sections that the file lacks are created, labels follow their models, and errors name the full path."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.recipe.load import load_recipe
from flows.recipe.shipped import find_recipe
from storage.errors import UserError

PRETRAINED = ["queries.train=null", "queries.model=doc2query/msmarco-t5"]


def labels(*changes: str, recipe: str = "quickstart") -> list[str]:
    """Return the names of a recipe's generators after changes."""
    queries = load_recipe(recipe, changes)[0].queries
    return [queries.generator, *(further.generator for further in queries.also)]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        (PRETRAINED, "doc2query/msmarco-t5"),
        (["queries.train=null", "queries.model=/models/a t5"], "a t5"),
        (["queries.train=null", "queries.model=package:words/t5"], "package:words/t5"),
        ([*PRETRAINED, "queries.generator=mine"], "mine"),
        (["queries.generator=mine", *PRETRAINED], "mine"),
        (["queries.train=null", "queries.generate=null", "queries.file=runs/gpt.jsonl"], "gpt.jsonl"),
        (["queries.train.dropout=0.5"], "small T5 trained on the collection's train pairs"),
        (["queries.generator=null"], "a model that this recipe trains"),
    ],
)
def test_the_label_of_queries_is_that_of_their_model(changes: list[str], label: str) -> None:
    assert labels(*changes) == [label]


def test_further_generators_are_labelled_by_their_models(tmp_path: Path) -> None:
    recipe = yaml.safe_load(find_recipe("quickstart").read_text())
    generate = recipe["queries"]["generate"]
    recipe["queries"]["also"] = [{"generator": "first", "model": "a/b", "generate": generate}]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    assert labels("queries.also.0.model=c/d", recipe=str(tmp_path / "recipe.yaml"))[1] == "c/d"
    assert labels("queries.also.0.generate.seed=5", recipe=str(tmp_path / "recipe.yaml"))[1] == "first"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["queries.filter.round_trip=3"], {"round_trip": {"depth": 3}, "cut": {"round_trip": 3}}),
        (["queries.filter={round_trip: 9, cut: null}"], {"round_trip": {"depth": 9}}),
        (
            ["queries.filter.round_trip=50", "queries.filter.cut.round_trip=5"],
            {"round_trip": {"depth": 50}, "cut": {"round_trip": 5}},
        ),
        (
            ["queries.filter.relevance={model: m, query_max_tokens: 64, max_tokens: 256}",
             "queries.filter.cut.relevance.percentile=70"],
            {"relevance": {"model": "m", "query_max_tokens": 64, "max_tokens": 256},
             "cut": {"relevance": {"percentile": 70}}},
        ),
    ],
)  # fmt: skip
def test_a_filter_is_added_to_a_recipe_without_one(changes: list[str], expected: dict[str, object]) -> None:
    recipe, _ = load_recipe("quickstart", changes)

    assert recipe.queries.filter.model_dump(mode="json", exclude_none=True) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("queries.filter.cut.round_trip=5", "queries.filter: expected .*; for example queries.filter: {round_trip: 3}"),
        ("queries.filter.relevance.model=m",
         r"filter\.relevance\.query_max_tokens: this key is missing; for example queries\.filter\.relevance: {"),
        ("queries.filter={round_trip: 5, cut: {round_trip: 6}}",
         r"queries\.filter\.cut\.round_trip: expected at most 5, .*; for example queries\.filter\.cut\.round_trip: 3"),
        ("queries.filter.cut.relevance={}", r"queries\.filter\.cut\.relevance\.threshold: this key is missing"),
        ("queries.filter.texts.languages=german",
         r"queries\.filter\.texts\.languages: Input should be 'passage' or a valid list, found 'german'; for example"),
        ("queries.filter=3", "queries.filter: Input should be a section of keys, found 3; for example"),
        ("split.pretrain_titles=yes", r"split\.pretrain_titles: .*; for example split\.pretrain_titles: never"),
        ("bm25.k1=high", r"bm25\.k1: .*found 'high'.*; for example bm25\.k1: 0\.9"),
        ("queries.filters.round_trip=3", "no section 'filters'; did you mean filter"),
        ("queries.also.0.model=m", "no section 'also'; set queries.also itself"),
    ],
)  # fmt: skip
def test_an_error_names_the_full_path_and_an_example(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("quickstart", [change])
