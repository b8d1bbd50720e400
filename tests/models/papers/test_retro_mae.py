"""RetroMAE: its batches, and its decoder against loops over rows and columns written from the formulas."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models.layers.unpadding import Packing
from models.masking import IGNORED, mask_budget, sample_masks
from models.objective import Losses
from models.papers import retro_mae
from models.papers.retro_mae import (
    Batch,
    Pretraining,
    Settings,
    context_stream,
    embedded_queries,
    make_batch,
    position_specific_mask,
    summed_queries,
)
from models.pretraining import RawBatch
from models.representation import Pooling
from models.tokens import Tokenizer
from tasks.training import grad_cache as loop
from tasks.training.grad_cache import gradients
from tests.slow import Array, bert_layers, dense, embedded, gelu, log_softmax, norm, numbers, vocabulary
from tests.tiny import PIECES, SHAPE, start, tiny_bert

SUM = Settings(text_mask_rate=0.3, decoder_mask_rate=0.5, query_stream="sum", max_tokens=20)
EMBEDDED = dataclasses.replace(SUM, query_stream="embedded")
BOTH = pytest.mark.parametrize("settings", [SUM, EMBEDDED], ids=["sum", "embedded"])
CLS, SEP, UNK, PAD = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[UNK]", "[PAD]"))


def batch(
    tokenizer: Tokenizer, settings: Settings = SUM, seed: int = 0, sizes: Sequence[int] = (30, 9, 18, 4)
) -> Batch:
    random = np.random.default_rng(seed)
    texts = [random.integers(5, len(PIECES), size=n).tolist() for n in sizes]
    return make_batch(RawBatch(texts), tokenizer, settings, random)


def objective(settings: Settings = SUM, *, pooling: Pooling = "cls", dropout: float = 0.0) -> Pretraining:
    made = Pretraining(start(pooling=pooling, dropout=dropout), settings)
    with torch.no_grad():
        for parameter in made.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def fixed_mask(words_BL: Tensor, budgets_B: Tensor, real_BL: Tensor) -> Tensor:
    """A mask by the numbers of words and rows alone, equal in a batch and in its chunks."""
    row, column = torch.arange(1, words_BL.shape[1])[:, None], torch.arange(words_BL.shape[1])
    hidden_BQL = ((words_BL[:, None] * 7 + row * 3 + budgets_B[:, None, None]) % 5 < 2) & (words_BL >= 0)[:, None]
    return real_BL[:, None] & ~hidden_BQL & (row != column)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of the decoder that are not drawn."""
    monkeypatch.setattr(retro_mae, "position_specific_mask", fixed_mask)


# Batches


def test_a_batch_holds_one_crop_thrice(tokenizer: Tokenizer) -> None:
    sizes = tuple(range(40))
    made = batch(tokenizer, sizes=sizes)

    for number, size in enumerate(sizes):
        length = min(size + 2, SUM.max_tokens)
        real, labels, original = made.text.mask[number], made.labels[number], made.original[number]
        words = made.words[number]
        asked = labels != IGNORED
        assert real.sum() == length
        assert original[[0, length - 1]].tolist() == [CLS, SEP]
        assert torch.equal(torch.where(asked, labels, made.text.ids[number]), original)
        assert torch.equal(words >= 0, real & (torch.arange(len(real)) % (length - 1) != 0))
        assert asked.sum() <= mask_budget(length, 0.3)
        assert made.budgets[number] == mask_budget(length, 0.5)
        pieces = [PIECES[piece] for piece in original[1 : length - 1].tolist()]
        starts = [place == 0 or not piece.startswith("##") for place, piece in enumerate(pieces)]
        assert words[1 : length - 1].tolist() == [sum(starts[: place + 1]) - 1 for place in range(len(starts))]


def test_special_tokens_count_for_both_budgets(tokenizer: Tokenizer) -> None:
    ids = [PIECES.index(piece) for piece in ("king", "river", "stone", "bread", "tree", "music", "winter", "ocean")]

    made = make_batch(RawBatch([ids]), tokenizer, SUM, np.random.default_rng(0))

    assert (made.labels != IGNORED).sum() == 3  # 0.3 * 10, not 0.3 * 8
    assert made.budgets.tolist() == [5]


