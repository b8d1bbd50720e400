"""RetroMAE in training: padding, seeds, dropout, texts without words, initial values."""

import dataclasses

import pytest
import torch

from models.layers.unpadding import Packing
from models.papers.retro_mae import QUERY_STREAMS, Pretraining
from models.tokens import Tokenizer
from tests.models.papers.test_retro_mae import EMBEDDED, SUM, batch, objective
from tests.tiny import SHAPE, start, tiny_bert


@pytest.mark.usefixtures("fixed_masks")
@torch.no_grad()
def test_padding_changes_nothing(tokenizer: Tokenizer) -> None:
    model, inputs = objective().eval(), batch(tokenizer)

    losses = model.encode(inputs)[1]

    alone = [inputs.rows(n, n + 1) for n in range(4)]
    cut = [
        dataclasses.replace(
            row, **{name: getattr(row, name)[:, : row.text.mask.sum()] for name in ("labels", "original", "words")},
            text=dataclasses.replace(
                row.text, ids=row.text.ids[:, : row.text.mask.sum()], mask=row.text.mask[:, : row.text.mask.sum()]
            ),
        )
        for row in alone
    ]  # fmt: skip
    for name in ("mlm", "decoder"):
        mean = sum(model.encode(part)[1][name] * part.num_terms(name) for part in cut) / inputs.num_terms(name)
        torch.testing.assert_close(losses[name], mean, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_equal_seeds_give_equal_losses(tokenizer: Tokenizer) -> None:
    model = objective(EMBEDDED, dropout=0.1)

    def losses(seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        return {name: loss.item() for name, loss in model.encode(batch(tokenizer))[1].items()}

    model.train()
    assert losses(1) == losses(1)
    assert losses(1) != losses(2)
    model.eval()
    assert losses(1)["mlm"] == losses(2)["mlm"]
    assert losses(1)["decoder"] != losses(2)["decoder"]  # other masks


@torch.no_grad()
def test_attention_drops_in_training_alone() -> None:
    attention = tiny_bert(dropout=0.3).bert.encoder.layer[0].attention.self
    queries, context = torch.randn(10, SHAPE["hidden_size"]), torch.randn(12, SHAPE["hidden_size"])
    rows, columns = Packing(torch.ones(2, 5)), Packing(torch.ones(2, 6))

    for training in (True, False):
        attention.train(training)
        one, other = (attention.attend(queries, context, rows=rows, columns=columns) for _ in range(2))
        assert torch.equal(one, other) != training


@torch.no_grad()
def test_dropout_of_the_query_stream(tokenizer: Tokenizer) -> None:
    model, vectors = tiny_bert(dropout=0.3), torch.randn(2, SHAPE["hidden_size"])

    for training in (True, False):
        model.train(training)
        summed, embedded_ = (queries(vectors, model.positions[1:9], model) for queries in QUERY_STREAMS.values())
        assert not (summed == 0).any()
        assert (embedded_ == 0).any() == training


def test_texts_without_words_ask_nothing(tokenizer: Tokenizer) -> None:
    for sizes in ((0, 0), (0, 6)):
        model, inputs = objective(), batch(tokenizer, sizes=sizes)
        losses = model.encode(inputs)[1]
        torch.stack(list(losses.values())).sum().backward()

        assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
        assert (losses["decoder"] == 0) == (inputs.num_terms("decoder") == 0)


def test_the_decoder_starts_as_bert_does_and_owns_neither_head_nor_embeddings() -> None:
    model = Pretraining(start(), SUM)

    shapes = {name: value.shape for name, value in model.decoder.named_parameters()}
    layer = {f"layer.{name}": value.shape for name, value in model.model.bert.encoder.layer[0].named_parameters()}
    assert shapes == layer
    for name, value in model.decoder.named_parameters():
        if value.ndim > 1:
            assert value.std().item() == pytest.approx(0.02, rel=0.1)
        else:
            assert (value == (1 if "Norm.weight" in name else 0)).all(), name
