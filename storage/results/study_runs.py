"""What a study keeps of a run: values by query, curves and keys, as three small Parquet files; no weights, no rankings.

They lie in `RESULTS/<recipe>/seed-<n>/`. Each file carries the same facts about the run, so that files of two runs,
which a kill between two writes may leave, are told apart: such a folder counts as empty, and its run is done again.
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
    """What is known of a run as a whole."""

    recipe: str
    """As its command names it."""
    seed: int
    title: str
    report: str
    """The report's key: the same recipe and seed give another one where code or data are others."""
    collection: str
    """Collection and split."""
    versions: Mapping[str, str]
    """Of the packages."""
    pretraining: Mapping[str, float] = field(default_factory=dict)
    """Of its pre-training: `steps`, and of a step `tokens` and `flops` at most, and `cpu_seconds` where it was not cut
    off; empty where nothing is pre-trained."""

    @property
    def command(self) -> str:
        """What makes it again."""
        return f"pretrieve reproduce {self.recipe} --set seed={self.seed}"


@dataclass(frozen=True)
class Kept:
    """A run's files."""

    folder: Path
    facts: Facts

    @cached_property
    def scores(self) -> pa.Table:
        """Values by row, metric and query."""
        return pq.read_table(self.folder / "scores.parquet")

    @cached_property
    def curves(self) -> pa.Table:
        """What its trainings logged."""
        return pq.read_table(self.folder / "curves.parquet")

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """Its stages in their order, with keys and costs."""
        found: list[dict[str, Any]] = pq.read_table(self.folder / "keys.parquet").to_pylist()
        return found

    def measured(self, row: str, metric: str) -> tuple[pa.ChunkedArray, NDArray[np.float64]] | None:
        """The queries in their order, and the values of a row; None where it was not kept."""
        table = self.scores
        chosen = table.filter(pc.and_(pc.equal(table["row"], row), pc.equal(table["metric"], metric)))
        if not len(chosen):
            return None
        chosen = chosen.sort_by("query_id")
        return chosen["query_id"], chosen["value"].to_numpy()


def folder_of(results: Path, recipe: str, seed: int) -> Path:
    """Where a run's files lie; a recipe is filed under its stem."""
    return results / Path(recipe).stem / f"seed-{seed}"


def keep(
    folder: Path, facts: Facts, *, scores: pa.Table, curves: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """Write a run's files, each whole or not at all."""
    told = {FACTS: json.dumps(asdict(facts), sort_keys=True).encode()}
    tables = {
        "scores": scores.select(SCORES.names).cast(SCORES),
        "curves": pa.Table.from_pylist(list(curves), schema=CURVES),
        "keys": pa.Table.from_pylist(list(keys), schema=KEYS),
    }
    for name, table in tables.items():
        with writing(folder / f"{name}.parquet") as temporary:
            pq.write_table(table.replace_schema_metadata(told), temporary, compression="zstd")


def kept(results: Path, recipe: str, seed: int) -> Kept | None:
    """What is kept of a run; None where there is nothing, or files of several runs. UserError for a damaged file."""
    folder = folder_of(results, recipe, seed)
    told = {_facts(folder / f"{name}.parquet", schema) for name, schema in FILES.items()}
    if len(told) != 1 or None in told:
        return None
    return Kept(folder, Facts(**json.loads(told.pop() or b"")))


def all_kept(results: Path) -> Iterator[Kept]:
    """Every run of which something is kept, by name and seed."""
    for folder in sorted(results.glob("*/seed-*")):
        if found := kept(results, folder.parent.name, int(folder.name.removeprefix("seed-"))):
            yield found


def _facts(path: Path, schema: pa.Schema) -> bytes | None:
    if not path.is_file():
        return None
    try:
        found = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a whole Parquet file ({error}); remove it, and its run is done again") from None
    facts = (found.metadata or {}).get(FACTS)
    if facts is None or found.names != schema.names:
        raise UserError(f"{path}: expected the columns {', '.join(schema.names)} and what a study says of its run")
    return bytes(facts)
