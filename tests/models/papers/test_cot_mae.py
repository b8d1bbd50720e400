"""CoT-MAE: its batches, and its decoders against loops over rows and columns written from the formulas."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from models.batch import flat_positions
from models.layers.decoder import window_mask
from models.losses import masked_lm_loss
from models.masking import IGNORED
from models.papers.cot_mae import Batch, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.tokens import Tokenizer, pad
from tests.models.masked_crops import mask_budget
from tests.slow import Array, attend, dense, embedded, gelu, norm, numbers, vocabulary
from tests.tiny import PIECES, SHAPE, start

AR = Settings(
    decoder="ar", decoder_layers=1, window=3, text_mask_rate=0.3, context_mask_rate=None, symmetric=False,
    max_tokens=20, context_max_tokens=10,
)  # fmt: skip
AE = dataclasses.replace(AR, decoder="ae", window=None, context_mask_rate=0.45)
CLS, SEP, MASK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[MASK]"))
WHOLE = [number for number, piece in enumerate(PIECES) if number > 4 and not piece.startswith("##")]


def batch(tokenizer: Tokenizer, settings: Settings, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    texts, contexts = (
        [random.choice(WHOLE, size=n).tolist() for n in sizes] for sizes in ((30, 9, 18, 4), (5, 7, 3, 12))
    )
    return make_batch(RawBatch(texts, contexts), tokenizer, settings, RowRandom(seed, 0))


def objective(settings: Settings, *, pooling: Pooling = "cls", layers: int = 1, dropout: float = 0.0) -> Pretraining:
    model = Pretraining(start(pooling=pooling, dropout=dropout), dataclasses.replace(settings, decoder_layers=layers))
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# Batches


@pytest.mark.parametrize("max_tokens", [3, 8, 20, 64])
def test_a_crop_is_one_piece_of_the_text_for_ids_and_labels_alike(tokenizer: Tokenizer, max_tokens: int) -> None:
    texts = [np.random.default_rng(n).choice(WHOLE, size=n).tolist() for n in range(40)]
    settings = dataclasses.replace(AE, max_tokens=max_tokens, context_max_tokens=max_tokens)

    batch = make_batch(RawBatch(texts, texts), tokenizer, settings, RowRandom(1, 0))

    for tokens, labels in ((batch.text, batch.text_labels), (batch.context, batch.context_labels)):
        assert tokens.ids.shape == labels.shape
        assert tokens.ids.shape[1] <= max_tokens
        for row, mask, label, text in zip(tokens.ids, tokens.mask, labels, texts, strict=True):
            whole = torch.where(label != IGNORED, label, row)[mask].tolist()
            assert (whole[0], whole[-1]) == (CLS, SEP)
            assert len(whole) == min(len(text) + 2, max_tokens)
            assert any(text[start : start + len(whole) - 2] == whole[1:-1] for start in range(len(text) + 1))
            assert (label[~mask] == IGNORED).all()
            assert int((label != IGNORED).sum()) <= mask_budget(len(whole) - 2, 0.45)


def test_every_crop_is_drawn(tokenizer: Tokenizer) -> None:
    text = list(range(5, 15))
    settings = dataclasses.replace(AR, context_max_tokens=8)

    batch = make_batch(RawBatch([text] * 400, [text] * 400), tokenizer, settings, RowRandom(0, 0))

    firsts = np.bincount(batch.context.ids[:, 1] - 5, minlength=5)
    assert len(firsts) == 5
    assert (firsts > 50).all()  # 80 each are expected


def test_only_the_printed_decoder_masks_its_context(tokenizer: Tokenizer) -> None:
    released, printed = batch(tokenizer, AR), batch(tokenizer, AE)

    assert not (released.context.ids == MASK).any()
    assert torch.equal(torch.where(released.context.mask, released.context.ids, IGNORED), released.context_labels)
    assert (printed.context.ids == MASK).any()
    hidden = printed.context_labels != IGNORED
    assert not hidden[:, 0].any()
    assert 0 < hidden.sum() < printed.context.mask.sum() / 2


def test_rows_of_a_batch(tokenizer: Tokenizer) -> None:
    whole = batch(tokenizer, AE)

    part = whole.rows(1, 3)

    assert len(part) == 2
    assert torch.equal(part.text.ids, whole.text.ids[1:3])
    assert torch.equal(part.context_labels, whole.context_labels[1:3])
    for loss in ("mlm", "context"):
        assert whole.num_terms(loss) == sum(whole.rows(n, n + 1).num_terms(loss) for n in range(4))
    assert whole.num_terms("mlm") == int((whole.text_labels != IGNORED).sum())
    released = batch(tokenizer, AR)
    assert released.num_terms("context") == int(released.context.mask.sum()) - len(released)


# Decoders, slowly


def slow_released_decoder(model: Pretraining, vector: Tensor, ids: list[int], window: int) -> Array:
    """Logits at every position of GPT-2's blocks over [vector, y_1 ... y_n]."""
    w, d = numbers(model.model), numbers(model.decoder)
    x = embedded(w, ids)
    x[0] = vector.double().numpy()
    visible = [{0, *range(max(1, row - window + 1), row + 1)} for row in range(len(ids))]
    for block in range(len(model.decoder.blocks)):
        name = f"blocks.{block}"
        mixed = attend(norm(x, d, f"{name}.attention_norm"), d, f"{name}.attention", visible)
        x = x + dense(mixed, d, f"{name}.attention_output")
        x = x + dense(gelu(dense(norm(x, d, f"{name}.mlp_norm"), d, f"{name}.widen")), d, f"{name}.narrow")
    return vocabulary(norm(x, d, "norm"), w)