def test_rows_of_a_batch(tokenizer: Tokenizer) -> None:
    whole = batch(tokenizer)

    part = whole.rows(1, 3)

    assert len(part) == 2
    assert torch.equal(part.words, whole.words[1:3])
    assert torch.equal(part.budgets, whole.budgets[1:3])
    assert whole.num_terms("mlm") == int((whole.labels != IGNORED).sum())
    assert whole.num_terms("decoder") == 18 + 9 + 18 + 4
    for loss in ("mlm", "decoder"):
        assert whole.num_terms(loss) == sum(whole.rows(n, n + 1).num_terms(loss) for n in range(4))


# The position-specific mask


@torch.no_grad()
def test_each_row_sees_what_one_of_the_masks_leaves(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equation 5, column by column."""
    made = batch(tokenizer)
    length, drawn = made.words.shape[1], []

    def kept(words: Tensor, budgets: Tensor, num_masks: int) -> Tensor:
        drawn.append(sample_masks(words, budgets, num_masks))
        return drawn[-1]

    monkeypatch.setattr(retro_mae, "sample_masks", kept)
    torch.manual_seed(0)
    visible = position_specific_mask(made.words, made.budgets, made.text.mask)

    assert visible.shape == (4, length - 1, length)
    assert drawn[0].shape[1] == length
    for text in range(4):
        hidden = [set(np.flatnonzero(mask).tolist()) for mask in drawn[0][text].numpy()]
        real = range(int(made.text.mask[text].sum()))
        picked = set()
        for row in range(1, length):
            seen = set(np.flatnonzero(visible[text, row - 1].numpy()).tolist())
            fitting = [number for number, mask in enumerate(hidden) if seen == {*real} - mask - {row}]
            assert fitting, (text, row)
            picked.add(fitting[0])
            assert {0, real[-1]} - {row} <= seen
        assert len(picked) > 1


def test_a_text_has_at_most_so_many_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def masks(words: Tensor, budgets: Tensor, num_masks: int) -> Tensor:
        asked.append(num_masks)
        return torch.zeros(len(words), num_masks, words.shape[1], dtype=torch.bool)

    monkeypatch.setattr(retro_mae, "sample_masks", masks)
    for length in (7, 256, 300):
        words = torch.full((1, length), -1)
        position_specific_mask(words, torch.tensor([2]), words < 0)

    assert asked == [7, 256, 256]


def test_rows_pick_masks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 11  # as many masks; mask r hides column r + 1 modulo its own, which tells which was picked

    def masks(words: Tensor, budgets: Tensor, num_masks: int) -> Tensor:
        return torch.eye(num_masks, words.shape[1], dtype=torch.bool).expand(len(words), -1, -1)

    monkeypatch.setattr(retro_mae, "sample_masks", masks)
    torch.manual_seed(0)
    words = torch.zeros(3000, length, dtype=torch.long)
    visible = position_specific_mask(words, torch.ones(3000), torch.ones_like(words, dtype=torch.bool))

    # Row 4 does not see itself and, by mask 0 to 10, one column more: each is hidden once in 11.
    hidden = (~visible[:, 3]).float().mean(0)
    np.testing.assert_allclose(np.delete(hidden.numpy(), 4), 1 / length, atol=0.02)
    assert hidden[4] == 1


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
        for left in range(0, queries.shape[1], size):
            part = slice(left, left + size)
            weights = np.exp([query[row, part] @ key[column, part] / math.sqrt(size) for column in seen])
            for weight, column in zip(weights / weights.sum(), seen, strict=True):
                out[row, part] += weight * value[column, part]
    return out


def slow_decoder(
    w: dict[str, Array], d: dict[str, Array], vector: Array, ids: list[int], settings: Settings, visible: Array
) -> Array:
    """Logits at positions 1 to n, those between [CLS] and [SEP]; `visible` is [Q, L]."""
    places = range(1, len(ids) - 1)
    table = "bert.embeddings"
    h1 = np.array([vector + w[f"{table}.position_embeddings.weight"][place] for place in places])
    if settings.query_stream == "embedded":
        h1 = norm(h1 + w[f"{table}.token_type_embeddings.weight"][0], w, f"{table}.LayerNorm")
    h2 = embedded(w, ids)
    h2[0] = vector
    seen = [np.flatnonzero(visible[place - 1]).tolist() for place in places]
    mixed = dense(slow_attend(h1, h2, d, "layer.attention.self", seen), d, "layer.attention.output.dense")
    x = norm(h1 + mixed, d, "layer.attention.output.LayerNorm")
    widened = dense(gelu(dense(x, d, "layer.intermediate.dense")), d, "layer.output.dense")
    return vocabulary(norm(x + widened, d, "layer.output.LayerNorm"), w)


def slow_losses(
    w: dict[str, Array], d: dict[str, Array], given: Batch, settings: Settings, pooling: Pooling
) -> dict[str, float]:
    """L_enc and L_dec, text by text, with the masks of `fixed_mask`."""
    visible = fixed_mask(given.words, given.budgets, given.text.mask).numpy()
    terms: dict[str, list[float]] = {"mlm": [], "decoder": []}
    for number, mask in enumerate(given.text.mask):
        length = int(mask.sum())
        hidden = bert_layers(w, given.text.ids[number, :length].tolist())[-1]
        logs = log_softmax(vocabulary(hidden, w))
        for place, label in enumerate(given.labels[number, :length].tolist()):
            if label != IGNORED:
                terms["mlm"].append(-logs[place, label])
        vector = hidden[0] if pooling == "cls" else hidden.mean(0)
        ids = given.original[number, :length].tolist()
        decoded = log_softmax(slow_decoder(w, d, vector, ids, settings, visible[number]))
        terms["decoder"] += [-decoded[place - 1, ids[place]] for place in range(1, length - 1)]
    return {name: float(np.mean(each)) for name, each in terms.items()}


@BOTH
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.usefixtures("fixed")
@torch.no_grad()
def test_losses_are_the_formulas(tokenizer: Tokenizer, settings: Settings, pooling: Pooling) -> None:
    made, given = objective(settings, pooling=pooling).eval(), batch(tokenizer)

    vectors, losses = made.encode(given)

    assert vectors == ()
    assert made.compare(vectors, given) == {}
    expected = slow_losses(numbers(made.model), numbers(made.decoder), given, settings, pooling)
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, abs=1e-4, rel=1e-5)


# What must not influence what


@BOTH
def test_a_prediction_hangs_on_the_columns_that_its_row_sees_and_never_on_its_own_token(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, given = objective(settings).eval(), batch(tokenizer, sizes=(9, 5))
    masks: list[Tensor] = []

    def kept(*parts: Tensor) -> Tensor:
        masks.append(position_specific_mask(*parts))
        return masks[-1]

    monkeypatch.setattr(retro_mae, "position_specific_mask", kept)
    vectors = torch.randn(2, SHAPE["hidden_size"], requires_grad=True)
    length = given.original.shape[1]
    queries = {"sum": summed_queries, "embedded": embedded_queries}[settings.query_stream]
    context = context_stream(vectors, made.model, given.original).detach().requires_grad_()
    logits = made.model.vocabulary(made.decoder(queries(vectors, made.model, length), context, given))

    places = [(text, place) for text, size in enumerate((9, 5)) for place in range(1, size + 1)]
    assert len(logits) == len(places)
    for row, (text, place) in zip(logits, places, strict=True):
        of_context, of_vectors = torch.autograd.grad(row.square().sum(), (context, vectors), retain_graph=True)
        reached = set(map(tuple, torch.nonzero(of_context.abs().amax(-1)).tolist()))
        assert reached == {(text, column) for column in np.flatnonzero(masks[0][text, place - 1].numpy()).tolist()}
        assert (text, place) not in reached
        assert (of_vectors.abs().amax(1) > 1e-6).tolist() == [number == text for number in range(2)]


@BOTH
def test_the_decoder_reaches_the_encoder_through_the_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, given = objective(settings), batch(tokenizer)
    hidden = made.model.bert(given.text.ids, given.text.mask).detach().requires_grad_()
    monkeypatch.setattr(made.model.bert, "forward", lambda ids, mask: hidden)

    _, losses = made.encode(given)
    (of_decoder,) = torch.autograd.grad(losses["decoder"], hidden, retain_graph=True)
    (of_mlm,) = torch.autograd.grad(losses["mlm"], hidden)

    assert (of_decoder[:, 0].abs().amax(1) > 1e-6).all()
    assert not of_decoder[:, 1:].any()
    assert torch.equal(of_mlm.abs().amax(-1) > 0, given.labels != IGNORED)


def test_both_streams_carry_gradients_to_the_vector_and_the_context_to_the_embeddings(tokenizer: Tokenizer) -> None:
    made, given = objective(), batch(tokenizer)
    length, vectors = given.original.shape[1], torch.randn(4, SHAPE["hidden_size"], requires_grad=True)

    queries = summed_queries(vectors, made.model, length)
    context = context_stream(vectors, made.model, given.original)

    for stream, rows in ((queries, length - 1), (context, 1)):
        (of_vectors,) = torch.autograd.grad(stream.sum(), vectors, retain_graph=True)
        assert (of_vectors == rows).all()
    words = made.model.bert.embeddings.word_embeddings.weight
    (of_words,) = torch.autograd.grad(context.square().sum(), words)
    reached = set(torch.nonzero(of_words.abs().amax(1)).flatten().tolist())
    assert reached == set(given.original[:, 1:].flatten().tolist()) - {PAD}


@pytest.mark.usefixtures("fixed")
@torch.no_grad()
def test_the_decoder_reads_the_text_as_it_was_and_asks_for_unknown_pieces_too(tokenizer: Tokenizer) -> None:
    made = objective().eval()
    given = make_batch(RawBatch([[20, UNK, 40, 41, 42]]), tokenizer, SUM, np.random.default_rng(0))
    other = dataclasses.replace(given, labels=torch.full_like(given.labels, IGNORED))

    assert given.num_terms("decoder") == 5
    assert torch.equal(made.encode(given)[1]["decoder"], made.encode(other)[1]["decoder"])
    changed = dataclasses.replace(given, original=given.original.clone())
    changed.original[0, 3] = 50
    assert abs(made.encode(given)[1]["decoder"] - made.encode(changed)[1]["decoder"]) > 1e-3
    assert torch.equal(made.encode(given)[1]["mlm"], made.encode(changed)[1]["mlm"])


def test_the_vocabulary_head_sees_asked_positions_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    made, given, seen = objective(), batch(tokenizer), []
    head = made.model.vocabulary

    def counted(hidden: Tensor) -> Tensor:
        seen.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(made.model, "vocabulary", counted)
    made.encode(given)

    assert sorted(seen) == sorted([given.num_terms("mlm"), given.num_terms("decoder")])


@pytest.mark.usefixtures("fixed")
@torch.no_grad()
def test_padding_changes_nothing(tokenizer: Tokenizer) -> None:
    made, given = objective().eval(), batch(tokenizer)

    losses = made.encode(given)[1]

    alone = [given.rows(n, n + 1) for n in range(4)]
    cut = [
        dataclasses.replace(
            each, **{name: getattr(each, name)[:, : each.text.mask.sum()] for name in ("labels", "original", "words")},
            text=dataclasses.replace(
                each.text, ids=each.text.ids[:, : each.text.mask.sum()], mask=each.text.mask[:, : each.text.mask.sum()]
            ),
        )
        for each in alone
    ]  # fmt: skip
    for name in ("mlm", "decoder"):
        mean = sum(made.encode(each)[1][name] * each.num_terms(name) for each in cut) / given.num_terms(name)
        torch.testing.assert_close(losses[name], mean, atol=1e-5, rtol=1e-5)


# Training


@BOTH
def test_one_batch_can_be_learned_by_heart(tokenizer: Tokenizer, settings: Settings) -> None:
    torch.manual_seed(0)
    made, given = Pretraining(start(spread=0.0), settings), batch(tokenizer)
    optimiser = torch.optim.Adam(made.parameters(), lr=1e-2)
    history = []
    for _ in range(120):
        optimiser.zero_grad()
        losses = made.encode(given)[1]
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
        history.append({name: loss.item() for name, loss in losses.items()})

    for name in ("mlm", "decoder"):
        assert history[0][name] > 3.5
        assert history[-1][name] < 0.2 * history[0][name]


def gradient(made: Pretraining, given: Batch, chunk: int | None) -> tuple[Losses, dict[str, Tensor]]:
    made.zero_grad()
    losses = gradients(made, given, chunk, (3, 5))
    return losses, {name: value.grad.clone() for name, value in made.named_parameters() if value.grad is not None}


@BOTH
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.usefixtures("fixed", "store")
def test_chunks_change_neither_losses_nor_gradients(tokenizer: Tokenizer, settings: Settings, chunk: int) -> None:
    made, given = objective(settings).train(), batch(tokenizer)

    (losses, grads), (of_chunks, grads_of_chunks) = gradient(made, given, None), gradient(made, given, chunk)

    torch.testing.assert_close(of_chunks, losses, atol=1e-5, rtol=1e-5)
    largest = max(grad.abs().max().item() for grad in grads.values())
    for name, grad in grads.items():
        torch.testing.assert_close(grads_of_chunks[name], grad, atol=1e-5 * largest, rtol=1e-5)


@pytest.mark.usefixtures("store")
def test_chunks_draw_masks_and_dropout_by_their_seeds(tokenizer: Tokenizer) -> None:
    made, given = objective(EMBEDDED, dropout=0.2).train(), batch(tokenizer)
    losses, grads = gradient(made, given, 3)

    made.zero_grad()
    direct: Losses = {}
    for number, part in enumerate((given.rows(0, 3), given.rows(3, 4))):
        torch.manual_seed(loop.mix_seeds((3, 5, number)))
        for name, loss in made.encode(part)[1].items():
            share = part.num_terms(name) / given.num_terms(name)
            direct[name] = direct.get(name, torch.zeros(())) + loss * share
    torch.stack(list(direct.values())).sum().backward()

    torch.testing.assert_close(losses, direct, atol=1e-6, rtol=1e-6)
    expected = {name: value.grad for name, value in made.named_parameters() if value.grad is not None}
    torch.testing.assert_close(grads, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_equal_seeds_give_equal_losses(tokenizer: Tokenizer) -> None:
    made = objective(EMBEDDED, dropout=0.1)

    def losses(seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        return {name: loss.item() for name, loss in made.encode(batch(tokenizer))[1].items()}

    made.train()
    assert losses(1) == losses(1)
    assert losses(1) != losses(2)
    made.eval()
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
        summed, embedded_ = summed_queries(vectors, model, 9), embedded_queries(vectors, model, 9)
        assert not (summed == 0).any()
        assert (embedded_ == 0).any() == training


def test_texts_without_words_ask_nothing(tokenizer: Tokenizer) -> None:
    for sizes in ((0, 0), (0, 6)):
        made, given = objective(), batch(tokenizer, sizes=sizes)
        losses = made.encode(given)[1]
        torch.stack(list(losses.values())).sum().backward()

        assert all(parameter.grad.isfinite().all() for parameter in made.parameters() if parameter.grad is not None)
        assert (losses["decoder"] == 0) == (given.num_terms("decoder") == 0)


def test_the_decoder_starts_as_bert_does_and_owns_neither_head_nor_embeddings() -> None:
    made = Pretraining(start(), SUM)

    shapes = {name: value.shape for name, value in made.decoder.named_parameters()}
    layer = {f"layer.{name}": value.shape for name, value in made.model.bert.encoder.layer[0].named_parameters()}
    assert shapes == layer
    for name, value in made.decoder.named_parameters():
        if value.ndim > 1:
            assert value.std().item() == pytest.approx(0.02, rel=0.1)
        else:
            assert (value == (1 if "Norm.weight" in name else 0)).all(), name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text_mask_rate": 0.0}, "text_mask_rate: expected a share"),
        ({"decoder_mask_rate": 1.5}, "decoder_mask_rate: expected a share"),
        ({"max_tokens": 2}, "max_tokens: expected 3 or more"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(SUM, **change)


def test_more_tokens_than_positions() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
        Pretraining(start(), dataclasses.replace(SUM, max_tokens=65))
