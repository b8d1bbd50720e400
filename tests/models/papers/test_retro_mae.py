"""RetroMAE: its batches, and its decoder against loops over rows and columns written from the formulas."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED
from models.papers import retro_mae
from models.papers.retro_mae import (
    Batch,
    Pretraining,
    Settings,
    make_batch,
    position_specific_mask,
)
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.slow import Array, bert_layers, dense, embedded, gelu, log_softmax, norm, numbers, vocabulary
from tests.tiny import PIECES, SHAPE, start

SUM = Settings(text_mask_rate=0.3, decoder_mask_rate=0.5, query_stream="sum", max_tokens=20)
EMBEDDED = dataclasses.replace(SUM, query_stream="embedded")
BOTH = pytest.mark.parametrize("settings", [SUM, EMBEDDED], ids=["sum", "embedded"])
CLS, SEP, UNK, PAD = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[UNK]", "[PAD]"))


def batch(
    tokenizer: Tokenizer, settings: Settings = SUM, seed: int = 0, sizes: Sequence[int] = (30, 9, 18, 4)
) -> Batch:
    random = np.random.default_rng(seed)
    texts = [random.integers(5, len(PIECES), size=n).tolist() for n in sizes]
    return make_batch(RawBatch(texts), tokenizer, settings, RowRandom(seed, 0))


def objective(settings: Settings = SUM, *, pooling: Pooling = "cls", dropout: float = 0.0) -> Pretraining:
    model = Pretraining(start(pooling=pooling, dropout=dropout), settings)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def fixed_mask(words_BL: Tensor, budgets_B: Tensor, real_BL: Tensor, limits: object = None) -> Tensor:
    """A mask by the numbers of words and rows alone, equal in a batch and in its chunks."""
    row, column = torch.arange(1, words_BL.shape[1])[:, None], torch.arange(words_BL.shape[1])
    hidden_BQL = ((words_BL[:, None] * 7 + row * 3 + budgets_B[:, None, None]) % 5 < 2) & (words_BL >= 0)[:, None]
    return real_BL[:, None] & ~hidden_BQL & (row != column)


# The decoder, slowly


def slow_attend(
    queries: Array, context: Array, w: dict[str, Array], name: str, visible: Sequence[Sequence[int]]
) -> Array:
    """Each row of one stream, for each head, over the columns of the other that it sees (equation 3)."""
    size = SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
    query = dense(queries, w, f"{name}.query")
    key, value = dense(context, w, f"{name}.key"), dense(context, w, f"{name}.value")
    out = np.zeros_like(queries)
    for row, seen in enumerate(visible):
        for first in range(0, queries.shape[1], size):
            part = slice(first, first + size)
            weights = np.exp([query[row, part] @ key[column, part] / math.sqrt(size) for column in seen])
            for weight, column in zip(weights / weights.sum(), seen, strict=True):
                out[row, part] += weight * value[column, part]
    return out


def slow_decoder(
    w: dict[str, Array], d: dict[str, Array], vector: Array, ids: list[int], settings: Settings, visible: Array
) -> Array:
    """Logits at positions 1 to n, those between [CLS] and [SEP]; `visible` is [Q, L]."""
    positions = range(1, len(ids) - 1)
    table = "bert.embeddings"
    h1 = np.array([vector + w[f"{table}.position_embeddings.weight"][position] for position in positions])
    if settings.query_stream == "embedded":
        h1 = norm(h1 + w[f"{table}.token_type_embeddings.weight"][0], w, f"{table}.LayerNorm")
    h2 = embedded(w, ids)
    h2[0] = vector
    seen = [np.flatnonzero(visible[position - 1]).tolist() for position in positions]
    mixed = dense(slow_attend(h1, h2, d, "layer.attention.self", seen), d, "layer.attention.output.dense")
    x = norm(h1 + mixed, d, "layer.attention.output.LayerNorm")
    widened = dense(gelu(dense(x, d, "layer.intermediate.dense")), d, "layer.output.dense")
    return vocabulary(norm(x + widened, d, "layer.output.LayerNorm"), w)


def slow_losses(
    w: dict[str, Array], d: dict[str, Array], inputs: Batch, settings: Settings, pooling: Pooling
) -> dict[str, float]:
    """L_enc and L_dec, text by text, with the masks of `fixed_mask`."""
    visible = fixed_mask(inputs.words, inputs.budgets, inputs.text.mask).numpy()
    terms: dict[str, list[float]] = {"mlm": [], "decoder": []}
    for number, mask in enumerate(inputs.text.mask):
        length = int(mask.sum())
        hidden = bert_layers(w, inputs.text.ids[number, :length].tolist())[-1]
        logs = log_softmax(vocabulary(hidden, w))
        for position, label in enumerate(inputs.labels[number, :length].tolist()):
            if label != IGNORED:
                terms["mlm"].append(-logs[position, label])
        vector = hidden[0] if pooling == "cls" else hidden.mean(0)
        ids = inputs.original[number, :length].tolist()
        decoded = log_softmax(slow_decoder(w, d, vector, ids, settings, visible[number]))
        terms["decoder"] += [-decoded[position - 1, ids[position]] for position in range(1, length - 1)]
    return {name: float(np.mean(term)) for name, term in terms.items()}


@BOTH
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.usefixtures("fixed_masks")
@torch.no_grad()
def test_losses_are_the_formulas(tokenizer: Tokenizer, settings: Settings, pooling: Pooling) -> None:
    model, inputs = objective(settings, pooling=pooling).eval(), batch(tokenizer)

    vectors, losses = model.encode(inputs)

    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    expected = slow_losses(numbers(model.model), numbers(model.decoder), inputs, settings, pooling)
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, abs=1e-4, rel=1e-5)


# What must not influence what


@BOTH
def test_a_prediction_hangs_on_the_columns_that_its_row_sees_and_never_on_its_own_token(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings).eval(), batch(tokenizer, sizes=(9, 5))
    masks: list[Tensor] = []

    def kept(*parts: Tensor) -> Tensor:
        masks.append(position_specific_mask(*parts))
        return masks[-1]

    monkeypatch.setattr(retro_mae, "position_specific_mask", kept)
    vectors = torch.randn(2, SHAPE["hidden_size"], requires_grad=True)
    queries, context = model.decoder.streams(vectors, model.model, inputs.original)
    context = context.detach().requires_grad_()
    logits = model.model.vocabulary(model.decoder(queries, context, inputs))

    positions = [(text, position) for text, size in enumerate((9, 5)) for position in range(1, size + 1)]
    assert len(logits) == len(positions)
    for row, (text, position) in zip(logits, positions, strict=True):
        of_context, of_vectors = torch.autograd.grad(row.square().sum(), (context, vectors), retain_graph=True)
        reached = set(map(tuple, torch.nonzero(of_context.abs().amax(-1)).tolist()))
        assert reached == {(text, column) for column in np.flatnonzero(masks[0][text, position - 1].numpy()).tolist()}
        assert (text, position) not in reached
        assert (of_vectors.abs().amax(1) > 1e-6).tolist() == [number == text for number in range(2)]


@BOTH
def test_the_decoder_reaches_the_encoder_through_the_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings), batch(tokenizer)
    hidden = model.model.bert(inputs.text.ids, inputs.text.mask).detach().requires_grad_()
    monkeypatch.setattr(model.model.bert, "forward", lambda ids, mask, **known: hidden)

    _, losses = model.encode(inputs)
    (of_decoder,) = torch.autograd.grad(losses["decoder"], hidden, retain_graph=True)
    (of_mlm,) = torch.autograd.grad(losses["mlm"], hidden)

    assert (of_decoder[:, 0].abs().amax(1) > 1e-6).all()
    assert not of_decoder[:, 1:].any()
    assert torch.equal(of_mlm.abs().amax(-1) > 0, inputs.labels != IGNORED)


def test_both_streams_carry_gradients_to_the_vector_and_the_context_to_the_embeddings(tokenizer: Tokenizer) -> None:
    model, inputs = objective(), batch(tokenizer)
    length, vectors = inputs.original.shape[1], torch.randn(4, SHAPE["hidden_size"], requires_grad=True)

    queries, context = model.decoder.streams(vectors, model.model, inputs.original)

    for stream, rows in ((queries, length - 1), (context, 1)):
        (of_vectors,) = torch.autograd.grad(stream.sum(), vectors, retain_graph=True)
        assert (of_vectors == rows).all()
    words = model.model.bert.embeddings.word_embeddings.weight
    (of_words,) = torch.autograd.grad(context.square().sum(), words)
    reached = set(torch.nonzero(of_words.abs().amax(1)).flatten().tolist())
    assert reached == set(inputs.original[:, 1:].flatten().tolist()) - {PAD}


@pytest.mark.usefixtures("fixed_masks")
@torch.no_grad()
def test_the_decoder_reads_the_text_as_it_was_and_asks_for_unknown_pieces_too(tokenizer: Tokenizer) -> None:
    model = objective().eval()
    inputs = make_batch(RawBatch([[20, UNK, 40, 41, 42]]), tokenizer, SUM, RowRandom(0, 0))
    other = dataclasses.replace(inputs, labels=torch.full_like(inputs.labels, IGNORED))

    assert inputs.num_terms("decoder") == 5
    assert torch.equal(model.encode(inputs)[1]["decoder"], model.encode(other)[1]["decoder"])
    changed = dataclasses.replace(inputs, original=inputs.original.clone())
    changed.original[0, 3] = 50
    assert abs(model.encode(inputs)[1]["decoder"] - model.encode(changed)[1]["decoder"]) > 1e-3
    assert torch.equal(model.encode(inputs)[1]["mlm"], model.encode(changed)[1]["mlm"])


def test_the_vocabulary_head_sees_asked_positions_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, seen = objective(), batch(tokenizer), []
    head = model.model.vocabulary

    def counted(hidden: Tensor) -> Tensor:
        seen.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(model.model, "vocabulary", counted)
    model.encode(inputs)

    assert sorted(seen) == sorted([inputs.num_terms("mlm"), inputs.num_terms("decoder")])