def slow_printed_decoder(model: Pretraining, vector: Tensor, ids: list[int]) -> Array:
    """Logits at every position of BERT's layers over [vector, y~_1 ... y~_n]."""
    w, d = numbers(model.model), numbers(model.decoder)
    x = embedded(w, ids)
    x[0] = vector.double().numpy()
    visible = [set(range(len(ids)))] * len(ids)
    for layer in range(len(model.decoder.layers)):
        name = f"layers.{layer}"
        mixed = dense(attend(x, d, f"{name}.attention.self", visible), d, f"{name}.attention.output.dense")
        x = norm(x + mixed, d, f"{name}.attention.output.LayerNorm")
        widened = dense(gelu(dense(x, d, f"{name}.intermediate.dense")), d, f"{name}.output.dense")
        x = norm(x + widened, d, f"{name}.output.LayerNorm")
    return vocabulary(x, w)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("window", "width"), [(3, None), (3, 48), (1, None), (24, 128)])
@torch.no_grad()
def test_the_released_decoder(tokenizer: Tokenizer, window: int, width: int | None, layers: int) -> None:
    model = objective(dataclasses.replace(AR, window=window, decoder_width=width), layers=layers).eval()
    assert {block.widen.out_features for block in model.decoder.blocks} == {width or SHAPE["intermediate_size"]}
    context, vectors = pad([[CLS, 20, 21, 22, 60, 61, SEP], [CLS, 30, SEP]]), torch.randn(2, SHAPE["hidden_size"])

    logits, labels = model.decoder(vectors, context, context.ids, context.after_first())

    # By hand: what comes next, the query's first token and [SEP] too; nothing where padding is.
    assert labels.tolist() == [20, 21, 22, 60, 61, SEP, 30, SEP]
    expected = [
        slow_released_decoder(model, vector, ids[mask].tolist(), window)[:-1]
        for vector, ids, mask in zip(vectors, context.ids, context.mask, strict=True)
    ]
    np.testing.assert_allclose(logits.numpy(), np.concatenate(expected), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_the_printed_decoder(tokenizer: Tokenizer, layers: int) -> None:
    model = objective(AE, layers=layers).eval()
    context, vectors = pad([[CLS, 20, MASK, 22, 60, MASK, SEP], [CLS, 33, SEP]]), torch.randn(2, SHAPE["hidden_size"])
    labels = torch.full_like(context.ids, IGNORED)
    labels[0, 2], labels[0, 5], labels[1, 1] = 21, 61, 30

    logits, labelled = model.decoder(vectors, context, labels, flat_positions(labels != IGNORED))

    assert labelled.tolist() == [21, 61, 30]
    long, short = (
        slow_printed_decoder(model, vector, ids[mask].tolist())
        for vector, ids, mask in zip(vectors, context.ids, context.mask, strict=True)
    )
    np.testing.assert_allclose(logits.numpy(), np.stack([long[2], long[5], short[1]]), atol=2e-4, rtol=1e-4)


# The released decoder's window


def test_window_by_hand() -> None:
    visible = [set(np.flatnonzero(row.numpy()).tolist()) for row in window_mask(7, 3)]

    assert visible[5] == {0, 3, 4, 5}
    assert visible[2] == {0, 1, 2}
    assert visible[0] == {0}
    assert visible[1] == {0, 1}
    assert [set(np.flatnonzero(row.numpy()).tolist()) for row in window_mask(4, 4)] == [
        set(range(n + 1)) for n in range(4)
    ]
    assert [set(np.flatnonzero(row.numpy()).tolist()) for row in window_mask(4, 1)] == [{0}, {0, 1}, {0, 2}, {0, 3}]


def released(model: Pretraining, vector: Tensor, ids: list[int]) -> Tensor:
    context = pad([ids])
    logits, _ = model.decoder(vector[None], context, context.ids, context.after_first())
    return logits


@torch.no_grad()
def test_a_later_token_changes_no_earlier_prediction_and_the_vector_changes_all() -> None:
    model, vector = objective(AR, layers=2).eval(), torch.randn(SHAPE["hidden_size"])
    ids = [CLS, *range(20, 28), SEP]
    logits = released(model, vector, ids)

    for position in range(1, len(ids)):
        changed = released(model, vector, [*ids[:position], 50, *ids[position + 1 :]])
        same = [torch.equal(logit, other) for logit, other in zip(logits, changed, strict=True)]
        assert same[:position] == [True] * position
        assert position == len(ids) - 1 or not same[position]
    other = released(model, torch.randn(SHAPE["hidden_size"]), ids)
    assert ((logits - other).abs().amax(1) > 1e-3).all()


def test_what_lies_before_the_window_reaches_one_layer_through_the_vector_alone() -> None:
    model = objective(AR).eval()
    context, vectors = pad([[CLS, *range(20, 28), SEP]]), torch.randn(1, SHAPE["hidden_size"], requires_grad=True)
    inputs: list[Tensor] = []

    def kept(ids: Tensor) -> Tensor:
        inputs.append(model.model.bert.embeddings(ids).detach().requires_grad_())
        return inputs[-1]

    model.decoder.embeddings = kept
    logits, _ = model.decoder(vectors, context, context.ids, context.after_first())
    for row in range(len(logits)):
        of_tokens, of_vector = torch.autograd.grad(logits[row].square().sum(), (inputs[0], vectors), retain_graph=True)
        reached = set(torch.nonzero(of_tokens[0].abs().amax(-1)).flatten().tolist())
        assert reached == set(range(max(1, row - 2), row + 1))
        assert of_vector.abs().max() > 1e-6


# The objective


@pytest.mark.parametrize("settings", [AR, AE], ids=["ar", "ae"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_losses_are_the_sum_of_the_two_heads(tokenizer: Tokenizer, settings: Settings, pooling: Pooling) -> None:
    model, inputs = objective(settings, pooling=pooling).eval(), batch(tokenizer, settings)

    vectors, losses = model.encode(inputs)

    hidden = model.model.bert(inputs.text.ids, inputs.text.mask)
    labelled = inputs.text_labels != IGNORED
    mlm = masked_lm_loss(model.model.vocabulary(hidden[labelled]), inputs.text_labels[labelled])
    lengths = inputs.text.mask.sum(1)
    means = torch.stack([row[:length].mean(0) for row, length in zip(hidden, lengths, strict=True)])
    given = hidden[:, 0] if pooling == "cls" else means
    decoded = model.decoder(given, inputs.context, inputs.context_labels, inputs.predicted)
    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    torch.testing.assert_close(losses, {"mlm": mlm, "context": masked_lm_loss(*decoded)}, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [AR, AE], ids=["ar", "ae"])
def test_the_context_loss_reaches_the_encoder_through_the_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings), batch(tokenizer, settings)
    hidden = model.model.bert(inputs.text.ids, inputs.text.mask).detach().requires_grad_()
    monkeypatch.setattr(model.model.bert, "forward", lambda ids, mask, **known: hidden)

    _, losses = model.encode(inputs)
    (of_context,) = torch.autograd.grad(losses["context"], hidden, retain_graph=True)
    (of_mlm,) = torch.autograd.grad(losses["mlm"], hidden)

    assert (of_context[:, 0].abs().amax(1) > 1e-6).all()
    assert not of_context[:, 1:].any()
    assert torch.equal(of_mlm.abs().amax(-1) > 0, inputs.text_labels != IGNORED)
