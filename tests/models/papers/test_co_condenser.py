"""coCondenser: both sides of its pairs, and its contrast against loops written from the formulas."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.masking import IGNORED
from models.objective import Losses
from models.papers import condenser
from models.papers.co_condenser import Batch, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.models.masked_crops import masked_crop
from tests.slow import Array, bert_layer, bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import SHAPE, random_texts, start

SETTINGS = Settings(
    head_layers=2, head_from=1, mask_rate=0.3, temperature=1.0, masked_lm_weight=1.0, max_tokens=20,
    context_max_tokens=10,
)  # fmt: skip
NAMES = {"mlm", "head", "contrast"}


def drawn(pairs: int = 5, seed: int = 0) -> RawBatch:
    random = np.random.default_rng(seed)
    return RawBatch(random_texts(pairs, 30, random), random_texts(pairs, 12, random))


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    return make_batch(drawn(seed=seed), tokenizer, settings, RowRandom(seed, 0))


def objective(
    settings: Settings = SETTINGS, *, pooling: Pooling = "cls", dropout: float = 0.0, spread: float = 0.2
) -> Pretraining:
    model = Pretraining(start(pooling=pooling, dropout=dropout, spread=spread), settings)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


def losses_of(model: Pretraining, inputs: Batch) -> Losses:
    vectors, local = model.encode(inputs)
    return {**local, **model.compare(vectors, inputs)}


# Batches


def test_both_sides_are_masked_crops_of_their_own_length(tokenizer: Tokenizer) -> None:
    inputs = drawn(40)

    batch = make_batch(inputs, tokenizer, SETTINGS, RowRandom(0, 0))

    for side, sources, longest in ((batch.text, inputs.texts, 20), (batch.context, inputs.contexts, 10)):
        assert side.tokens.ids.shape == side.labels.shape == (40, longest)
        for ids, mask, labels, source in zip(side.tokens.ids, side.tokens.mask, side.labels, sources, strict=True):
            masked_crop(ids, mask, labels, source, longest)
        assert 0 < (side.labels != IGNORED).sum() <= 0.4 * side.tokens.mask.sum()


def test_rows_of_a_batch_and_equal_seeds(tokenizer: Tokenizer) -> None:
    whole, again, other = batch(tokenizer), batch(tokenizer), batch(tokenizer, seed=1)

    assert len(whole) == 5
    assert torch.equal(whole.context.labels, again.context.labels)
    assert not torch.equal(whole.text.labels, other.text.labels)
    assert torch.equal(whole.rows(1, 3).context.tokens.ids, whole.context.tokens.ids[1:3])
    for loss in ("mlm", "head"):
        expected_rows = (whole.text.labels != IGNORED).sum() + (whole.context.labels != IGNORED).sum()
        assert whole.num_terms(loss) == int(expected_rows)
        assert whole.num_terms(loss) == sum(whole.rows(n, n + 1).num_terms(loss) for n in range(5))


# The losses


def slow_text(
    model: Pretraining, masked: list[int], expected_rows: list[int], pooling: Pooling
) -> tuple[Array, list[float], list[float]]:
    """h_0^L, and the cross-entropies of phi(h_i^L) and of phi(h_i^N) at the masked positions."""
    w, h = numbers(model.model), numbers(model.head)
    states = bert_layers(w, masked)
    vector = states[-1][0] if pooling == "cls" else states[-1].mean(0)
    x = states[model.settings.head_from].copy()
    x[0] = vector
    for layer in range(model.settings.head_layers):
        x = bert_layer(x, h, f"layers.{layer}", [set(range(len(masked)))] * len(masked))
    late, headed = (
        [-log_softmax(vocabulary(hidden, w))[n, label] for n, label in enumerate(expected_rows) if label != IGNORED]
        for hidden in (states[-1], x)
    )
    return vector, late, headed


def slow_contrast(vectors: list[Array], temperature: float) -> float:
    """The mean of equation 5 over x_1, y_1, x_2, y_2 ...; the sum below the line leaves out the text itself."""
    costs = []
    for own, vector in enumerate(vectors):
        scores = {other: vector @ vectors[other] / temperature for other in range(len(vectors)) if other != own}
        partner = own + 1 if own % 2 == 0 else own - 1
        highest = max(scores.values())
        total = sum(math.exp(score - highest) for score in scores.values())
        costs.append(math.log(total) + highest - scores[partner])
    return float(np.mean(costs))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(("temperature", "weight", "head_from"), [(1.0, 1.0, 1), (3.0, 2.0, 0)])
@torch.no_grad()
def test_losses_slowly(
    tokenizer: Tokenizer, temperature: float, weight: float, head_from: int, pooling: Pooling
) -> None:
    settings = dataclasses.replace(
        SETTINGS, temperature=temperature, masked_lm_weight=weight, head_from=head_from, head_layers=1 + head_from
    )
    model, inputs = objective(settings, pooling=pooling).eval(), batch(tokenizer, settings)

    (vectors,), local = model.encode(inputs)
    results = {**local, **model.compare((vectors,), inputs)}

    expected: list[Array] = []
    late: list[float] = []
    headed: list[float] = []
    for row in range(len(inputs)):
        for side in (inputs.text, inputs.context):
            mask = side.tokens.mask[row]
            vector, *costs = slow_text(
                model, side.tokens.ids[row][mask].tolist(), side.labels[row][mask].tolist(), pooling
            )
            expected.append(vector)
            late += costs[0]
            headed += costs[1]
    np.testing.assert_allclose(vectors.numpy(), np.stack(expected), atol=1e-4)
    contrast = slow_contrast(expected, temperature)
    assert contrast > 0.01
    assert {name: loss.item() for name, loss in results.items()} == pytest.approx(
        {"mlm": weight * np.mean(late), "head": weight * np.mean(headed), "contrast": contrast}, rel=3e-5
    )


def test_partners_of_two_pairs_are_one_zero_three_two(tokenizer: Tokenizer) -> None:
    model, inputs = objective(dataclasses.replace(SETTINGS, temperature=0.5)), batch(tokenizer).rows(0, 2)
    vectors = torch.randn(4, SHAPE["hidden_size"], generator=torch.Generator().manual_seed(0))

    result = model.compare((vectors,), inputs)["contrast"]

    scores = vectors @ vectors.T / 0.5
    scores.fill_diagonal_(-math.inf)
    torch.testing.assert_close(result, cross_entropy(scores, torch.tensor([1, 0, 3, 2])))


def test_contrast_by_hand(tokenizer: Tokenizer) -> None:
    model, inputs = objective(), batch(tokenizer).rows(0, 2)
    alike, other = torch.eye(4)[[0, 0, 1, 1]] * math.sqrt(math.log(2)), torch.eye(4)

    # e^(ln 2) for the partner beside 1 and 1; without likeness each of three has a third.
    assert model.compare((alike,), inputs)["contrast"].item() == pytest.approx(math.log(2), rel=1e-6)
    assert model.compare((other,), inputs)["contrast"].item() == pytest.approx(math.log(3), rel=1e-6)


def test_no_text_meets_itself(tokenizer: Tokenizer) -> None:
    model, inputs = objective(), batch(tokenizer)
    vectors = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    longer = torch.cat([vectors, 9 * torch.eye(10)], dim=1)  # each gets a length that no other has a share in

    contrasts = [model.compare((spans,), inputs)["contrast"] for spans in (vectors, longer)]

    torch.testing.assert_close(*contrasts)


def test_the_losses_are_the_same_where_partners_change_places(tokenizer: Tokenizer) -> None:
    model, inputs = objective(), batch(tokenizer)

    results, swapped = (losses_of(model, pair) for pair in (inputs, Batch(inputs.context, inputs.text)))

    assert set(results) == NAMES
    torch.testing.assert_close(results, swapped, atol=1e-5, rtol=1e-5)


def test_the_weight_is_of_the_recoveries_alone(tokenizer: Tokenizer) -> None:
    inputs = batch(tokenizer)
    single, double = (
        losses_of(objective(dataclasses.replace(SETTINGS, masked_lm_weight=weight)), inputs) for weight in (1.0, 2.0)
    )

    for name, share in {"mlm": 2, "head": 2, "contrast": 1}.items():
        torch.testing.assert_close(double[name], share * single[name])


def test_what_each_loss_asks_of_the_last_layer(tokenizer: Tokenizer) -> None:
    model, given = objective(), batch(tokenizer)
    outputs: list[Tensor] = []
    model.model.bert.encoder.layer[-1].register_forward_hook(lambda module, inputs, out: outputs.append(out))
    losses = losses_of(model, given)

    for hidden_NH, side in zip(outputs, (given.text, given.context), strict=True):  # each side once
        mask, first = side.tokens.mask, torch.zeros_like(side.tokens.mask)
        first[:, 0] = True
        reached = {
            name: torch.autograd.grad(loss, hidden_NH, retain_graph=True)[0].abs().amax(-1) > 0
            for name, loss in losses.items()
        }
        assert torch.equal(reached["mlm"], side.labels[mask] != IGNORED)
        assert torch.equal(reached["head"], first[mask])
        assert torch.equal(reached["contrast"], first[mask])


def test_the_vocabulary_head_sees_asked_positions_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, seen = objective(), batch(tokenizer), []
    head = model.model.vocabulary
    monkeypatch.setattr(model.model, "vocabulary", lambda hidden: seen.append(len(hidden)) or head(hidden))

    model.encode(inputs)

    assert seen == [inputs.num_terms("mlm")] * 2


def test_condensers_head_can_be_continued() -> None:
    single = condenser.Pretraining(
        start(), condenser.Settings(head_layers=2, head_from=1, mask_rate=0.15, max_tokens=20)
    )
    shapes = [{name: value.shape for name, value in built.named_parameters()} for built in (single, objective())]

    assert shapes[0] == shapes[1]
    assert any(name.startswith("head.layers.1.") for name in shapes[0])
