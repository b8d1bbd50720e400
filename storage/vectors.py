"""Representations of texts by view, in memory and on disk: shards in the order of the table's rows.

A view is a kind of representation. A row is one vector (`dense`), weights of tokens (`lexical`, sparse) or
one vector a token (`late`, multi-vector for late interaction). A shard is a few `.npy` files in its view's folder, each
complete or absent, and memory-mapped when read. So interrupted encoding resumes with the first unfinished shard, and a
search keeps in memory only what it scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import UserError
from storage.files import writing

Numbers = NDArray[np.int32]
Offsets = NDArray[np.int64]

VECTORS_JSON = "vectors.json"
FILES: Mapping[str, Mapping[str, str]] = {
    "dense": {"dense": ".npy"},
    "lexical": {"ids": ".ids.npy", "values": ".values.npy", "offsets": ".offsets.npy"},
    "late": {"ids": ".ids.npy", "vectors": ".vectors.npy", "offsets": ".offsets.npy"},
}
"""By view, the arrays of a shard and the endings of their files, in the order in which they are written."""


@dataclass(frozen=True)
class SparseRows:
    """N sparse rows; row n has the weights from offsets[n] up to offsets[n + 1]."""

    offsets: Offsets
    """[N + 1]"""
    ids: Numbers
    """[nonzeros], ids of tokens, ascending within a row."""
    values: NDArray[np.float32]
    """[nonzeros]"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, start: int, stop: int) -> SparseRows:
        """Return the rows from `start` up to `stop`, without copying their weights."""
        offsets, cut = _cut(self.offsets, start, stop)
        return SparseRows(offsets, self.ids[cut], self.values[cut])

    def taken(self, rows: Offsets) -> SparseRows:
        """Return the rows with these numbers."""
        offsets, selected = _gathered(self.offsets, rows)
        return SparseRows(offsets, self.ids[selected], self.values[selected])


@dataclass(frozen=True)
class TokenRows:
    """N multi-vector rows; row n has the tokens from offsets[n] up to offsets[n + 1]."""

    offsets: Offsets
    """[N + 1]"""
    vectors: NDArray[np.float32]
    """[tokens, D]"""
    ids: Numbers
    """[tokens], ids of tokens; empty where any two tokens may match."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, start: int, stop: int) -> TokenRows:
        """Return the rows from `start` up to `stop`, without copying their vectors."""
        offsets, cut = _cut(self.offsets, start, stop)
        return TokenRows(offsets, self.vectors[cut], self.ids[cut] if len(self.ids) else self.ids)

    def taken(self, rows: Offsets) -> TokenRows:
        """Return the rows with these numbers."""
        offsets, selected = _gathered(self.offsets, rows)
        return TokenRows(offsets, self.vectors[selected], self.ids[selected] if len(self.ids) else self.ids)


@dataclass(frozen=True)
class Encoded:
    """The representations of N texts; a view that the retriever does not have is None."""

    dense: NDArray[np.float32] | None = None
    """[N, D]"""
    lexical: SparseRows | None = None
    late: TokenRows | None = None

    def __len__(self) -> int:
        return len(next(rows for rows in (self.dense, self.lexical, self.late) if rows is not None))

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are present."""
        return tuple(view for view in FILES if getattr(self, view) is not None)

    def rows(self, start: int, stop: int) -> Encoded:
        """Return the rows from `start` up to `stop`, without copying their arrays."""
        return Encoded(
            None if self.dense is None else self.dense[start:stop],
            None if self.lexical is None else self.lexical.rows(start, stop),
            None if self.late is None else self.late.rows(start, stop),
        )

    def taken(self, rows: Sequence[int] | Offsets) -> Encoded:
        """Return the rows with these numbers, in the given order."""
        rows = np.asarray(rows, dtype=np.int64)
        return Encoded(
            None if self.dense is None else self.dense[rows],
            None if self.lexical is None else self.lexical.taken(rows),
            None if self.late is None else self.late.taken(rows),
        )

    @staticmethod
    def concatenated(parts: Sequence[Encoded]) -> Encoded:
        """Return the rows of all parts, one part after the other."""
        dense = [part.dense for part in parts if part.dense is not None]
        lexical = [part.lexical for part in parts if part.lexical is not None]
        late = [part.late for part in parts if part.late is not None]
        return Encoded(
            np.concatenate(dense) if dense else None,
            SparseRows(_offsets(lexical), _concat(lexical, "ids"), _concat(lexical, "values")) if lexical else None,
            TokenRows(_offsets(late), _concat(late, "vectors"), _concat(late, "ids")) if late else None,
        )


