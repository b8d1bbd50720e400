"""CoT-MoTE: its batches, its losses against loops written from the formulas, and which tower learns from what."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.layers.max_logits import max_of_logits
from models.masking import IGNORED
from models.papers.cot_mote import (
    Batch,
    Masked,
    Pretraining,
    Settings,
    between_specials,
    make_batch,
    weighted_words,
)
from models.pretraining import Initialisation, RawBatch
from models.representation import Pooling
from models.retrievers.towers import Towers, build_encoders
from models.row_random import RowRandom
from models.tokens import Tokenizer, pad
from tests.models.masked_crops import mask_budget
from tests.models.papers.test_seed import slow_decoder
from tests.slow import Array, bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import PIECES, start

DENSE = Settings(
    bottlenecks=["dense"], lexical_bottleneck=None, switched=False, query_target="query", mask_rate=0.3,
    decoder_layers=1, window=3, max_tokens=20, query_max_tokens=10,
)  # fmt: skip
BOTH = dataclasses.replace(DENSE, bottlenecks=["dense", "lexical"], lexical_bottleneck="l1")
LEXICAL = dataclasses.replace(BOTH, bottlenecks=["lexical"])
VARIANTS: dict[str, dict[str, Any]] = {
    "l1": {},
    "softmax": {"lexical_bottleneck": "softmax"},
    "swap": {"query_target": "passage", "decoder_layers": 2},
    "passages only": {"query_target": "none", "window": 20},
    "dense": {"bottlenecks": ["dense"], "lexical_bottleneck": None},
    "lexical": {"bottlenecks": ["lexical"]},
    "switched": {"switched": True, "query_target": "passage"},
}
CLS, SEP = PIECES.index("[CLS]"), PIECES.index("[SEP]")
WHOLE = [number for number, piece in enumerate(PIECES) if number > 4 and not piece.startswith("##")]


def drawn(count: int = 5, seed: int = 0) -> RawBatch:
    random = np.random.default_rng(seed)
    texts, contexts = (
        [random.choice(WHOLE, size=n).tolist() for n in random.integers(3, longest, size=count)] for longest in (30, 12)
    )
    return RawBatch(texts, contexts)


def batch(tokenizer: Tokenizer, settings: Settings, count: int = 5) -> Batch:
    return make_batch(drawn(count), tokenizer, settings, RowRandom(0, 0))


def begin(towers: Towers, *, pooling: Pooling = "cls", dropout: float = 0.0, spread: float = 0.2) -> Initialisation:
    return Initialisation(build_encoders(start(pooling=pooling, dropout=dropout, spread=spread).encoder, towers))


def objective(
    settings: Settings,
    towers: Towers = "mixture",
    *,
    pooling: Pooling = "cls",
    dropout: float = 0.0,
    spread: float = 0.1,
) -> Pretraining:
    """Towers and decoder after each parameter went its own way."""
    model = Pretraining(begin(towers, pooling=pooling, dropout=dropout), settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


# Batches


def test_both_texts_are_cropped_and_masked_each_for_itself(tokenizer: Tokenizer) -> None:
    inputs = drawn(60)

    batch = make_batch(inputs, tokenizer, BOTH, RowRandom(1, 0))

    for part, texts, longest in ((batch.passage, inputs.texts, 20), (batch.query, inputs.contexts, 10)):
        unmasked = part.unmasked()
        assert part.tokens.ids.shape[1] == longest
        assert torch.equal(unmasked.mask, part.tokens.mask)
        for ids, mask, labels, text in zip(unmasked.ids, unmasked.mask, part.labels, texts, strict=True):
            original = ids[mask].tolist()
            assert (original[0], original[-1], len(original)) == (CLS, SEP, min(longest, len(text) + 2))
            assert any(list(text[first : first + len(original) - 2]) == original[1:-1] for first in range(len(text)))
            hidden = (labels != IGNORED).nonzero().flatten().tolist()
            assert len(hidden) == mask_budget(len(original) - 2, 0.3)
            assert set(hidden) <= set(range(1, len(original) - 1))
            assert (ids[hidden] == labels[hidden]).all()
        assert 0.7 < (part.tokens.ids[part.labels != IGNORED] == PIECES.index("[MASK]")).float().mean() < 0.9


@pytest.mark.parametrize(
    ("target", "targets"),
    [
        ("query", {"passage": "query", "query": "query"}),
        ("passage", {"passage": "query", "query": "passage"}),
        ("none", {"passage": "query"}),
    ],
)
def test_what_is_decoded(tokenizer: Tokenizer, target: Any, targets: dict[str, str]) -> None:
    built = batch(tokenizer, dataclasses.replace(DENSE, query_target=target))

    assert built.targets == targets
    assert built.rows(1, 3).targets == targets


# Losses, slowly


def slow_bottleneck(logits: Array, embeddings: Array, kind: str | None) -> Array:
    """The mean of all words' embeddings, weighted by what is strongest at any position."""
    weights = []
    for word in range(logits.shape[1]):
        strongest = max(row[word] for row in logits)
        weights.append(math.exp(strongest) if kind == "softmax" else math.log(1 + max(0.0, strongest)))
    total = sum(weights) + (0 if kind == "softmax" else 1e-4)
    return np.array(sum(weight / total * embeddings[word] for word, weight in enumerate(weights)))


