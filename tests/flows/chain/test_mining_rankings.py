"""A round that mines with approximate indexes: which stages replace exact search, and how its recall is measured."""

from collections import Counter
from pathlib import Path

import pytest

from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from storage.store import sources
from storage.store.store import Store
from tasks.session import Done

SEISMIC = "{view: lexical, index: {engine: seismic}, recall_queries: 70}"


def stages(folder: Path, *changes: str) -> list[Done]:
    """The planned stages of a recipe whose second round mines from three views."""
    recipe, path = load_recipe("small/came", ["dataset.path=nowhere", *changes])
    with sources.assuming_present():
        return list(planned(recipe, path.stem, Store(folder)).done.values())


@pytest.fixture
def counts(tmp_path: Path) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """How many stages of a name each round has, with exact and with approximate mining."""
    exact, approximate = (
        Counter((stage.stage, stage.round) for stage in stages(tmp_path, *changes))
        for changes in ((), (f"rounds.1.mine_approximate=[{SEISMIC}]",))
    )
    return exact, approximate


def test_an_index_and_the_search_of_a_sample_are_added(
    counts: tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]],
) -> None:
    exact, approximate = counts
    # The learned fusion of the recipe reads exact rankings of the same queries, which mining no longer provides.
    added = approximate - exact - Counter({("search", "retriever_1_linear"): 1})
    assert added == {
        ("index", "retriever_2"): 1, ("sample_for_recall", "retriever_2"): 1, ("search", "retriever_2"): 1,
        ("overlap", "retriever_2"): 1,
    }  # fmt: skip
    assert not exact - approximate


def test_the_mined_ranking_is_compared_with_exact_search_of_the_same_vectors(tmp_path: Path) -> None:
    by_reference = {stage.reference: stage for stage in stages(tmp_path, f"rounds.1.mine_approximate=[{SEISMIC}]")}
    (overlap,) = [stage for stage in by_reference.values() if (stage.stage, stage.round) == ("overlap", "retriever_2")]
    (mine,) = [stage for stage in by_reference.values() if (stage.stage, stage.round) == ("mine", "retriever_2")]
    ((exact, mined),) = overlap.inputs
    assert mined in mine.inputs[0]
    assert exact not in mine.inputs[0]
    vectors = [[part for part in by_reference[run].inputs if str(part).startswith("encode/")] for run in (exact, mined)]
    assert vectors[0] == vectors[1] != []
    indexes = [[part for part in by_reference[run].inputs if str(part).startswith("index/")] for run in (exact, mined)]
    assert by_reference[indexes[0][0]].round == "retriever_1"
    assert by_reference[indexes[1][0]].round == "retriever_2"


def test_mining_without_an_approximate_index_has_todays_dump() -> None:
    recipe, _ = load_recipe("small/came", ["dataset.path=nowhere"])
    assert "mine_approximate" not in recipe.rounds[1].model_dump()
