"""What recipes call printed is printed: a line whose comment names a section stands in printed_constants.csv, and back.

Where $PRETRIEVE_PAPERS is a folder of the papers' texts, each row's quote must be found in its paper.
"""

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
import yaml

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
RECIPES = sorted(file for file in CONFIGS.glob("*.yaml") if file.stem != "quickstart")
SOURCE = re.compile(r"\b(?:section|table|equation|appendix) [0-9A-Z][0-9.]*(?<!\.)")
UNSOURCED = (
    "reported.*", "title", "*.chunk", "pretrain.probe.*", "queries.generate.batch_tokens",
    "queries.generate.shard_passages", "queries.quality.*", "search.documents", "evaluate.resamples",
    "contexts.pseudo_queries",  # 0 where a paper's contexts are passages
    "fusions.*.fuse.depth",  # decision 51, as each round's
    "rounds.*.late.query_masks",  # of ColBERT's paper, said once for all of its settings
    "rounds.*.competition.*", "rounds.*.retriever.shared_layers",  # swept
)  # fmt: skip
"""Numbers without a comment: what is measured or only costs time or memory, and the ones with a reason here."""
MERGE = "tag:yaml.org,2002:merge"
TITLES = {
    "came": "CAME: Competitively Learning a Mixture-of-Experts Model for First-stage Retrieval",
    "cot_mote": "CoT-MoTE: Exploring ConTextual Masked Auto-Encoder Pre-training with Mixture-of-Textual-Experts",
    "cpdae": "A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval",
    "dup_mae": "RetroMAE v2: Duplex Masked Auto-Encoder For Pre-Training Retrieval-Oriented Language Models",
    "query_as_context": "Query-as-context Pre-training for Dense Passage Retrieval",
}


