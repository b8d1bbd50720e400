"""The token cache of a training: all texts are tokenised before the first step, and then read by memory map.

A file has 100,000 rows and appears atomically, so a resumed run tokenises only the missing files. It contains Arrow
columns of 16-bit token ids, or 32-bit ids for a larger vocabulary. Processes that train together divide the files
between them, and all read all files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.batched import portions
from storage.files import writing
from storage.rows import num_rows, read_rows
from storage.tables import Pairs
from tasks.runtime import distributed
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar

ROWS_PER_FILE = 100_000  # a kill loses some seconds of work; a billion rows are ten thousand files
CHARACTERS_AT_A_TIME = 1_000_000  # reading and tokenising them takes some 120 MB
SHARDS = Path("scratch") / "tokens"


class Pieces:
    """The token ids of all texts and contexts, which stay on disk until they are read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._batches = [batch for path in paths for batch in _mapped(path)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def of(self, column: str, rows: Sequence[int]) -> list[pa.ListScalar]:
        """Return a column at these rows: the ids of a text, not truncated and without special tokens, or of several."""
        numbers = np.searchsorted(self._ends, rows, "right").tolist()
        return [
            self._batches[number].column(column)[row - int(self._ends[number])]  # counted from the end
            for number, row in zip(numbers, rows, strict=True)
        ]


def tokenised(out: Path, pairs: Artifact[Pairs], tokenizer: Tokenizer, *, contexts: bool) -> Pieces:
    """Tokenise all texts, and their contexts if these are read; files of an interrupted run are reused."""
    total, text = num_rows(pairs.path), pa.list_(pa.uint16() if tokenizer.vocab_size <= 2**16 else pa.uint32())
    schema = pa.schema({"text": text} | ({"queries": pa.list_(text), "passages": pa.list_(text)} if contexts else {}))
    spans = [(first, min(first + ROWS_PER_FILE, total)) for first in range(0, total, ROWS_PER_FILE)]
    paths = {span: out / SHARDS / "{:012d}-{:012d}.arrow".format(*span) for span in spans}
    mine = [spans[number] for number in distributed.shard_of_rank(spans)]
    lacking = set(unfinished(out, [str(paths[span].relative_to(out)) for span in mine]))
    missing = [span for span in mine if str(paths[span].relative_to(out)) in lacking]
    number, left = (sum(last - first for first, last in some) for some in (mine, missing))
    with bar(what="tokenising", unit="rows", total=number, done=number - left, shown=not distributed.rank()) as counter:
        for span in missing:
            with writing(paths[span]) as temporary, pa.ipc.new_file(str(temporary), schema) as file:
                for some in portions(read_rows(pairs, Pairs, *span), size=_characters, limit=CHARACTERS_AT_A_TIME):
                    made = [_pieces([row[each.name] for row in some], each.type, tokenizer) for each in schema]
                    file.write_batch(pa.record_batch(made, schema=schema))
                    counter.update(len(some))
            record(out, str(paths[span].relative_to(out)))
    distributed.barrier()
    return Pieces(list(paths.values()))


def _mapped(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a file's batches as memory maps, which stay valid after the file is closed."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        yield from map(file.get_batch, range(file.num_record_batches))


def _pieces(texts: Sequence[Any], kind: pa.DataType, tokenizer: Tokenizer) -> pa.Array:
    """Return the token ids of texts, or of lists of texts."""
    if not pa.types.is_list(kind.value_type):
        return pa.array(tokenizer.token_ids(texts), kind)
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    flat = [each for some in texts for each in some]
    return pa.ListArray.from_arrays(pa.array(ends), _pieces(flat, kind.value_type, tokenizer))


def _characters(row: Mapping[str, Any]) -> int:
    """Return the number of characters of all texts of a row."""
    return sum(len(text) for value in row.values() for text in ([value] if isinstance(value, str) else value))
