"""Count tokens over all pre-training texts, for IDF weights and document language models."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np

from storage.artifact import Artifact
from storage.files import writing
from storage.rows import num_rows, read_rows, write_rows
from storage.store.publishing import SCRATCH
from storage.tables import Pairs, Terms
from tasks.corpus.split_corpus import TokenizerFile, load_tokenizer
from tasks.runtime.shard import Shard, ShardJob, ShardTask, row_shards
from tasks.runtime.shards import run_shards
from tasks.stage import stage

TEXTS_PER_BATCH = 1_000
TEXTS_PER_SHARD = 100_000


@stage(version=1, table=Terms)
def count_terms(out: Path, pairs: Artifact[Pairs], tokenizer: TokenizerFile) -> None:
    """Write for every token the number of texts that contain it and its number of occurrences; titles count."""
    shards = [_counted(shard) for shard in row_shards(num_rows(pairs.path), TEXTS_PER_SHARD)]
    run_shards(ShardJob(count_part, out, (pairs, tokenizer), None, what="counting terms", unit="texts"), shards)
    counts = np.zeros((2, _num_terms(tokenizer)), np.int64)
    for shard in shards:
        counts += np.load(out / shard.files[0])
    write_rows(out, Terms, (
        {"piece": piece, "texts": int(in_texts), "occurrences": int(times)}
        for piece, (in_texts, times) in enumerate(counts.T)
    ))  # fmt: skip


def count_part(task: ShardTask, pairs: Artifact[Pairs], tokenizer: TokenizerFile) -> None:
    """Write, for the texts of a shard, how many contain each token, and its number of occurrences, as [2, tokens]."""
    pieces = load_tokenizer(str(tokenizer.path / "tokenizer.json"))
    counts = np.zeros((2, _num_terms(tokenizer)), np.int64)
    rows = read_rows(pairs, Pairs, *task.shard.of)
    while batch := [row["text"] for row in islice(rows, TEXTS_PER_BATCH)]:
        for encoding in pieces.encode_batch_fast(batch, add_special_tokens=False):
            tokens, times = np.unique(np.asarray(encoding.ids, dtype=np.int64), return_counts=True)
            counts[0, tokens] += 1
            counts[1, tokens] += times
        task.done(len(batch))
    with writing(task.out / task.shard.files[0]) as temporary, temporary.open("wb") as file:
        np.save(file, counts)


def _num_terms(tokenizer: TokenizerFile) -> int:
    return max(load_tokenizer(str(tokenizer.path / "tokenizer.json")).get_vocab().values()) + 1


def _counted(shard: Shard) -> Shard:
    """Return the shard with the file of its counts, in a folder that is deleted when the stage is done."""
    return dataclasses.replace(shard, files=[f"{SCRATCH}/terms-{shard.number:05d}.npy"])
