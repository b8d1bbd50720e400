"""Random batches of retriever training, and the scores of their pairs by the papers' formulas."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.retrievers.examples import Examples
from models.retrievers.retriever import Retriever
from models.tokens import Tokens, pad
from tests.tiny import tiny_tokenizer


def random_tokens(count: int, seed: int) -> Tokens:
    """[CLS] some of few words [SEP], so that WordPiece tokens meet."""
    random, pieces = np.random.default_rng(seed), tiny_tokenizer()
    lengths = random.integers(1, 7, size=count)
    return pad([[pieces.cls, *random.integers(40, 52, size=length), pieces.sep] for length in lengths])


def examples(group: int, *, queries: int = 4, **changes: Any) -> Examples:
    return replace(
        Examples(random_tokens(queries, 1), random_tokens(queries * group, 2), group, None, progress=0.5), **changes
    )


def exclusions(queries: int, group: int) -> Tensor:
    excluded = torch.zeros(queries, queries * group, dtype=torch.bool)
    excluded[0, group] = excluded[queries - 1, 0] = True
    return excluded


def slow_scores(retriever: Retriever, batch: Examples) -> dict[str, Tensor]:
    """Every query with every passage, one by one, by the papers' formulas in double precision."""
    retriever.eval()
    with torch.no_grad():
        queries, passages = retriever(batch.queries, "query"), retriever(batch.passages, "passage")
    size = (len(batch.queries.ids), len(batch.passages.ids))
    results: dict[str, Tensor] = {}
    for view in retriever.views:
        results[view] = torch.tensor(
            [[_slow(view, queries, passages, q, p) for p in range(size[1])] for q in range(size[0])]
        )
    weights = {view: getattr(retriever.settings, view).weight for view in retriever.views}
    results["sum"] = sum((weights[view] * results[view] for view in retriever.views), torch.zeros(size))
    return results


def _slow(view: str, queries: Any, passages: Any, q: int, p: int) -> float:
    if view != "late":
        return float(getattr(queries, view)[q].double() @ getattr(passages, view)[p].double())
    total = 0.0
    for i in range(queries.tokens.shape[1]):
        if not queries.token_mask[q, i]:
            continue
        seen = [j for j in range(passages.tokens.shape[1]) if passages.token_mask[p, j]]
        if queries.token_ids is not None:
            seen = [j for j in seen if passages.token_ids[p, j] == queries.token_ids[q, i]]
        products = [float(queries.tokens[q, i].double() @ passages.tokens[p, j].double()) for j in seen]
        best = max(products, default=0.0)
        total += max(best, 0.0) if queries.token_ids is not None else best
    return total
