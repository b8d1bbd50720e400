"""Count tokens over all pre-training texts, for IDF weights and document language models."""

from __future__ import annotations

from pathlib import Path

from storage.artifact import Artifact
from storage.rows import read_rows, write_rows
from storage.tables import Pairs, Terms
from tasks.corpus.split_corpus import TokenizerFile
from tasks.corpus.token_counts import count_in_shards, count_shard
from tasks.runtime.shard import ShardTask
from tasks.stage import stage


@stage(version=1, table=Terms)
def count_terms(out: Path, pairs: Artifact[Pairs], tokenizer: TokenizerFile) -> None:
    """Write for every token the number of texts that contain it and its number of occurrences; titles count."""
    counts = count_in_shards(out, pairs, tokenizer, count_part, name="terms", what="counting terms")
    write_rows(out, Terms, (
        {"piece": piece, "texts": int(in_texts), "occurrences": int(times)}
        for piece, (in_texts, times) in enumerate(counts.T)
    ))  # fmt: skip


def count_part(task: ShardTask, pairs: Artifact[Pairs], tokenizer: TokenizerFile) -> None:
    """Count the tokens in the texts of a shard."""
    count_shard(task, (row["text"] for row in read_rows(pairs, Pairs, *task.shard.of)), tokenizer)
