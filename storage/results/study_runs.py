"""The results of a study's runs: values by query, curves and keys, in three small Parquet files without weights.

They are in `RESULTS/<recipe>/seed-<n>/`; folders `steps-<n>` and `fold-<k>` are between these two where a run has
another number of pre-training steps or the splits of a fold. Each file has the same facts about the run in its
metadata. A kill between two writes may leave files of two runs: their facts differ, the folder counts as empty, and the
run is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.errors import UserError
from storage.files import writing

FACTS = b"pretrieve study"
SCORES = pa.schema([
    ("row", pa.string()), ("metric", pa.string()), ("query_id", pa.string()), ("cluster", pa.string()),
    ("value", pa.float64()),
])  # fmt: skip
CURVES = pa.schema([("training", pa.string()), ("name", pa.string()), ("step", pa.float32()), ("value", pa.float32())])
KEYS = pa.schema({
    "stage": pa.string(), "round": pa.string(), "key": pa.string(), "version": pa.int64(), "rows": pa.int64(),
    "cached": pa.bool_(), "seconds": pa.float64(), "cpu_seconds": pa.float64(), "at": pa.string(),
    "device": pa.string(), "cores": pa.int64(),
})  # fmt: skip
FILES = {"scores": SCORES, "curves": CURVES, "keys": KEYS}


@dataclass(frozen=True)
class Trial:
    """The definition of a run: a recipe with a seed, perhaps with other splits (a fold) and another number of steps."""

    recipe: str
    """The recipe's name on the command line."""
    seed: int
    fold: int | None = None
    """The fold of a cross-validation; None for the recipe's own splits."""
    steps: int | None = None
    """The number of pre-training steps; None for the recipe's own."""

    @property
    def changes(self) -> list[str]:
        """The changes of the recipe, as for `--set`."""
        changes = [f"seed={self.seed}"]
        if self.fold is not None:
            changes += [f"dataset.train_split=fold_{self.fold}_train", f"dataset.eval_splits=[fold_{self.fold}_dev]"]
        return changes if self.steps is None else [*changes, f"pretrain.steps={self.steps}"]

    @property
    def words(self) -> str:
        """The seed, and the fold and the number of steps where these are given, for messages and tables."""
        fold = "" if self.fold is None else f" in fold {self.fold}"
        return f"seed {self.seed}{fold}" + ("" if self.steps is None else f", {self.steps:,} steps")

    def folder(self, results: Path) -> Path:
        """Return the folder of the run's files. Its first part is the recipe's name without folders."""
        parts = ("steps", self.steps), ("fold", self.fold), ("seed", self.seed)
        names = [f"{name}-{number}" for name, number in parts if number is not None]
        return results.joinpath(Path(self.recipe).stem, *names)


@dataclass(frozen=True)
class Facts:
    """Facts about a run."""

    recipe: str
    """The recipe's name on the command line."""
    seed: int
    title: str
    report: str
    """The report's key, which differs for the same recipe and seed where code or data differ."""
    collection: str
    """Collection and split."""
    versions: Mapping[str, str]
    """Versions of the packages."""
    pretraining: Mapping[str, float] = field(default_factory=dict)
    """Costs of the pre-training, empty without one: `steps`, upper bounds of `tokens` and `flops` a step, and
    `cpu_seconds` where it was not interrupted."""
    fold: int | None = None
    """The fold of a cross-validation; None for the recipe's own splits."""
    changed_steps: int | None = None
    """The number of pre-training steps, where it is not the recipe's own."""

    @property
    def trial(self) -> Trial:
        """The definition of the run."""
        return Trial(self.recipe, self.seed, self.fold, self.changed_steps)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return " ".join([f"pretrieve reproduce {self.recipe}", *(f"--set {change}" for change in self.trial.changes)])


@dataclass(frozen=True)
class StudyRun:
    """The files of a run."""

    folder: Path
    facts: Facts

    @cached_property
    def scores(self) -> pa.Table:
        """The values by system (`row`), metric and query, with the cluster that the query is in, such as an article."""
        return pq.read_table(self.folder / "scores.parquet")

    @cached_property
    def curves(self) -> pa.Table:
        """The logged values of its trainings."""
        return pq.read_table(self.folder / "curves.parquet")

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """The run's stages in order, with keys and costs."""
        stages: list[dict[str, Any]] = pq.read_table(self.folder / "keys.parquet").to_pylist()
        return stages

    def measured(self, row: str, metric: str) -> tuple[pa.ChunkedArray, NDArray[np.float64]] | None:
        """Return the sorted query ids and the values of a system, or None where it has none."""
        chosen = self._of(row, metric).sort_by("query_id")
        return (chosen["query_id"], chosen["value"].to_numpy()) if len(chosen) else None

    def clustered(self, row: str, metric: str) -> tuple[pa.ChunkedArray, NDArray[np.float64]] | None:
        """Return the sorted clusters and the mean of a system's values in each, or None where it has none."""
        means = self._of(row, metric).group_by("cluster").aggregate([("value", "mean")]).sort_by("cluster")
        return (means["cluster"], means["value_mean"].to_numpy()) if len(means) else None

    def _of(self, row: str, metric: str) -> pa.Table:
        table = self.scores
        return table.filter(pc.and_(pc.equal(table["row"], row), pc.equal(table["metric"], metric)))


def write_study_run(
    folder: Path, facts: Facts, *, scores: pa.Table, curves: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """Write a run's files, each atomically."""
    metadata = {FACTS: json.dumps(asdict(facts), sort_keys=True).encode()}
    tables = {
        "scores": scores.select(SCORES.names).cast(SCORES),
        "curves": pa.Table.from_pylist(list(curves), schema=CURVES),
        "keys": pa.Table.from_pylist(list(keys), schema=KEYS),
    }
    for name, table in tables.items():
        with writing(folder / f"{name}.parquet") as temporary:
            pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def read_study_run(folder: Path) -> StudyRun | None:
    """Return a run, or None where there is none or files of several runs. Raises UserError for a damaged file."""
    facts = {_facts(folder / f"{name}.parquet", schema) for name, schema in FILES.items()}
    if len(facts) != 1 or None in facts:
        return None
    return StudyRun(folder, Facts(**json.loads(facts.pop() or b"")))


def read_study_runs(results: Path) -> Iterator[StudyRun]:
    """Yield every stored run, by its folder."""
    for folder in sorted(results.glob("*/**/seed-*")):
        if run := read_study_run(folder):
            yield run


def _facts(path: Path, schema: pa.Schema) -> bytes | None:
    if not path.is_file():
        return None
    try:
        stored = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a complete Parquet file ({error}); remove it, and its run is repeated") from None
    facts = (stored.metadata or {}).get(FACTS)
    if facts is None or stored.names != schema.names:
        raise UserError(f"{path}: expected the columns {', '.join(schema.names)} and a study's facts about its run")
    return bytes(facts)
