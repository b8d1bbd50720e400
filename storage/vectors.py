"""What a retriever makes of texts, by view, in memory and on disk: shards in the order of the table's rows.

A row is one vector (dense), the weights of some word pieces (lexical), or a vector for each of its tokens (late).
A shard is a few `.npy` files below its view's folder, each whole or absent and memory-mapped when read, so that
encoding that was cut off goes on with the first shard that is not finished, and a search holds no more than it scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import UserError
from storage.files import writing

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int32]
Offsets = NDArray[np.int64]

VECTORS_JSON = "vectors.json"
FILES: Mapping[str, Mapping[str, str]] = {
    "dense": {"dense": ".npy"},
    "lexical": {"ids": ".ids.npy", "values": ".values.npy", "offsets": ".offsets.npy"},
    "late": {"ids": ".ids.npy", "vectors": ".vectors.npy", "offsets": ".offsets.npy"},
}
"""By view, what a shard's files hold and how their names end, in the order in which they are written."""


@dataclass(frozen=True)
class SparseRows:
    """N rows of weights; row n has those from offsets[n] up to offsets[n + 1]."""

    offsets: Offsets
    """[N + 1]"""
    ids: Numbers
    """[nonzeros], word pieces, ascending within a row."""
    values: Vectors
    """[nonzeros]"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, start: int, stop: int) -> SparseRows:
        """Rows from `start` up to `stop`, without copying their weights."""
        offsets, cut = _cut(self.offsets, start, stop)
        return SparseRows(offsets, self.ids[cut], self.values[cut])

    def taken(self, places: Offsets) -> SparseRows:
        """The rows at these places."""
        offsets, found = _gathered(self.offsets, places)
        return SparseRows(offsets, self.ids[found], self.values[found])


@dataclass(frozen=True)
class TokenRows:
    """N rows of tokens; row n has those from offsets[n] up to offsets[n + 1]."""

    offsets: Offsets
    """[N + 1]"""
    vectors: Vectors
    """[tokens, D]"""
    ids: Numbers
    """[tokens], which word piece each is; empty where any two tokens may match."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, start: int, stop: int) -> TokenRows:
        """Rows from `start` up to `stop`, without copying their vectors."""
        offsets, cut = _cut(self.offsets, start, stop)
        return TokenRows(offsets, self.vectors[cut], self.ids[cut] if len(self.ids) else self.ids)

    def taken(self, places: Offsets) -> TokenRows:
        """The rows at these places."""
        offsets, found = _gathered(self.offsets, places)
        return TokenRows(offsets, self.vectors[found], self.ids[found] if len(self.ids) else self.ids)


@dataclass(frozen=True)
class Encoded:
    """N texts as a retriever's views see them; a view that it has not is None."""

    dense: Vectors | None = None
    """[N, D]"""
    lexical: SparseRows | None = None
    late: TokenRows | None = None

    def __len__(self) -> int:
        return len(next(each for each in (self.dense, self.lexical, self.late) if each is not None))

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are there."""
        return tuple(view for view in FILES if getattr(self, view) is not None)

    def rows(self, start: int, stop: int) -> Encoded:
        """Rows from `start` up to `stop`, without copying what they hold."""
        return Encoded(
            None if self.dense is None else self.dense[start:stop],
            None if self.lexical is None else self.lexical.rows(start, stop),
            None if self.late is None else self.late.rows(start, stop),
        )

    def taken(self, places: Sequence[int] | Offsets) -> Encoded:
        """The rows at these places, in their order."""
        places = np.asarray(places, dtype=np.int64)
        return Encoded(
            None if self.dense is None else self.dense[places],
            None if self.lexical is None else self.lexical.taken(places),
            None if self.late is None else self.late.taken(places),
        )

    @staticmethod
    def concatenated(parts: Sequence[Encoded]) -> Encoded:
        """All parts' rows, one part after the other."""
        dense = [each.dense for each in parts if each.dense is not None]
        lexical = [each.lexical for each in parts if each.lexical is not None]
        late = [each.late for each in parts if each.late is not None]
        return Encoded(
            np.concatenate(dense) if dense else None,
            SparseRows(_joined(lexical), _all(lexical, "ids"), _all(lexical, "values")) if lexical else None,
            TokenRows(_joined(late), _all(late, "vectors"), _all(late, "ids")) if late else None,
        )


def write_shard(folder: Path, shard: int, encoded: Encoded) -> None:
    """Write one shard of every view; vectors that are not finite are refused."""
    for view in encoded.views:
        for name, array in _arrays(encoded, view).items():
            if not np.isfinite(array).all():
                raise UserError(
                    f"shard {shard} of the {view} view has {name} that are not finite: the checkpoint's weights are"
                    " broken; train it again, or name another"
                )
    for view in encoded.views:
        for name, array in _arrays(encoded, view).items():
            path = _path(folder, view, shard, name)
            with writing(path) as temporary, temporary.open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def shard_files(shard: int, views: Sequence[str]) -> list[str]:
    """The files of these views' shard, below the folder."""
    return [str(_path(Path(), view, shard, name)) for view in views for name in FILES[view]]


def is_finished(folder: Path, shard: int, views: Sequence[str]) -> bool:
    """Whether all files of these views' shard are there."""
    return all((folder / file).exists() for file in shard_files(shard, views))


def read_shard(folder: Path, shard: int, view: str | None = None) -> Encoded:
    """One shard, memory-mapped: of one view, or of all that there are."""
    found: dict[str, Any] = {}
    for each in stored_views(folder) if view is None else [view]:
        arrays = {name: _read(_path(folder, each, shard, name)) for name in FILES[each]}
        kinds = {"dense": dict, "lexical": SparseRows, "late": TokenRows}
        found |= arrays if each == "dense" else {each: kinds[each](**arrays)}
    return Encoded(**found)


def stored_views(folder: Path) -> tuple[str, ...]:
    """The views that have files in the folder."""
    return tuple(view for view in FILES if (folder / view).is_dir())


def num_shards(folder: Path) -> int:
    """How many shards the folder holds, finished in every view."""
    views, shard = stored_views(folder), 0
    while views and is_finished(folder, shard, views):
        shard += 1
    return shard


def bytes_per_passage(folder: Path) -> dict[str, float]:
    """By view, how many bytes of arrays a passage takes on average; 0 where there are no passages."""
    sizes = dict.fromkeys(stored_views(folder), 0)
    passages = 0
    for shard in range(num_shards(folder)):
        encoded = read_shard(folder, shard)
        passages += len(encoded)
        for view in sizes:
            sizes[view] += sum(array.nbytes for array in _arrays(encoded, view).values())
    return {view: size / max(passages, 1) for view, size in sizes.items()}


def describe_vectors(folder: Path) -> dict[str, Any]:
    """What `vectors.json` says: passages, shards, views and their weights, token limits, bytes."""
    description: dict[str, Any] = json.loads((folder / VECTORS_JSON).read_text())
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
    kept = offsets[start : stop + 1]
    return kept - kept[0], slice(int(kept[0]), int(kept[-1]))


def _gathered(offsets: Offsets, places: Offsets) -> tuple[Offsets, Offsets]:
    """The offsets of the rows at these places, and where what they hold lies."""
    lengths = offsets[places + 1] - offsets[places]
    found = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return found, np.arange(found[-1]) + np.repeat(offsets[places] - found[:-1], lengths)


def _joined(parts: Sequence[SparseRows | TokenRows]) -> Offsets:
    lengths = np.concatenate([np.diff(each.offsets) for each in parts])
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _all(parts: Sequence[SparseRows | TokenRows], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(each, name) for each in parts])