def write_shard(folder: Path, shard: int, encoded: Encoded) -> None:
    """Write one shard of every view. Raises UserError for values that are not finite."""
    for view, name in not_finite(encoded):
        raise UserError(
            f"shard {shard} of the {view} view has {name} that are not finite: the checkpoint's weights are"
            " broken; train it again, or name another"
        )
    for view in encoded.views:
        for name, array in _arrays(encoded, view).items():
            path = _path(folder, view, shard, name)
            with writing(path) as temporary, temporary.open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def not_finite(encoded: Encoded) -> Iterator[tuple[str, str]]:
    """Yield the view and the name of each array with values that are infinite or NaN."""
    for view in encoded.views:
        yield from ((view, name) for name, array in _arrays(encoded, view).items() if not np.isfinite(array).all())


def shard_files(shard: int, views: Sequence[str]) -> list[str]:
    """Return the relative paths of the files of a shard in these views."""
    return [str(_path(Path(), view, shard, name)) for view in views for name in FILES[view]]


def is_finished(folder: Path, shard: int, views: Sequence[str]) -> bool:
    """Return whether all files of a shard in these views exist."""
    return all((folder / file).exists() for file in shard_files(shard, views))


def read_shard(folder: Path, shard: int, view: str | None = None) -> Encoded:
    """Return one memory-mapped shard, of one view or of all stored views."""
    views: dict[str, Any] = {}
    for name in stored_views(folder) if view is None else [view]:
        arrays = {array: _read(_path(folder, name, shard, array)) for array in FILES[name]}
        types = {"lexical": SparseRows, "late": TokenRows}
        views |= arrays if name == "dense" else {name: types[name](**arrays)}
    return Encoded(**views)


def stored_views(folder: Path) -> tuple[str, ...]:
    """Return the views that have files in the folder."""
    return tuple(view for view in FILES if (folder / view).is_dir())


def num_shards(folder: Path) -> int:
    """Return the number of shards that are finished in every view."""
    views, shard = stored_views(folder), 0
    while views and is_finished(folder, shard, views):
        shard += 1
    return shard


def bytes_per_passage(folder: Path) -> dict[str, float]:
    """Return the mean bytes of arrays per passage, by view; 0 without passages."""
    sizes = dict.fromkeys(stored_views(folder), 0)
    passages = 0
    for shard in range(num_shards(folder)):
        encoded = read_shard(folder, shard)
        passages += len(encoded)
        for view in sizes:
            sizes[view] += sum(array.nbytes for array in _arrays(encoded, view).values())
    return {view: size / max(passages, 1) for view, size in sizes.items()}


def describe_vectors(folder: Path) -> dict[str, Any]:
    """Return the content of `vectors.json`: passages, shards, views and their weights, token limits, bytes."""
    description: dict[str, Any] = json.loads((folder / VECTORS_JSON).read_text(encoding="utf-8"))
    return description


def _arrays(encoded: Encoded, view: str) -> dict[str, NDArray[Any]]:
    holder = encoded if view == "dense" else getattr(encoded, view)
    return {name: getattr(holder, name) for name in FILES[view]}


def _path(folder: Path, view: str, shard: int, name: str) -> Path:
    return folder / view / f"{shard:05d}{FILES[view][name]}"


def _read(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _cut(offsets: Offsets, start: int, stop: int) -> tuple[Offsets, slice]:
    part = offsets[start : stop + 1]
    return part - part[0], slice(int(part[0]), int(part[-1]))


def _gathered(offsets: Offsets, rows: Offsets) -> tuple[Offsets, Offsets]:
    """Return the new offsets of these rows, and the old positions of their values."""
    lengths = offsets[rows + 1] - offsets[rows]
    new = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return new, np.arange(new[-1]) + np.repeat(offsets[rows] - new[:-1], lengths)


def _offsets(parts: Sequence[SparseRows | TokenRows]) -> Offsets:
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _concat(parts: Sequence[SparseRows | TokenRows], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(part, name) for part in parts])
