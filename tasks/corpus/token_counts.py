"""Count the tokens of many texts, in shards: in how many texts each occurs, and how often."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.files import writing
from storage.rows import num_rows
from storage.store.publishing import SCRATCH
from tasks.corpus.split_corpus import TOKENIZER, TokenizerFile, load_tokenizer
from tasks.runtime.shard import ShardJob, ShardTask, row_shards
from tasks.runtime.shards import run_shards

TEXTS_PER_BATCH = 1_000
TEXTS_PER_SHARD = 100_000


def count_in_shards(
    out: Path, texts: Artifact[Any], tokenizer: TokenizerFile, part: Callable[..., None], *, name: str, what: str
) -> NDArray[np.int64]:
    """Return by token id in how many texts it occurs and how often, as [2, tokens].

    `part(task, texts, tokenizer)` calls `count_shard` with the texts of its shard. The shards' files have `name` in
    theirs; they are in a folder that is deleted when the stage is done.
    """
    shards = [
        dataclasses.replace(shard, files=[f"{SCRATCH}/{name}-{shard.number:05d}.npy"])
        for shard in row_shards(num_rows(texts.path), TEXTS_PER_SHARD)
    ]
    run_shards(ShardJob(part, out, (texts, tokenizer), None, what=what, unit="texts"), shards)
    counts = _zeros(tokenizer)
    for shard in shards:
        counts += np.load(out / shard.files[0])
    return counts


def count_shard(task: ShardTask, texts: Iterable[str], tokenizer: TokenizerFile) -> None:
    """Write the counts [2, tokens] of a shard's texts into its file."""
    loaded, counts = load_tokenizer(str(tokenizer.path / TOKENIZER)), _zeros(tokenizer)
    for batch in batches(texts):
        for encoding in loaded.encode_batch_fast(batch, add_special_tokens=False):
            tokens, times = np.unique(np.asarray(encoding.ids, dtype=np.int64), return_counts=True)
            counts[0, tokens] += 1
            counts[1, tokens] += times
        task.done(len(batch))
    with writing(task.out / task.shard.files[0]) as temporary, temporary.open("wb") as file:
        np.save(file, counts)


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of at most `TEXTS_PER_BATCH`."""
    rest = iter(texts)
    while batch := list(islice(rest, TEXTS_PER_BATCH)):
        yield batch


def _zeros(tokenizer: TokenizerFile) -> NDArray[np.int64]:
    ids = load_tokenizer(str(tokenizer.path / TOKENIZER)).get_vocab().values()
    return np.zeros((2, max(ids) + 1), np.int64)
