"""CoT-MoTE: its batches, its losses against loops written from the formulas, and which tower learns from what."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED, mask_budget
from models.papers.cot_mote import (
    Batch,
    Masked,
    Pretraining,
    Settings,
    between_specials,
    make_batch,
    maxima,
    weighted_words,
)
from models.pretraining import Initialisation, RawBatch
from models.representation import Pooling
from models.retrievers.towers import Towers, build_encoders
from models.tokens import Tokenizer, pad
from tasks.training.grad_cache import gradients
from tests.models.papers.test_seed import slow_decoder
from tests.slow import Array, bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import PIECES, SHAPE, start

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
    return make_batch(drawn(count), tokenizer, settings, np.random.default_rng(0))


def begin(towers: Towers, *, pooling: Pooling = "cls", dropout: float = 0.0, spread: float = 0.2) -> Initialisation:
    return Initialisation(build_encoders(start(pooling=pooling, dropout=dropout, spread=spread).encoder, towers))


def objective(
    settings: Settings, towers: Towers = "mixture", *, pooling: Pooling = "cls", spread: float = 0.1
) -> Pretraining:
    """Towers and decoder after each parameter went its own way."""
    made = Pretraining(begin(towers, pooling=pooling), settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return made


# Batches


def test_both_texts_are_cropped_and_masked_each_for_itself(tokenizer: Tokenizer) -> None:
    given = drawn(60)

    made = make_batch(given, tokenizer, BOTH, np.random.default_rng(1))

    for part, texts, longest in ((made.passage, given.texts, 20), (made.query, given.contexts, 10)):
        whole, asked = part.whole()
        assert part.tokens.ids.shape[1] == longest
        assert torch.equal(whole.mask, part.tokens.mask)
        assert torch.equal(asked, torch.where(whole.mask, whole.ids, IGNORED))
        for ids, mask, labels, text in zip(whole.ids, whole.mask, part.labels, texts, strict=True):
            original = ids[mask].tolist()
            assert (original[0], original[-1], len(original)) == (CLS, SEP, min(longest, len(text) + 2))
            assert any(list(text[left : left + len(original) - 2]) == original[1:-1] for left in range(len(text)))
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
    made = batch(tokenizer, dataclasses.replace(DENSE, query_target=target))

    assert made.targets == targets
    assert made.rows(1, 3).targets == targets


# Losses, slowly


def slow_bottleneck(logits: Array, embeddings: Array, kind: str | None) -> Array:
    """The mean of all words' embeddings, weighted by what is strongest at any position."""
    weights = []
    for word in range(logits.shape[1]):
        strongest = max(row[word] for row in logits)
        weights.append(math.exp(strongest) if kind == "softmax" else math.log(1 + max(0.0, strongest)))
    total = sum(weights) + (0 if kind == "softmax" else 1e-4)
    return np.array(sum(weight / total * embeddings[word] for word, weight in enumerate(weights)))


def slow_losses(made: Pretraining, given: Batch, settings: Settings, pooling: Pooling) -> dict[str, list[float]]:
    """The terms of each loss."""
    towers = {"query": numbers(made.encoder.query), "passage": numbers(made.encoder.passage)}
    readers = {"query": "passage", "passage": "query"} if settings.switched else {each: each for each in towers}
    decoded = {"passage": "query", "query": settings.query_target}
    parts = {"query": given.query, "passage": given.passage}
    d = numbers(made.decoder)
    found: dict[str, list[float]] = {}
    for role, part in parts.items():
        w = towers[readers[role]]
        for row, (ids, mask, labels) in enumerate(zip(part.tokens.ids, part.tokens.mask, part.labels, strict=True)):
            hidden = bert_layers(w, ids[mask].tolist())[-1]
            logits = vocabulary(hidden, w)
            found.setdefault(f"mlm_{role}", []).extend(
                -log_softmax(logits)[place, label] for place, label in enumerate(labels[mask].tolist()) if label >= 0
            )
            if decoded[role] == "none":
                continue
            target = parts[decoded[role]].whole()[0]
            text = target.ids[row][target.mask[row]].tolist()
            words = w["bert.embeddings.word_embeddings.weight"]
            vectors = {
                "dense": hidden[0] if pooling == "cls" else hidden.mean(0),
                "lexical": slow_bottleneck(logits[1:-1], words, settings.lexical_bottleneck),
            }
            for view in settings.bottlenecks:
                terms = slow_decoder(w, d, vectors[view], text, settings.window)
                found.setdefault(f"decode_{role}_{view}", []).extend(terms)
    return found


