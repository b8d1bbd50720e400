"""Two runs that a paper's table compares differ only in what the table is about (`tests/ablation_pairs.yaml`).

The settings of a run are its recipe's, except those that only concern other runs or the report. The run's own round
includes, in place of their names, the rounds that it starts from and mines with; a fusion includes its members.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes

TABLE = Path(__file__).resolve().parents[2] / "ablation_pairs.yaml"
OF_OTHER_RUNS = {
    "title", "description", "headline", "reported", "evaluate", "analyses", "transfer", "approximate", "execution",
    "rounds", "fusions", "teacher",
}  # fmt: skip
OF_MEMORY_ONLY = {"chunk", "shard_passages", "batch_tokens"}
"""Settings that change no result: how much is computed at a time."""
ABSENT = object()
Difference = tuple[str, Any, Any]


@dataclass(frozen=True)
class Pair:
    table: str
    run: str
    other: str
    may_differ: tuple[str, ...]


def pairs() -> Iterator[Pair]:
    for entry in yaml.safe_load(TABLE.read_text(encoding="utf-8")):
        others = [entry["with"]] if isinstance(entry["with"], str) else entry["with"]
        for other in others:
            yield Pair(entry["table"], entry["run"], other, tuple(entry["differ"]))


PAIRS = list(pairs())


@cache
def settings(recipe: str) -> dict[str, Any]:
    return load_recipe(recipe)[0].model_dump(mode="json", by_alias=True)


def settings_of_run(run: str) -> dict[str, Any]:
    """Return what the ranking RECIPE/RUN depends on."""
    recipe, _, name = run.rpartition("/")
    content = settings(recipe)
    of_recipe = {key: value for key, value in content.items() if key not in OF_OTHER_RUNS}
    dataset = {key: value for key, value in content["dataset"].items() if key != "description"}
    metrics = content["evaluate"]["metrics"]
    return {**of_recipe, "dataset": dataset, "metrics": metrics, "round": lineage(content, name)}


def lineage(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a round or a fusion, with those of the rounds that it builds on."""
    rounds = {round_["name"]: round_ for round_ in content["rounds"]}
    if name in rounds:
        own = {key: value for key, value in rounds[name].items() if key not in ("name", "rows")}
        return own | {key: lineage(content, own[key]) for key in ("start", "mine_with") if own[key] in rounds}
    [fusion] = [fusion for fusion in content["fusions"] if fusion["name"] == name]
    members = {str(number): lineage(content, member.partition("/")[0]) | {"view": member.partition("/")[2]}
               for number, member in enumerate(fusion["members"])}  # fmt: skip
    return {"fuse": fusion["fuse"], "learn": fusion["learn"], "members": members}


def differences(one: Any, other: Any, key: str = "") -> Iterator[Difference]:
    """Yield each key in which two settings differ; a section that one of them lacks is one difference."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        if one != other:
            yield key, one, other
        return
    for name in dict.fromkeys([*one, *other]):
        if name not in OF_MEMORY_ONLY:
            yield from differences(one.get(name, ABSENT), other.get(name, ABSENT), f"{key}.{name}" if key else name)


def unexplained(every: list[Difference], may_differ: tuple[str, ...]) -> list[Difference]:
    """Return the differences that no pattern allows; two papers' objectives may have settings of their own."""
    own = "pretrain.paper" in may_differ
    return [
        (key, one, other) for key, one, other in every
        if not any(fnmatchcase(key, pattern) for pattern in may_differ)
        and not (own and key.startswith("pretrain.objective.") and ABSENT in (one, other))
    ]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.run}-{pair.other}")
def test_compared_runs_differ_only_in_what_their_table_is_about(pair: Pair) -> None:
    every = list(differences(settings_of_run(pair.run), settings_of_run(pair.other)))

    assert unexplained(every, pair.may_differ) == [], pair.table
    for pattern in pair.may_differ:
        assert any(fnmatchcase(key, pattern) for key, _, _ in every), f"{pair.table}: {pattern} does not differ"


def test_an_unexplained_difference_is_found() -> None:
    one, other = settings_of_run("cot_mae_50k/retriever_2"), settings_of_run("cot_mae_query_as_context/retriever_2")
    other = copy.deepcopy(other)
    other["pretrain"]["objective"]["decoder_layers"] += 1

    every = list(differences(one, other))
    assert [key for key, _, _ in unexplained(every, ("queries", "contexts.*"))] == ["pretrain.objective.decoder_layers"]


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if "/" not in name and name.endswith("_beir")])
def test_a_recipe_for_beir_has_the_representation_of_the_recipe_that_it_starts_from(name: str) -> None:
    pretraining = settings(name.removesuffix("_beir"))
    [of_beir] = [round_["train"]["retriever"] for round_ in settings(name)["rounds"]]

    for round_ in pretraining["rounds"]:
        assert round_["train"]["retriever"] == of_beir
