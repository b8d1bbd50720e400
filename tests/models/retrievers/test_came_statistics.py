"""The statistics, gradients and settings of CAME's competition."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from models.layers.bert import BertForMaskedLM
from models.retrievers.came import Experts
from models.tokens import pad
from tests.models.retrievers.test_came import VIEWS, disturb, three_layers
from tests.models.retrievers.test_came_competition import SETTINGS, Scores, compete, random_scores, ranked, slow_weights


def test_weights_have_no_gradient() -> None:
    scores = {view: score.requires_grad_() for view, score in random_scores(5, 3).items()}
    weights = {
        view: [compete({score: scores[score][[row]].roll(-3 * row, 1) for score in VIEWS}, 3)[1][f"weight_{view}"]
               for row in range(5)]
        for view in VIEWS
    }  # fmt: skip

    losses, _ = compete(scores, 3)
    torch.stack(list(losses.values())).sum().backward()

    wanted = torch.zeros(5, 15)
    wanted[range(5), range(0, 15, 3)] = 1
    for view, score in scores.items():
        # The gradient of a constant times -log softmax.
        expected = torch.tensor(weights[view])[:, None] * (score.detach().softmax(1) - wanted) / 5
        assert score.grad is not None
        torch.testing.assert_close(score.grad, expected, atol=1e-6, rtol=1e-5)


def test_what_is_observed_by_hand() -> None:
    # Query 0: dense is best; 1: dense and late tie; 2: all tie; 3: lexical is best.
    scores = ranked((1, 2, 5, 3), (2, 2, 5, 2), (8, 4, 5, 1))

    _, observed = compete(scores, 8, replace(SETTINGS, scope="group"))

    assert observed["wins_dense"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)
    assert observed["wins_late"] == pytest.approx((1 / 2 + 1 / 3) / 4)
    assert observed["wins_lexical"] == pytest.approx((1 / 3 + 1) / 4)
    assert observed["ties"] == 0.5
    weights = [slow_weights(list(ranks), 0.5) for ranks in [(1, 2, 8), (2, 2, 4), (5, 5, 5), (3, 2, 1)]]
    entropies = [-sum(weight * math.log(weight) for weight in row) for row in weights]
    assert observed["entropy"] == pytest.approx(sum(entropies) / 4, rel=1e-5)
    assert observed["weight_dense"] == pytest.approx(sum(weight[0] for weight in weights) / 4, rel=1e-5)


def test_entropy_is_that_of_the_shares_whatever_the_scale() -> None:
    scores = random_scores(5, 3)

    _, observed = compete(scores, 3)
    _, scaled = compete(scores, 3, replace(SETTINGS, scale=3.0))

    assert scaled["entropy"] == pytest.approx(observed["entropy"], rel=1e-6)
    assert scaled["weight_late"] == pytest.approx(3 * observed["weight_late"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"temperature": 0.0}, "temperature"), ({"temperature": math.nan}, "temperature"), ({"scale": 0.0}, "scale"),
     ({"standardised": -0.1}, "standardised"), ({"standardised": 20.0}, "standardised")],
)  # fmt: skip
def test_settings_out_of_range(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **changes)  # type: ignore[arg-type]


# Both: who learns from what


def view_scores(model: BertForMaskedLM, experts: Experts) -> Scores:
    """Two queries with two passages each, by the similarities of equations 4 to 6."""
    torch.manual_seed(3)
    queries, passages = (pad(torch.randint(5, 60, (rows, 6)).tolist()) for rows in (2, 4))
    hidden_q, hidden_p = experts(model, queries), experts(model, passages)
    terms = [model.vocabulary(row["lexical"]).relu().log1p().amax(1) for row in (hidden_q, hidden_p)]
    return {
        "dense": hidden_q["dense"][:, 0] @ hidden_p["dense"][:, 0].T,
        "late": torch.einsum("qih,pjh->qpij", hidden_q["late"], hidden_p["late"]).amax(3).sum(2),
        "lexical": terms[0] @ terms[1].T,
    }


def gradients(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    results = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(parameter) if grad is None else grad
        for parameter, grad in zip(parameters, results, strict=True)
    ]


@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_an_experts_own_layers_learn_from_its_loss_and_shared_ones_from_all(progress: float) -> None:
    model = three_layers()
    experts = Experts(model, VIEWS, 2)
    disturb(experts)
    layers = model.bert.encoder.layer
    own = {"dense": list(layers[2].parameters()), "late": list(experts.private["late"].parameters()),
           "lexical": list(experts.private["lexical"].parameters())}  # fmt: skip
    trunk = [*layers[0].parameters(), *layers[1].parameters()]

    losses, _ = compete(view_scores(model, experts), 2, progress=progress, temperature=20.0)
    total = torch.stack(list(losses.values())).sum()

    for view in VIEWS:
        alone = gradients(losses[view], own[view])
        assert any(tensor.abs().max() > 0 for tensor in alone)
        for gradient, other in zip(gradients(total, own[view]), alone, strict=True):
            torch.testing.assert_close(gradient, other, atol=1e-7, rtol=1e-5)
        for other_view in set(VIEWS) - {view}:
            assert all((gradient == 0).all() for gradient in gradients(losses[other_view], own[view]))
    parts = [gradients(losses[view], trunk) for view in VIEWS]
    assert all(any(tensor.abs().max() > 0 for tensor in part) for part in parts)
    for whole, *terms in zip(gradients(total, trunk), *parts, strict=True):
        torch.testing.assert_close(whole, torch.stack(terms).sum(0), atol=1e-6, rtol=1e-4)