@pytest.mark.parametrize(
    ("variant", "towers"),
    [*((variant, towers) for variant in VARIANTS for towers in ("mixture", "separate")), ("l1", "siamese")],
)
@torch.no_grad()
def test_losses_slowly(tokenizer: Tokenizer, variant: str, towers: Towers) -> None:
    pooling: Pooling = "mean" if variant == "swap" else "cls"
    settings = dataclasses.replace(BOTH, **VARIANTS[variant])
    made, given = objective(settings, towers, pooling=pooling).eval(), batch(tokenizer, settings)

    vectors, losses = made.encode(given)

    expected = slow_losses(made, given, settings, pooling)
    found = {name: loss.item() for name, loss in losses.items()}
    assert found == pytest.approx({name: np.mean(terms) for name, terms in expected.items()}, rel=3e-5)
    for name, terms in expected.items():
        assert given.num_terms(name) == len(terms) == sum(given.rows(n, n + 1).num_terms(name) for n in range(5))
    assert vectors == ()
    assert made.compare(vectors, given) == {}


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
    assert torch.equal(maxima(logits[read], read.sum(1)), torch.stack(expected))
    assert between_specials(pad([[CLS, SEP]]).mask).tolist() == [[False, False]]


@pytest.mark.parametrize("kind", ["l1", "softmax"])
def test_texts_without_words(tokenizer: Tokenizer, kind: Any) -> None:
    settings = dataclasses.replace(BOTH, lexical_bottleneck=kind)
    made, given = (
        objective(settings),
        make_batch(RawBatch([[], []], [[], [20]]), tokenizer, settings, np.random.default_rng(0)),
    )

    losses = made.encode(given)[1]
    sum(losses.values()).backward()

    assert losses["mlm_passage"] == 0
    assert all(loss.isfinite() for loss in losses.values())
    assert all(each.grad is None or each.grad.isfinite().all() for each in made.parameters())


# What reaches what


@pytest.mark.parametrize("settings", [DENSE, LEXICAL], ids=["dense", "lexical"])
def test_the_decoder_hears_of_a_text_through_its_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, given = objective(settings), batch(tokenizer, settings)
    hidden: list[Tensor] = []

    def kept(forward: Any) -> Any:
        def of(ids: Tensor, mask: Tensor) -> Tensor:
            hidden.append(forward(ids, mask).detach().requires_grad_())
            return hidden[-1]

        return of

    for tower in (made.encoder.query, made.encoder.passage):
        monkeypatch.setattr(tower.bert, "forward", kept(tower.bert.forward))
    _, losses = made.encode(given)

    for role, part, other in (("query", given.query, 1), ("passage", given.passage, 0)):
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


def touched(made: Pretraining, given: Batch, role: str) -> set[str]:
    """Which parameters the losses of one kind of text train, of the towers by `query.` and `passage.`."""
    made.zero_grad()
    losses = made.encode(given)[1]
    sum(loss for name, loss in losses.items() if role in name).backward()
    named = [(f"{tower}.{name}", each) for tower in ("query", "passage")
             for name, each in getattr(made.encoder, tower).named_parameters()]  # fmt: skip
    return {name for name, each in named if each.grad is not None and each.grad.any()}


