"""The schema of a suite: a list of collections on which any retriever is evaluated, and how they are read.

A suite is a YAML file in `configs/suites/`, as complete as a recipe. The columns of its table are its collections, or
groups of them, such as CQADupStack's twelve forums; the value of a group is the mean over its members.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flows.recipe.load import read_settings
from flows.recipe.sections import SearchDepth
from flows.recipe.shipped import SUITES
from storage.errors import UserError, suggestion
from storage.settings import Seed, Settings
from tasks.corpus.split_corpus import Splitting
from tasks.evaluation.metrics import METRIC
from tasks.retrieval.encode import Encoding
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.session import Execution

Name = Annotated[str, Field(pattern=r"^\S+$")]
Metric = Annotated[str, Field(pattern=METRIC.pattern)]


class Collection(Settings):
    """A collection, one of its splits, and what is known about it."""

    name: Name
    reader: str
    """The dataset loader: a module of `storage/datasets`."""
    path: str
    """The folder: absolute, or in the working folder, $PRETRIEVE_COLLECTIONS or the project's `data`."""
    eval_split: str
    retrieve: Literal["corpus", "documents"] = "corpus"
    group: Name | None = None
    """The column that it shares with other collections."""
    metric: Metric | None = None
    """The metric of its column; null for the suite's."""
    encode: Encoding | None = None
    """The lengths at which its texts are cut; null for the suite's."""
    documents: Annotated[int, Field(gt=0)] | None = None
    """The number of documents of the official collection; others are refused, and null accepts any."""
    complete: bool = False
    """Refuse files whose counts or checksums differ from those of the complete collection."""
    expected: dict[str, dict[Metric, float]] = Field(default_factory=dict)
    """Published values by model and metric, which a model of this name must reach within `tolerance`."""

    @property
    def fraction(self) -> None:
        """None: all of it is read."""

    @property
    def column(self) -> str:
        """The column that it belongs to."""
        return self.group or self.name


class SuiteEvaluation(Settings):
    """The metrics, and how models are tested against the first."""

    metrics: Annotated[list[Metric], Field(min_length=1)]
    seed: Seed
    resamples: Annotated[int, Field(ge=10_000)]


class Suite(Settings):
    """Collections, and how all of them are split, encoded, searched and evaluated."""

    title: str
    description: str
    """The collections in words, with the attribution that their licences require."""
    seed: Seed
    tokenizer: str
    """The tokenizer whose tokens passages are counted in: a folder, package:NAME/FOLDER or hub name. Recipes with this
    backbone share the passages of their collections."""
    split: Splitting
    encode: Encoding
    """The lengths at which texts are cut; a model that reads less cuts them earlier."""
    bm25: Bm25
    index: Exact
    search: SearchDepth
    evaluate: SuiteEvaluation
    metric: Metric
    """The metric of the table."""
    expected_from: str | None = None
    """The source of the collections' `expected` values."""
    tolerance: Annotated[float, Field(ge=0)] = 0.001
    """The largest difference from an expected value."""
    collections: Annotated[list[Collection], Field(min_length=1)]
    execution: Execution = Field(default_factory=Execution)

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        names = [member.name for member in self.collections]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"collections: the name {min(twice)!r} is there twice; give each its own")
        for member in self.collections:
            if member.group in names:
                raise ValueError(f"collections: the group {member.group!r} has a collection's name; give it another")
            needed = {self.metric_of(member), *(metric for values in member.expected.values() for metric in values)}
            if unknown := needed - set(self.evaluate.metrics):
                raise ValueError(f"collections: {member.name}: {min(unknown)} is none of evaluate.metrics")
        if any(member.expected for member in self.collections) and not self.expected_from:
            raise ValueError("expected_from: say where the expected values come from")
        return self

    def encoding_of(self, member: Collection) -> Encoding:
        """Return how a collection's texts are encoded: its own lengths, if it has some, in the suite's precision."""
        if member.encode is None or member.encode.precision is not None:
            return member.encode or self.encode
        return member.encode.model_copy(update={"precision": self.encode.precision})

    def metric_of(self, member: Collection) -> str:
        """Return the metric of a collection's column."""
        return member.metric or self.metric

    def select(self, names: Sequence[str]) -> list[Collection]:
        """Return the collections or groups of these names, in the suite's order; all where none is named."""
        known = {name for member in self.collections for name in (member.name, member.column)}
        for name in names:
            if name not in known:
                hint = suggestion(name, sorted(known))
                raise UserError(f"--only {name}: the suite has no collection of this name; {hint}")
        return [member for member in self.collections if not names or {member.name, member.column} & set(names)]


def load_suite(name: str, changes: Sequence[str] = ()) -> tuple[Suite, str]:
    """Return the suite at a path or of a shipped name, after `section.key=value` changes, and its name."""
    path, shipped = Path(name), shipped_suites()
    if path.suffix not in (".yaml", ".yml"):
        if name not in shipped:
            raise UserError(f"--suite {name}: no suite has this name; {suggestion(name, shipped)}")
        path = shipped[name]
    elif not path.is_file():
        raise UserError(f"--suite {path}: there is no such file")
    return read_settings(path, changes, lambda value, file: Suite), path.stem


def suite_of_folder(folder: str, splits: Sequence[str], reader: str, changes: Sequence[str] = ()) -> tuple[Suite, str]:
    """Return a suite of one collection, a column for each split, and its name; other settings are those of `small`."""
    title = PurePath(folder).name or folder
    collections = [
        {"name": f"{title}/{split}".replace(" ", "_"), "reader": reader, "path": folder, "eval_split": split}
        for split in splits
    ]
    own = {"title": title, "description": f"the collection {title}", "collections": collections}
    suite, _ = load_suite("small", [*(f"{key}={json.dumps(value)}" for key, value in own.items()), *changes])
    return suite, f"{title}-{'-'.join(splits)}".replace("/", "-")


def shipped_suites() -> dict[str, Path]:
    """Return the file of each shipped suite by its name."""
    return {file.stem: file for file in sorted(SUITES.glob("*.yaml"))}