def slow_losses(model: Pretraining, inputs: Batch, settings: Settings, pooling: Pooling) -> dict[str, list[float]]:
    """The terms of each loss."""
    towers = {"query": numbers(model.encoder.query), "passage": numbers(model.encoder.passage)}
    readers = {"query": "passage", "passage": "query"} if settings.switched else {tower: tower for tower in towers}
    decoded = {"passage": "query", "query": settings.query_target}
    parts = {"query": inputs.query, "passage": inputs.passage}
    d = numbers(model.decoder)
    results: dict[str, list[float]] = {}
    for role, part in parts.items():
        w = towers[readers[role]]
        for row, (ids, mask, labels) in enumerate(zip(part.tokens.ids, part.tokens.mask, part.labels, strict=True)):
            hidden = bert_layers(w, ids[mask].tolist())[-1]
            logits = vocabulary(hidden, w)
            results.setdefault(f"mlm_{role}", []).extend(
                -log_softmax(logits)[row, label] for row, label in enumerate(labels[mask].tolist()) if label >= 0
            )
            if decoded[role] == "none":
                continue
            target = parts[decoded[role]].unmasked()
            text = target.ids[row][target.mask[row]].tolist()
            words = w["bert.embeddings.word_embeddings.weight"]
            vectors = {
                "dense": hidden[0] if pooling == "cls" else hidden.mean(0),
                "lexical": slow_bottleneck(logits[1:-1], words, settings.lexical_bottleneck),
            }
            for view in settings.bottlenecks:
                terms = slow_decoder(w, d, vectors[view], text, settings.window)
                results.setdefault(f"decode_{role}_{view}", []).extend(terms)
    return results


@pytest.mark.parametrize(
    ("variant", "towers"),
    [*((variant, towers) for variant in VARIANTS for towers in ("mixture", "separate")), ("l1", "siamese")],
)
@torch.no_grad()
def test_losses_slowly(tokenizer: Tokenizer, variant: str, towers: Towers) -> None:
    pooling: Pooling = "mean" if variant == "swap" else "cls"
    settings = dataclasses.replace(BOTH, **VARIANTS[variant])
    model, inputs = objective(settings, towers, pooling=pooling).eval(), batch(tokenizer, settings)

    vectors, losses = model.encode(inputs)

    expected = slow_losses(model, inputs, settings, pooling)
    results = {name: loss.item() for name, loss in losses.items()}
    assert results == pytest.approx({name: np.mean(terms) for name, terms in expected.items()}, rel=3e-5)
    for name, terms in expected.items():
        assert inputs.num_terms(name) == len(terms) == sum(inputs.rows(n, n + 1).num_terms(name) for n in range(5))
    assert vectors == ()
    assert model.compare(vectors, inputs) == {}


def test_a_lexical_vector_by_hand() -> None:
    logits = torch.tensor([[math.e - 1, -3.0, 0.0], [-1.0, -2.0, -5.0]])
    embeddings = torch.tensor([[1.0, 2.0], [10.0, 10.0], [3.0, 0.0]])

    l1, softmax = weighted_words(logits, embeddings, "l1"), weighted_words(logits, embeddings, "softmax")

    # log(1 + e - 1) = 1 for the first word; a text without any positive logit has no words at all.
    torch.testing.assert_close(l1, torch.tensor([[1.0, 2.0], [0.0, 0.0]]) / 1.0001)
    mass = math.exp(-1) + math.exp(-2) + math.exp(-5)
    first = (math.exp(-1) + 10 * math.exp(-2) + 3 * math.exp(-5)) / mass
    assert softmax[1, 0].item() == pytest.approx(first)