@pytest.mark.parametrize("switched", [False, True])
def test_each_expert_learns_from_one_kind_of_text(tokenizer: Tokenizer, switched: bool) -> None:
    settings = dataclasses.replace(BOTH, switched=switched)
    made, given = objective(settings), batch(tokenizer, settings)

    for role, other in (("query", "passage"), ("passage", "query")):
        reader, idle = (other, role) if switched else (role, other)
        names = touched(made, given, role)
        assert f"{reader}.bert.encoder.layer.0.intermediate.dense.weight" in names
        assert not any("intermediate" in name or name.endswith("1.output.LayerNorm.weight") for name in names
                       if name.startswith(idle))  # fmt: skip
        assert {f"{each}.bert.encoder.layer.1.attention.self.value.weight" for each in (reader, idle)} <= names
        assert {f"{each}.cls.predictions.bias" for each in (reader, idle)} <= names


@pytest.mark.parametrize("switched", [False, True])
def test_separate_towers_have_the_decoders_layers_alone_in_common(tokenizer: Tokenizer, switched: bool) -> None:
    settings = dataclasses.replace(BOTH, switched=switched, query_target="passage")
    made, given = objective(settings, "separate"), batch(tokenizer, settings)

    for role, other in (("query", "passage"), ("passage", "query")):
        names = touched(made, given, role)
        assert {name.partition(".")[0] for name in names} == {other if switched else role}
        assert all(each.grad is not None and each.grad.any() for name, each in made.decoder.named_parameters()
                   if not name.endswith("key.bias"))  # fmt: skip


def test_a_step_on_passages_leaves_the_queries_expert_as_it_is(tokenizer: Tokenizer) -> None:
    made, given = objective(dataclasses.replace(BOTH, query_target="none")), batch(tokenizer, BOTH)
    layer = made.encoder.query.bert.encoder.layer[0]
    expert, attention = (each.weight.detach().clone() for each in (layer.output.dense, layer.attention.output.dense))

    made.losses("passage", given)["decode_passage_dense"].backward()
    torch.optim.SGD(made.parameters(), lr=0.1).step()

    assert torch.equal(layer.output.dense.weight, expert)
    assert not torch.equal(layer.attention.output.dense.weight, attention)


