"""A step of a retriever's training whose gradients are cached: texts to gradients, in chunks of 8 queries.

64 short queries, each with one passage, which all the others' passages are contrasted with (GradCache, Gao et al.
2021). The peer is sentence-transformers' `CachedMultipleNegativesRankingLoss` with mini-batches of 8. Both start from
MiniLM's weights, compare by inner products, cut passages to 144 WordPiece tokens, and leave dropout out, so that
losses and gradients can be compared; both tokenise in the step, as their loops do. The vector of a text is its [CLS],
as in the papers, or the mean over its tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.contest import OURS, Case
from benchmarks.encoders import MAX_TOKENS, POOLED, descriptions, leads, on_one_thread, save_checkpoint
from models.representation import Pooling

DEVICES = ("cpu",)
PEER = "CachedMultipleNegativesRankingLoss"
CHUNK, QUERY_MAX_TOKENS = 8, 32
TEMPERATURE = 20.0  # MiniLM's states are some 6 long
TOLERANCE = 1e-4  # of the largest gradient
Made = tuple[float, dict[str, Tensor]]
"""A loss, and gradients by the names of the encoder's weights."""


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a case for each pooling; only one if `small`."""
    size = 4 if small else 64
    queries, passages = descriptions(size), leads(size, device)
    for pooling in list(POOLED)[: 1 if small else None]:
        with tempfile.TemporaryDirectory() as folder:
            yield training(Path(folder), queries, passages, pooling)


def training(folder: Path, queries: list[str], passages: list[str], pooling: Pooling) -> Case:
    """Return a case of one step with a checkpoint written to a folder."""
    save_checkpoint(folder, "cpu", pooling)
    own, tokens = ours(folder, queries, passages)
    return Case(
        f"{len(queries)} queries and passages, {tokens:,} tokens, {POOLED[pooling]}",
        {OURS: own, PEER: peer(folder, queries, passages)}, {PEER: 1.3}, compared, repeats=2,
        units={"queries": len(queries), "tokens": tokens},
    )  # fmt: skip


def ours(folder: Path, queries: list[str], passages: list[str]) -> tuple[Callable[[], Made], int]:
    """Return this project's step and its number of tokens."""
    from models.retrievers import retriever
    from models.retrievers.examples import Examples
    from models.retrievers.objective import Finetuning, ObjectiveSettings
    from models.tokens import Tokenizer, num_tokens
    from tasks.training.grad_cache import gradients

    model, tokenizer = retriever.load(folder).train(), Tokenizer.load(folder)
    objective = Finetuning(model, ObjectiveSettings(contrasts=["sum"], temperature=TEMPERATURE))

    def batch() -> Examples:
        query_ids, shown = tokenizer.encode(queries, QUERY_MAX_TOKENS), tokenizer.encode(passages, MAX_TOKENS)
        return Examples(tokenizer.pad_batch(query_ids), tokenizer.pad_batch(shown), 1, None).sorted_by_length()

    def step() -> Made:
        objective.zero_grad()
        with on_one_thread("cpu"):
            losses = gradients(objective, batch(), CHUNK, (1, 1))
        return losses["contrastive"].item(), gradients_of(model.encoder.passage.encoder)

    return step, num_tokens(batch())


def peer(folder: Path, queries: list[str], passages: list[str]) -> Callable[[], Made]:
    """Return sentence-transformers' step."""
    from sentence_transformers import SentenceTransformer, util
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    model: Any = SentenceTransformer(str(folder), device="cpu").train()
    model.max_seq_length = MAX_TOKENS
    loss = CachedMultipleNegativesRankingLoss(
        model, scale=1 / TEMPERATURE, similarity_fct=util.dot_score, mini_batch_size=CHUNK
    )

    def step() -> Made:
        model.zero_grad()
        features = [model.preprocess(texts) for texts in (queries, passages)]
        value = loss(features, torch.empty(0))
        value.backward()
        return value.item(), gradients_of(model[0].auto_model)

    return step


def gradients_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients by parameter name; the pooler of Hugging Face has none."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def compared(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that losses and gradients are equal; return the loss and the largest difference."""
    (own_loss, own), (loss, theirs) = results[OURS], results[PEER]
    assert own.keys() == theirs.keys(), own.keys() ^ theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    furthest = max(float((own[name] - gradient).abs().max()) for name, gradient in theirs.items()) / largest
    assert furthest < TOLERANCE, furthest
    assert abs(own_loss - loss) < TOLERANCE * loss, (own_loss, loss)
    return {"loss": own_loss, "largest difference of a gradient, as a share of the largest": float(f"{furthest:.1g}")}
