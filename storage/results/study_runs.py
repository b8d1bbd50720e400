"""The results of a study's runs: values by query, curves and keys, in three small Parquet files without weights.

They are in `RESULTS/<recipe>/seed-<n>/`. Each file has the same facts about the run in its metadata. A kill between two
writes may leave files of two runs: their facts differ, the folder counts as empty, and the run is repeated.
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
SCORES = pa.schema([("row", pa.string()), ("metric", pa.string()), ("query_id", pa.string()), ("value", pa.float64())])
CURVES = pa.schema([("training", pa.string()), ("name", pa.string()), ("step", pa.float32()), ("value", pa.float32())])
KEYS = pa.schema({
    "stage": pa.string(), "round": pa.string(), "key": pa.string(), "version": pa.int64(), "rows": pa.int64(),
    "cached": pa.bool_(), "seconds": pa.float64(), "cpu_seconds": pa.float64(), "at": pa.string(),
    "device": pa.string(), "cores": pa.int64(),
})  # fmt: skip
FILES = {"scores": SCORES, "curves": CURVES, "keys": KEYS}


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

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return f"pretrieve reproduce {self.recipe} --set seed={self.seed}"


@dataclass(frozen=True)
class StudyRun:
    """The files of a run."""

    folder: Path
    facts: Facts

    @cached_property
    def scores(self) -> pa.Table:
        """The values by system (`row`), metric and query."""
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
        table = self.scores
        chosen = table.filter(pc.and_(pc.equal(table["row"], row), pc.equal(table["metric"], metric)))
        if not len(chosen):
            return None
        chosen = chosen.sort_by("query_id")
        return chosen["query_id"], chosen["value"].to_numpy()


def study_run_folder(results: Path, recipe: str, seed: int) -> Path:
    """Return the folder of a run's files. Its first part is the recipe's name without folders."""
    return results / Path(recipe).stem / f"seed-{seed}"


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


def read_study_run(results: Path, recipe: str, seed: int) -> StudyRun | None:
    """Return a run, or None where there is none or files of several runs. Raises UserError for a damaged file."""
    folder = study_run_folder(results, recipe, seed)
    facts = {_facts(folder / f"{name}.parquet", schema) for name, schema in FILES.items()}
    if len(facts) != 1 or None in facts:
        return None
    return StudyRun(folder, Facts(**json.loads(facts.pop() or b"")))


def read_study_runs(results: Path) -> Iterator[StudyRun]:
    """Yield every stored run, by name and seed."""
    for folder in sorted(results.glob("*/seed-*")):
        if run := read_study_run(results, folder.parent.name, int(folder.name.removeprefix("seed-"))):
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