@dataclass(frozen=True)
class Constant:
    """A row of the table."""

    paper: str
    key: str
    """Dotted; a round may be `*`."""
    recipes: str
    """Patterns of file stems, apart by blanks."""
    value: str
    where: str
    quote: str

    def is_in(self, recipe: Path) -> bool:
        """BEIR's recipes begin from another's pre-training, and are named as such."""
        patterns = [
            pattern for pattern in self.recipes.split() if pattern.endswith("_beir") == recipe.stem.endswith("_beir")
        ]
        return any(fnmatchcase(recipe.stem, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Line:
    """A value of a recipe with the sources that the comment on its line names."""

    key: str
    value: object
    number: int
    sources: frozenset[str]


def constants() -> list[Constant]:
    with (Path(__file__).parent / "printed_constants.csv").open(encoding="utf-8", newline="") as file:
        return [Constant(**row) for row in csv.DictReader(file)]


@cache
def lines(recipe: Path) -> list[Line]:
    """Every value of a recipe, a list of scalars being one; an alias's values stand at the line that it repeats."""
    text = recipe.read_text(encoding="utf-8")
    comments = [comment_of(row) for row in text.splitlines()]
    node = yaml.compose(text, yaml.SafeLoader)
    assert node is not None
    return [
        Line(key, value, number, frozenset(SOURCE.findall(comments[number - 1])))
        for key, value, number in values(node, ())
    ]


def comment_of(row: str) -> str:
    """What follows a value on its line; no value of our recipes has ` #` in it."""
    return row.partition(" #")[2]


def values(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[str, object, int]]:
    """Dotted key, value and line number of all that a node holds, also of what `<<` merges into it."""
    if isinstance(node, yaml.MappingNode):
        own = {key.value for key, _ in node.value}
        for key, inner in node.value:
            if key.tag == MERGE:
                merged = yaml.MappingNode(inner.tag, [pair for pair in inner.value if pair[0].value not in own])
                merged.start_mark = inner.start_mark
                yield from values(merged, path)
            else:
                yield from values(inner, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode) and not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        for number, inner in enumerate(node.value):
            yield from values(inner, (*path, str(number)))
    else:
        yield ".".join(path), plain(yaml.serialize(node)), node.start_mark.line + 1


def plain(text: str) -> object:
    return yaml.safe_load(text)


def same(results: object, printed: str) -> bool:
    """Equal in value and kind: 1 is not true, and 1.0e-4 no text."""
    expected = plain(printed)
    return type(results) is type(expected) and results == expected


TABLE = constants()


def test_there_are_recipes_and_each_pattern_names_some() -> None:
    assert len(RECIPES) > 30
    for row in TABLE:
        for pattern in row.recipes.split():
            assert any(fnmatchcase(recipe.stem, pattern) for recipe in RECIPES), f"{row.key}: {pattern} names no recipe"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_each_value_that_a_comment_calls_printed_is_in_the_table(recipe: Path) -> None:
    cited = [line for line in lines(recipe) if line.sources]
    for line in cited:
        where = f"{recipe.name} line {line.number}: {line.key}"
        names = {other.key.rpartition(".")[2] for other in cited if other.number == line.number}
        assert len(names) == 1, f"{where}: whose source is it? Give each value a line of its own"
        for source in line.sources:
            rows = [
                row for row in TABLE if row.is_in(recipe) and row.where == source and fnmatchcase(line.key, row.key)
            ]
            assert rows, f"{where}: no row of the table says {source}"
            assert all(same(line.value, row.value) for row in rows), f"{where}: {line.value!r}, printed {rows[0].value}"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_each_row_of_the_table_is_met_and_cited(recipe: Path) -> None:
    for row in (row for row in TABLE if row.is_in(recipe)):
        results = [line for line in lines(recipe) if fnmatchcase(line.key, row.key)]
        assert results, f"{recipe.name} has no {row.key}"
        for line in results:
            where = f"{recipe.name} line {line.number}: {line.key}"
            assert same(line.value, row.value), f"{where}: {line.value!r}, printed {row.value} ({row.where})"
            assert row.where in line.sources, f"{where}: its comment does not name {row.where}"


def test_every_source_in_a_comment_belongs_to_a_value() -> None:
    """A source next to a section's name or a bracket would belong to no value."""
    for recipe in RECIPES:
        cited = {line.number for line in lines(recipe) if line.sources}
        for number, row in enumerate(recipe.read_text(encoding="utf-8").splitlines(), 1):
            if not row.startswith("#") and SOURCE.search(comment_of(row)):
                assert number in cited, f"{recipe.name} line {number}: a source without a value"


def test_each_number_of_a_recipe_has_a_comment_unless_it_only_costs_time_or_memory() -> None:
    for recipe in RECIPES:
        rows = recipe.read_text(encoding="utf-8").splitlines()
        for line in lines(recipe):
            number = isinstance(line.value, int | float) and not isinstance(line.value, bool)
            if number and not comment_of(rows[line.number - 1]):
                assert any(fnmatchcase(line.key, key) for key in UNSOURCED), f"{recipe.name}: {line.key} has no comment"


def test_what_is_not_printed_has_a_reason() -> None:
    """A decision, released code, another system's value, or a reason of our own."""
    for recipe in RECIPES:
        for number, row in enumerate(recipe.read_text(encoding="utf-8").splitlines(), 1):
            assert not row.endswith("not printed"), f"{recipe.name} line {number}: not printed; chosen because ...?"


def test_the_papers_print_what_is_quoted() -> None:
    if not (folder := os.environ.get("PRETRIEVE_PAPERS")):
        pytest.skip("PRETRIEVE_PAPERS names no folder with the papers' texts")
    for row in TABLE:
        assert squeezed(row.quote) in paper(Path(folder), TITLES[row.paper]), f"{row.paper}: {row.key}"


@cache
def paper(folder: Path, title: str) -> str:
    """The text of the paper that has this title at its head."""
    texts = [squeezed(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.txt"))]
    results = [text for text in texts if title in text[:500]]
    assert len(results) == 1, f"{folder}: expected one text titled {title!r}, found {len(results)}"
    return results[0]


def squeezed(text: str) -> str:
    return " ".join(text.split())
