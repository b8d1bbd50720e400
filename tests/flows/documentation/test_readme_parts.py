"""The generated parts of the README are those that the result files give, and it stays short."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from flows.documentation import readme
from flows.recipe.shipped import PROJECT, shipped_recipes
from storage.datasets.vital_wikipedia import qrels
from storage.errors import UserError
from storage.formats.ids import in_slice
from tests.warm import WHEEL

LINES = 150
COLUMN = 830
"""The width in pixels of a README on a page."""


def test_the_readme_and_its_figures_are_what_make_docs_writes() -> None:
    written = readme.documents()

    assert {path.name for path, text in written.items() if path.read_text(encoding="utf-8") != text} == set()
    assert {path.suffix for path in written} == {".md", ".svg"}


def test_the_readme_is_short() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= LINES


def test_each_paper_has_a_page_and_a_recipe() -> None:
    for page, (_, recipe) in readme.PAPERS.items():
        assert (PROJECT / "docs" / "reproduce" / f"{page}.md").is_file()
        assert recipe in shipped_recipes()


def test_a_readme_without_marks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("# pretrieve\n")
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")

    with pytest.raises(UserError, match="expected the lines <!-- highlights"):
        readme.documents()


def test_the_numbers_of_the_quickstart_are_those_of_its_recipe_and_its_runs() -> None:
    text = " ".join((PROJECT / "README.md").read_text().split())
    recipe = yaml.safe_load(shipped_recipes()["quickstart"].read_text())
    training = recipe["rounds"][0]["train"]
    seconds = [sum(run["cpu_seconds"].values()) for run in json.loads(readme.SEEDS.read_text())["runs"]]

    assert f"fine-tunes retrievers with {training['steps'] * training['batch_queries']} (" in text
    assert [len(recipe["backbone"]["layers"]), "three layers of all-MiniLM-L6-v2" in text] == [3, True]
    assert f"reproduce quickstart # {sum(seconds) / len(seconds) / 60:.0f} minutes of CPU time" in text


@pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads")
def test_the_generator_learns_from_as_many_queries_as_the_readme_says() -> None:
    dataset = yaml.safe_load(shipped_recipes()["quickstart"].read_text())["dataset"]
    kept = [in_slice(row["doc_id"], dataset["fraction"]) for row in qrels(WHEEL.parent, dataset["train_split"])]

    assert f"trains a query generator on {sum(kept):,} of them" in (PROJECT / "README.md").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figure_of_the_chain_can_be_read_at_the_width_of_a_page(scheme: str) -> None:
    """HTML in an SVG is drawn by browsers only, and a wide figure is shrunk with its words."""
    svg = (readme.IMAGES / f"chain-{scheme}.svg").read_text()

    assert "foreignObject" not in svg
    width = float(ET.fromstring(svg).get("viewBox", "").split()[2])  # our own text
    assert 16 * COLUMN / width >= 10  # the size of the words in pixels


def test_a_speedup_is_that_over_the_fastest_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    medians = {"five calls": {"median": 6.04}, "five sequences": {"median": 4.08}}
    (tmp_path / "made_up.json").write_text(json.dumps({"cases": {"small": {"times_faster": medians}}}))
    monkeypatch.setattr(readme, "MEASUREMENTS", tmp_path)

    assert readme._speedup("made_up") == "4.1"


def test_a_badge_is_well_formed_and_says_what_it_shows() -> None:
    badge = ET.fromstring(readme.badge("python", "3.11, 3.12"))  # our own text

    assert [text.text for text in badge.iter("{http://www.w3.org/2000/svg}text")] == ["python", "3.11, 3.12"]
