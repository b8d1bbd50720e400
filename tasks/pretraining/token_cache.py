"""The token cache of a training: all texts are tokenised before the first step, and then read by memory map.

A file has 100,000 rows and appears atomically, so a resumed run tokenises only the missing files. It contains Arrow
columns of 16-bit token ids, or 32-bit ids for a larger vocabulary. Processes that train together divide the files
between them, and all read all files.

The files are not shards of `tasks/runtime/shards.py`: the processes of a training exist already when they are written,
one for each GPU, and would start as many processes each. They wait for each other at a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from models.texts import Ids
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.batched import portions
from storage.files import writing
from storage.rows import num_rows, read_rows
from storage.tables import Pairs
from tasks.runtime import distributed
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.runtime.work_folder import TOKENS

ROWS_PER_FILE = 100_000  # a kill loses some seconds of work; a billion rows are ten thousand files
CHARACTERS_AT_A_TIME = 1_000_000  # reading and tokenising them takes some 120 MB


class TokenCache:
    """The token ids of all texts and contexts, which stay on disk until they are read; a copy opens them again."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._batches = [batch for path in paths for batch in _mapped(path)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)
        self._columns: dict[str, list[ListColumn]] = {}

    def __reduce__(self) -> tuple[type[TokenCache], tuple[Sequence[Path]]]:
        return TokenCache, (self._paths,)  # a memory map is opened by each process

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def texts(self, rows: Sequence[int] | Ids) -> list[Ids]:
        """Return the ids of the texts of these rows, not truncated and without special tokens."""
        files, starts, stops = self._bounds("text", rows)
        values = [lists.values for lists in self._lists("text")]
        return _slices(values, files, starts, stops)

    def num_contexts(self, column: str, rows: Sequence[int] | Ids) -> Ids:
        """Return the number of contexts that these rows have in a column."""
        _, starts, stops = self._bounds(column, rows)
        return stops - starts

    def contexts(self, column: str, rows: Sequence[int] | Ids, numbers: Ids) -> list[Ids]:
        """Return the ids of one context of each row, by its number in a column."""
        files, firsts, _ = self._bounds(column, rows)
        inner = [lists.values for lists in self._lists(column)]
        starts, stops = _offsets([lists.offsets for lists in inner], files, firsts + numbers)
        return _slices([lists.values for lists in inner], files, starts, stops)

    def _bounds(self, column: str, rows: Sequence[int] | Ids) -> tuple[Ids, Ids, Ids]:
        """Return for each row the batch that contains it, and the bounds of its list in the batch's values."""
        batches = np.searchsorted(self._ends, rows, "right")
        sizes = np.diff(self._ends, prepend=0)
        local = np.asarray(rows, dtype=np.int64) - (self._ends - sizes)[batches]
        return batches, *_offsets([lists.offsets for lists in self._lists(column)], batches, local)

    def _lists(self, column: str) -> list[ListColumn]:
        if column not in self._columns:
            self._columns[column] = [ListColumn.of(batch.column(column)) for batch in self._batches]
        return self._columns[column]


def _offsets(offsets: Sequence[Ids], batches: Ids, lists: Ids) -> tuple[Ids, Ids]:
    """Return where lists of batches start and stop, from the batches' offsets."""
    starts, stops = np.empty(len(lists), dtype=np.int64), np.empty(len(lists), dtype=np.int64)
    for batch in np.unique(batches).tolist():
        chosen = np.flatnonzero(batches == batch)
        starts[chosen], stops[chosen] = offsets[batch][lists[chosen]], offsets[batch][lists[chosen] + 1]
    return starts, stops


def _slices(values: Sequence[Ids], batches: Ids, starts: Ids, stops: Ids) -> list[Ids]:
    bounds = zip(batches.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return [values[batch][start:stop] for batch, start, stop in bounds]


@dataclass(frozen=True)
class ListColumn:
    """An Arrow column of lists as NumPy arrays without a copy: list k has the values between two offsets."""

    offsets: Ids
    values: Any
    """An array, or for lists of lists `ListColumn`."""

    @staticmethod
    def of(column: pa.ListArray) -> ListColumn:
        """Return the arrays of a column."""
        values = column.values
        return ListColumn(
            column.offsets.to_numpy(), ListColumn.of(values) if pa.types.is_list(values.type) else values.to_numpy()
        )


def tokenised(out: Path, pairs: Artifact[Pairs], tokenizer: Tokenizer, *, contexts: bool) -> TokenCache:
    """Tokenise all texts, and their contexts if these are read; files of an interrupted run are reused."""
    total, text = num_rows(pairs.path), pa.list_(pa.uint16() if tokenizer.vocab_size <= 2**16 else pa.uint32())
    schema = pa.schema({"text": text} | ({"queries": pa.list_(text), "passages": pa.list_(text)} if contexts else {}))
    spans = [(first, min(first + ROWS_PER_FILE, total)) for first in range(0, total, ROWS_PER_FILE)]
    paths = {span: out / TOKENS / "{:012d}-{:012d}.arrow".format(*span) for span in spans}
    own = [spans[number] for number in distributed.shard_of_rank(spans)]
    lacking = set(unfinished(out, [str(paths[span].relative_to(out)) for span in own]))
    missing = [span for span in own if str(paths[span].relative_to(out)) in lacking]
    rows_of_all, rows_missing = (sum(last - first for first, last in spans) for spans in (own, missing))
    done, shown = rows_of_all - rows_missing, not distributed.rank()
    with bar(what="tokenising", unit="rows", total=rows_of_all, done=done, shown=shown) as counter:
        for span in missing:
            with writing(paths[span]) as temporary, pa.ipc.new_file(str(temporary), schema) as file:
                batches = []
                for rows in portions(read_rows(pairs, Pairs, *span), size=_characters, limit=CHARACTERS_AT_A_TIME):
                    columns = [_token_ids([row[field.name] for row in rows], field.type, tokenizer) for field in schema]
                    batches.append(pa.record_batch(columns, schema=schema))
                    counter.update(len(rows))
                file.write_batch(pa.concat_batches(batches))  # one, so that a row is found quickly
            record(out, str(paths[span].relative_to(out)))
    distributed.barrier()
    return TokenCache(list(paths.values()))


def _mapped(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a file's batches as memory maps, which stay valid after the file is closed."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        yield from map(file.get_batch, range(file.num_record_batches))


def _token_ids(texts: Sequence[Any], kind: pa.DataType, tokenizer: Tokenizer) -> pa.Array:
    """Return the token ids of texts, or of lists of texts."""
    if not pa.types.is_list(kind.value_type):
        return pa.array(tokenizer.token_ids(texts), kind)
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    flat = [context for contexts in texts for context in contexts]
    return pa.ListArray.from_arrays(pa.array(ends), _token_ids(flat, kind.value_type, tokenizer))


def _characters(row: Mapping[str, Any]) -> int:
    """Return the number of characters of all texts of a row."""
    return sum(len(text) for value in row.values() for text in ([value] if isinstance(value, str) else value))