@pytest.mark.parametrize("settings", [DENSE, BOTH], ids=["dense", "both"])
def test_the_vocabulary_head_sees_what_is_asked_and_nothing_twice(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, given = objective(settings), batch(tokenizer, settings)
    seen: dict[str, list[int]] = {}
    for name, owner in (
        ("query", made.encoder.query), ("passage", made.encoder.passage),
        ("decode_query", made.query_decoder), ("decode_passage", made.decoder),
    ):  # fmt: skip

        def counted(hidden: Tensor, name: str = name, head: Any = owner.vocabulary) -> Tensor:
            seen.setdefault(name, []).append(len(hidden))
            return head(hidden)

        monkeypatch.setattr(owner, "vocabulary", counted)

    made.encode(given)

    for role, part in (("query", given.query), ("passage", given.passage)):
        words = int(part.tokens.mask.sum()) - 2 * len(given)
        assert seen[role] == [given.num_terms(f"mlm_{role}") if settings is DENSE else words]
        assert seen[f"decode_{role}"] == [int(given.query.tokens.mask.sum()) - len(given)] * len(settings.bottlenecks)


# Learning


def learned(made: Pretraining, given: Batch, steps: int, seed: int, rate: float = 1e-2) -> list[dict[str, float]]:
    optimiser = torch.optim.Adam(made.train().parameters(), lr=rate)
    losses = []
    for step in range(steps):
        found = gradients(made, given, None, (seed, step))
        losses.append({name: loss.item() for name, loss in found.items()})
        optimiser.step()
        optimiser.zero_grad()
    return losses


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("towers", ["mixture", "separate"])
def test_a_batch_is_learned_by_heart(tokenizer: Tokenizer, towers: Towers) -> None:
    settings = dataclasses.replace(BOTH, query_target="passage")
    torch.manual_seed(0)

    losses = learned(Pretraining(begin(towers, spread=0), settings), batch(tokenizer, settings), 120, seed=0)

    for name, first in losses[0].items():
        assert first > 3
        assert losses[-1][name] < 0.25 * first, name


@pytest.mark.usefixtures("store")
def test_equal_seeds_learn_equally(tokenizer: Tokenizer) -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        made = Pretraining(begin("mixture", dropout=0.1, spread=0), BOTH)
        runs.append(learned(made, batch(tokenizer, BOTH), 3, seed))

    assert runs[0] == runs[1] != runs[2]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("settings", [DENSE, BOTH], ids=["dense", "both"])
def test_a_siamese_encoder_is_a_mixture_of_tied_experts(tokenizer: Tokenizer, settings: Settings) -> None:
    def run(towers: Towers, *, tied: bool) -> list[dict[str, float]]:
        begun = begin(towers, dropout=0.1)
        if tied:
            for own, other in zip(
                begun.encoder.query.bert.encoder.layer, begun.encoder.passage.bert.encoder.layer, strict=True
            ):
                own.intermediate, own.output = other.intermediate, other.output
        torch.manual_seed(1)
        return learned(Pretraining(begun, settings), batch(tokenizer, settings), 5, seed=0, rate=1e-3)

    siamese, tied, mixture = run("siamese", tied=False), run("mixture", tied=True), run("mixture", tied=False)

    assert siamese == tied
    assert mixture[0] == siamese[0]
    assert mixture[4] != siamese[4]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("towers", ["mixture", "separate"])
def test_chunks_change_neither_losses_nor_gradients(tokenizer: Tokenizer, chunk: int, towers: Towers) -> None:
    found = []
    for size in (None, chunk):
        made = objective(BOTH, towers, spread=0.02).train()
        losses = gradients(made, batch(tokenizer, BOTH, 8), size, (1, 2))
        found.append((losses, {name: each.grad for name, each in made.named_parameters()}))

    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-4)


def test_parameters_have_one_name_each() -> None:
    made = Pretraining(begin("mixture"), BOTH)

    parts = {name.partition(".")[0] for name, _ in made.named_parameters()}
    heads = {id(each) for each in made.parameters()} - {id(each) for each in made.encoder.parameters()}
    assert parts == {"model", "encoder", "decoder"}
    assert heads == {id(each) for each in made.decoder.parameters()} == {id(e) for e in made.query_decoder.parameters()}
    assert not made.eval().query_decoder.training


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bottlenecks": []}, "bottlenecks: expected dense, lexical or both"),
        ({"bottlenecks": ["dense", "dense"]}, "bottlenecks: expected dense, lexical or both"),
        ({"bottlenecks": ["lexical"]}, "lexical_bottleneck: expected l1 or softmax"),
        ({"lexical_bottleneck": "l1"}, "lexical_bottleneck: expected .* else null"),
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"decoder_layers": 0}, "decoder_layers"),
        ({"window": 0}, "window: expected 1 or more"),
        ({"window": -1}, "window"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"query_max_tokens": 2}, "query_max_tokens"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(DENSE, **change)


def test_settings_that_do_not_fit_the_encoder() -> None:
    with pytest.raises(ValueError, match="switched: expected two towers to change places, found one"):
        Pretraining(begin("siamese"), dataclasses.replace(DENSE, switched=True))
    for name in ("max_tokens", "query_max_tokens"):
        with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
            Pretraining(begin("mixture"), dataclasses.replace(DENSE, **{name: SHAPE["max_position_embeddings"] + 1}))


def test_masked_texts_are_rows(tokenizer: Tokenizer) -> None:
    part: Masked = batch(tokenizer, BOTH).passage.rows(2, 4)

    assert len(part) == 2
    assert torch.equal(part.whole()[0].ids, batch(tokenizer, BOTH).passage.whole()[0].ids[2:4])
