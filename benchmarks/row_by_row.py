"""CoT-MAE's batches as they were built before: one generator for the batch, one row after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.masking import IGNORED, MAX_MASKED
from models.papers.cot_mae import Batch
from models.tokens import Tokenizer, pad
from tasks.pretraining.pretrain import CONTEXTS, PretrainingBatches
from tasks.training.epochs import rows_of_step


def cot_mae_batch(batches: PretrainingBatches) -> list[Batch]:
    """Return the batch of step 0 as one chunk."""
    settings, tokenizer, random = batches.objective, batches.tokenizer, np.random.default_rng((batches.seed, 0))
    rows = rows_of_step(0, batches.batch, len(batches.cache), batches.seed)
    texts = [ids.tolist() for ids in batches.cache.texts(rows)]
    contexts = [ids.tolist() for ids in batches.cache.contexts(CONTEXTS[0], rows, np.zeros(len(rows), dtype=np.int64))]
    text_rows = [_crop(ids, settings.max_tokens, tokenizer, random) for ids in texts]
    context_rows = [_crop(ids, settings.context_max_tokens, tokenizer, random) for ids in contexts]
    inputs, labels = _mask(text_rows, tokenizer, settings.text_mask_rate, random)
    context_inputs, context_labels = context_rows, context_rows
    if settings.context_mask_rate is not None:
        context_inputs, context_labels = _mask(context_rows, tokenizer, settings.context_mask_rate, random)
    return [
        Batch(
            pad(inputs, tokenizer.pad), pad(labels, IGNORED).ids, pad(context_inputs, tokenizer.pad),
            pad(context_labels, IGNORED).ids,
        )
    ]  # fmt: skip


def _crop(ids: list[int], max_tokens: int, tokenizer: Tokenizer, random: np.random.Generator) -> Any:
    excess = max(0, len(ids) - (max_tokens - 2))
    first = int(random.integers(excess + 1))
    return np.array([tokenizer.cls, *ids[first : len(ids) - (excess - first)], tokenizer.sep], dtype=np.int64)


def _mask(rows: list[Any], tokenizer: Tokenizer, rate: float, random: np.random.Generator) -> tuple[Any, Any]:
    selected = [_select_words(ids, tokenizer, rate, random) for ids in rows]
    masked, labels = [], []
    for ids, selected_L in zip(rows, selected, strict=True):
        labelled = selected_L & ~tokenizer.is_special[ids]
        kind = random.random(len(ids))
        random_ids = random.integers(tokenizer.vocab_size, size=len(ids))
        replacement = np.where(kind < 0.8, tokenizer.mask, np.where(kind < 0.9, random_ids, ids))
        masked.append(np.where(labelled, replacement, ids))
        labels.append(np.where(labelled, ids, IGNORED))
    return masked, labels


def _select_words(ids: Any, tokenizer: Tokenizer, rate: float, random: np.random.Generator) -> Any:
    selected = np.zeros(len(ids), dtype=bool)
    if len(ids) < 3:
        return selected
    starts = ~tokenizer.continues[ids[1:-1]]
    starts[:1] = True
    words = np.cumsum(starts) - 1
    lengths = np.bincount(words)
    selected_words = np.zeros(len(lengths), dtype=bool)
    remaining = max(1, min(MAX_MASKED, round(len(words) * rate)))
    for word in random.permutation(len(lengths)).tolist():
        if lengths[word] <= remaining:
            selected_words[word] = True
            remaining -= lengths[word]
            if not remaining:
                break
    selected[1:-1] = selected_words[words]
    return selected
