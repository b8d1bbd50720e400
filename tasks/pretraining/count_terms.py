"""Count WordPiece tokens over all pre-training texts, for IDF weights and document language models."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from storage.artifact import Artifact, Source
from storage.rows import num_rows, read_rows, write_rows
from storage.tables import Pairs, Terms
from tasks.corpus.split_corpus import load_tokenizer
from tasks.runtime.progress import progress
from tasks.stage import stage

TEXTS_PER_BATCH = 1_000


@stage(version=1, table=Terms)
def count_terms(out: Path, pairs: Artifact[Pairs], tokenizer: Source) -> None:
    """Write for every token the number of texts that contain it and its number of occurrences; titles count."""
    pieces = load_tokenizer(str(tokenizer.path / "tokenizer.json"))
    texts = np.zeros(max(pieces.get_vocab().values()) + 1, dtype=np.int64)
    occurrences = np.zeros_like(texts)
    rows = progress(read_rows(pairs, Pairs), total=num_rows(pairs.path), what="counting terms", unit="texts")
    while batch := [row["text"] for row in islice(rows, TEXTS_PER_BATCH)]:
        for encoding in pieces.encode_batch_fast(batch, add_special_tokens=False):
            tokens, counts = np.unique(np.asarray(encoding.ids, dtype=np.int64), return_counts=True)
            texts[tokens] += 1
            occurrences[tokens] += counts
    write_rows(out, Terms, (
        {"piece": piece, "texts": int(in_texts), "occurrences": int(times)}
        for piece, (in_texts, times) in enumerate(zip(texts, occurrences, strict=True))
    ))  # fmt: skip
