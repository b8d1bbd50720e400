"""The training of a cross-encoder: its loss, groups, chunks and dropout."""

import numpy as np
import pytest
import torch

from models.retrievers.cross_encoder import Finetuning
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests.models.retrievers.test_cross_encoder import PASSAGES, QUERIES, groups, read, slow_score, tiny_cross_encoder


def test_the_loss_is_the_formulas(tokenizer: Tokenizer) -> None:
    encoder, batch = tiny_cross_encoder(), groups(tokenizer)

    vectors, losses = Finetuning(encoder).encode(batch)

    tokens, expected = batch.pairs.tokens, 0.0
    scores = [slow_score(encoder, ids[mask].tolist()) for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
    for query in range(5):
        own = scores[query * 3 : query * 3 + 3]
        expected += (np.log(sum(np.exp(score) for score in own)) - own[0]) / 5
    assert vectors == ()
    assert list(losses) == ["listwise"]
    assert losses["listwise"].item() == pytest.approx(expected, abs=1e-5)
    assert Finetuning(encoder).compare(vectors, batch) == {}


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_chunks_have_the_gradients_of_the_whole_batch(tokenizer: Tokenizer, chunk: int) -> None:
    results = []
    for size in (None, chunk):
        objective = Finetuning(tiny_cross_encoder().train())
        losses = gradients(objective, groups(tokenizer), size, (1, 2))
        results.append(({name: p.grad for name, p in objective.named_parameters()}, losses["listwise"].item()))

    (whole, loss), (cut, same) = results
    assert same == pytest.approx(loss, abs=1e-6)
    for name, grad in whole.items():
        torch.testing.assert_close(grad, cut[name], atol=1e-6, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    assert whole["encoder.bert.embeddings.token_type_embeddings.weight"].abs().sum(1).min() > 0


def test_groups_are_cut_and_counted_by_queries(tokenizer: Tokenizer) -> None:
    batch = groups(tokenizer)

    assert len(batch) == 5
    assert len(batch.rows(1, 3)) == 2
    assert torch.equal(batch.rows(1, 3).pairs.tokens.ids, batch.pairs.tokens.ids[3:9])
    assert torch.equal(batch.rows(1, 3).pairs.types, batch.pairs.types[3:9])
    assert batch.to(torch.device("cpu")).group == 3


def test_dropout_falls_on_what_is_pooled(tokenizer: Tokenizer) -> None:
    encoder, pairs = tiny_cross_encoder(), read(tokenizer, QUERIES, PASSAGES)
    encoder.train().dropout.p = 0.5

    assert not torch.equal(encoder(pairs), encoder(pairs))