def test_maxima_are_over_what_stands_between_the_specials() -> None:
    tokens = pad([[CLS, 20, 21, SEP], [CLS, SEP], [CLS, 30, SEP], [CLS, 5, 6, 7, 8, SEP]])
    logits = torch.randn(*tokens.ids.shape, 9)

    read = between_specials(tokens.mask)

    assert [row.nonzero().flatten().tolist() for row in read] == [[1, 2], [], [1], [1, 2, 3, 4]]
    expected = [logits[0, 1:3].amax(0), torch.zeros(9), logits[2, 1], logits[3, 1:5].amax(0)]
    assert torch.equal(max_of_logits(logits[read], read), torch.stack(expected))
    assert between_specials(pad([[CLS, SEP]]).mask).tolist() == [[False, False]]


# What reaches what


@pytest.mark.parametrize("settings", [DENSE, LEXICAL], ids=["dense", "lexical"])
def test_the_decoder_hears_of_a_text_through_its_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings), batch(tokenizer, settings)
    hidden: list[Tensor] = []

    def kept(forward: Any) -> Any:
        def of(ids: Tensor, mask: Tensor, **known: Tensor) -> Tensor:
            hidden.append(forward(ids, mask, **known).detach().requires_grad_())
            return hidden[-1]

        return of

    for tower in (model.encoder.query, model.encoder.passage):
        monkeypatch.setattr(tower.bert, "forward", kept(tower.bert.forward))
    _, losses = model.encode(inputs)

    for role, part, other in (("query", inputs.query, 1), ("passage", inputs.passage, 0)):
        own = 1 - other
        decode, mlm = losses[f"decode_{role}_{settings.bottlenecks[0]}"], losses[f"mlm_{role}"]
        (of_mlm,) = torch.autograd.grad(mlm, hidden[own], retain_graph=True)
        assert torch.equal(of_mlm.abs().amax(-1) > 0, part.labels != IGNORED)
        of_decode, of_other = torch.autograd.grad(
            decode, (hidden[own], hidden[other]), retain_graph=True, allow_unused=True
        )
        assert of_other is None
        reached = of_decode.abs().amax(-1) > 1e-9
        if settings is DENSE:
            assert reached[:, 0].all()
            assert not reached[:, 1:].any()
        else:
            assert reached.any(1).all()
            assert not (reached & ~between_specials(part.tokens.mask)).any()


def test_words_are_chosen_not_changed() -> None:
    logits, words = torch.randn(2, 7, requires_grad=True), torch.randn(7, 4, requires_grad=True)

    for kind in ("l1", "softmax"):
        weighted_words(logits, words, kind).square().sum().backward()

    assert words.grad is None
    assert logits.grad is not None
    assert logits.grad.abs().max() > 1e-3


@pytest.mark.parametrize("settings", [DENSE, BOTH], ids=["dense", "both"])
def test_the_vocabulary_head_sees_what_is_asked_and_nothing_twice(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings), batch(tokenizer, settings)
    seen: dict[str, list[int]] = {}
    for name, owner in (
        ("query", model.encoder.query), ("passage", model.encoder.passage),
        ("decode_query", model.query_decoder), ("decode_passage", model.decoder),
    ):  # fmt: skip

        def counted(hidden: Tensor, name: str = name, head: Any = owner.vocabulary) -> Tensor:
            seen.setdefault(name, []).append(len(hidden))
            return head(hidden)

        monkeypatch.setattr(owner, "vocabulary", counted)

    model.encode(inputs)

    for role, part in (("query", inputs.query), ("passage", inputs.passage)):
        words = int(part.tokens.mask.sum()) - 2 * len(inputs)
        assert seen[role] == [inputs.num_terms(f"mlm_{role}") if settings is DENSE else words]
        assert seen[f"decode_{role}"] == [int(inputs.query.tokens.mask.sum()) - len(inputs)] * len(settings.bottlenecks)


def test_masked_texts_are_rows(tokenizer: Tokenizer) -> None:
    part: Masked = batch(tokenizer, BOTH).passage.rows(2, 4)

    assert len(part) == 2
    assert torch.equal(part.unmasked().ids, batch(tokenizer, BOTH).passage.unmasked().ids[2:4])
