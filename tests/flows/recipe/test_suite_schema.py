"""Every shipped suite loads, holds the numbers that others have published, and is no recipe."""

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from flows.recipe.suite_schema import Suite, load_suite, shipped_suites
from storage import datasets
from storage.errors import UserError

NAMES = {"touche-2020": "webis-touche2020", "signal-1m": "signal1m", "dbpedia": "dbpedia-entity"}
MEASURES = {"nDCG@10": "nDCG@10", "recall@100": "R@100", "recall@1000": "R@1000", "MRR@10": "MRR@10"}


@pytest.mark.parametrize("name", shipped_suites())
def test_every_shipped_suite_loads_by_name_and_path(name: str) -> None:
    suite, called = load_suite(name)

    assert called == name
    assert load_suite(str(shipped_suites()[name]))[0] == suite
    assert {collection.reader for collection in suite.collections} <= set(datasets.dataset_names())
    assert suite.evaluate.seed == suite.seed  # as in recipes


def test_suites_are_no_recipes() -> None:
    assert not [name for name in shipped_recipes() if "suites" in name]
    with pytest.raises(UserError, match="no shipped recipe has this name"):
        load_recipe("suites/beir")


def test_beir_has_the_columns_that_papers_average() -> None:
    public, whole = (
        Counter(collection.column for collection in load_suite(name)[0].collections) for name in ("beir_public", "beir")
    )

    assert (len(public), len(whole)) == (14, 18)
    assert public["CQADupStack"] == whole["CQADupStack"] == 12
    assert set(whole) - set(public) == {"BioASQ", "Signal-1M", "TREC-NEWS", "Robust04"}
    known = {collection.name: collection for collection in load_suite("beir")[0].collections}
    assert all(known[collection.name] == collection for collection in load_suite("beir_public")[0].collections)


def published(file: str) -> dict[str, Any]:
    """What pyserini lists of its own runs, read without importing it."""
    package = importlib.util.find_spec("pyserini")
    assert package is not None
    assert package.submodule_search_locations
    listed = Path(package.submodule_search_locations[0]) / "2cr" / file
    return {row["name"]: row for row in yaml.safe_load(listed.read_text())["conditions"]}


def test_what_beir_expects_of_bm25_is_what_pyserini_lists() -> None:
    listed = {row["dataset"]: row["scores"][0] for row in published("beir.yaml")["bm25-flat"]["datasets"]}

    for of in load_suite("beir")[0].collections:
        name = of.name.lower().replace("/", "-")
        scores = listed.pop(NAMES.get(name, name))
        assert of.expected["bm25"] == {ours: scores[theirs] for ours, theirs in MEASURES.items() if theirs in scores}
    assert not listed


def test_what_msmarco_expects_of_bm25_is_what_pyserini_lists() -> None:
    listed = {row["eval_key"]: row["scores"][0] for row in published("msmarco-v1-passage.yaml")["bm25-tuned"]["topics"]}
    keys = {"dev": "msmarco-v1-passage.dev", "dl19": "dl19-passage", "dl20": "dl20-passage"}

    for of in load_suite("msmarco")[0].collections:
        scores = listed[keys[of.name]]
        for metric, value in of.expected["bm25"].items():
            assert value == scores[{"recall@1000": "R@1K"}.get(metric, metric)]


def written(tmp_path: Path, old: str, new: str) -> str:
    """The small suite with a piece of its text replaced."""
    text = shipped_suites()["small"].read_text()
    assert old in text
    (tmp_path / "changed.yaml").write_text(text.replace(old, new, 1))
    return str(tmp_path / "changed.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: nDCG", "metrik: nDCG", r"metrik: unknown key; did you mean metric\?"),
        ("name: SQuAD", "name: SciFact", "the name 'SciFact' is there twice"),
        ("name: SQuAD,", "name: SQuAD, group: SciFact,", "the group 'SciFact' has a collection's name"),
        ("name: SQuAD,", "name: SQuAD, metric: recall@7,", "SQuAD: recall@7 is none of evaluate.metrics"),
        ("name: SQuAD,", "name: SQuAD, expected: {bm25: {nDCG@10: 0.5}},", "say where the expected values come from"),
        ("metric: nDCG@10", "metric: precision@1", r"metric: String should match pattern"),
        ("split: {max_tokens: 144, titles: true}", "split: {max_tokens: 144}", "split.titles: this key is missing"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, old, new)

    with pytest.raises(UserError, match=message) as error:
        load_suite(path)
    assert path in str(error.value)


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean beir_public"):
        load_suite("beir-public")
    with pytest.raises(UserError, match="there is no such file"):
        load_suite("missing/beir.yaml")


def names(suite: Suite, *only: str) -> list[str]:
    return [collection.name for collection in suite.select(only)]


def test_collections_are_chosen_by_name_or_group_in_the_suites_order() -> None:
    suite, _ = load_suite("beir")

    assert names(suite, "SciFact", "NFCorpus") == ["NFCorpus", "SciFact"]
    assert len(names(suite, "CQADupStack", "CQADupStack/tex")) == 12
    assert names(suite, "CQADupStack/tex") == ["CQADupStack/tex"]
    assert len(names(suite)) == 29
    with pytest.raises(UserError, match="did you mean SciFact"):
        suite.select(["Scifact"])


def test_set_changes_a_collection() -> None:
    suite, _ = load_suite("small", ["collections.2.path=elsewhere/squad", "split.titles=false"])

    assert suite.collections[2].path == "elsewhere/squad"
    assert not suite.split.titles
