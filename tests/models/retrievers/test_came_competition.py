"""The competition of CAME's experts: weights, ranks, statistics and gradients (equations 9 to 11)."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from models.losses import contrastive_loss
from models.retrievers.came import Competition, competition_losses
from tests.models.retrievers.test_came import VIEWS

SETTINGS = Competition(temperature=0.5, scope="batch", standardised=0.2, scale=1.0)


Scores = dict[str, Tensor]


Scope = Literal["batch", "group"]


# The competition, in Python's floats


def slow_loss(row: list[float], positive: int, columns: list[int], temperature: float) -> float:
    """Equations 7 and 8."""
    total = sum(math.exp(row[column] / temperature) for column in columns)
    return -math.log(math.exp(row[positive] / temperature) / total)


def slow_rank(row: list[float], positive: int, candidates: list[int]) -> int:
    return 1 + sum(row[candidate] > row[positive] for candidate in candidates)


def slow_weights(ranks: list[int], tau: float) -> list[float]:
    """Equation 11."""
    powers = [math.exp((1 / rank) / tau) for rank in ranks]
    return [power / sum(powers) for power in powers]


def slow_competition(
    scores: dict[str, list[list[float]]], group: int, settings: Competition, temperature: float,
    excluded: list[list[bool]],
) -> tuple[dict[str, float], dict[str, float]]:  # fmt: skip
    """Equation 10's terms and each view's mean weight; positives lie first in their groups."""
    any_view = next(iter(scores.values()))
    num_queries, num_passages = len(any_view), len(any_view[0])
    losses, weights = dict.fromkeys(scores, 0.0), dict.fromkeys(scores, 0.0)
    for query in range(num_queries):
        positive = query * group
        contrasted = [column for column in range(num_passages) if not excluded[query][column]]
        own = [column for column in contrasted if positive <= column < positive + group]
        candidates = contrasted if settings.scope == "batch" else own
        results = slow_weights([slow_rank(scores[view][query], positive, candidates) for view in scores],
                             settings.temperature)  # fmt: skip
        for view, weight in zip(scores, results, strict=True):
            loss = slow_loss(scores[view][query], positive, contrasted, temperature)
            losses[view] += settings.scale * weight * loss / num_queries
            weights[view] += settings.scale * weight / num_queries
    return losses, weights


def random_scores(queries: int, group: int, *, rounded: bool = False, views: tuple[str, ...] = VIEWS) -> Scores:
    random = torch.Generator().manual_seed(queries * 100 + group)
    results = {view: torch.randn(queries, queries * group, generator=random) * 2 for view in views}
    return {view: values.round() if rounded else values for view, values in results.items()}


def random_excluded(queries: int, group: int) -> Tensor:
    """Own hard negatives too; never a positive."""
    excluded = torch.rand(queries, queries * group, generator=torch.Generator().manual_seed(9)) < 0.4
    excluded[torch.arange(queries), torch.arange(queries) * group] = False
    return excluded


def compete(
    scores: Scores, group: int, settings: Competition = SETTINGS, *, progress: float = 1.0, temperature: float = 1.0,
    excluded: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:  # fmt: skip
    losses, statistics = competition_losses(
        scores, group, settings, progress=progress, temperature=temperature, excluded_QP=excluded
    )
    assert not any(value.requires_grad for value in statistics.values())
    return losses, {name: value.item() for name, value in statistics.items()}


def ranked(*ranks: tuple[int, ...], passages: int = 8) -> Scores:
    """Scores of one view after another in which each query's positive, first of its group, has these ranks."""
    results = {}
    for view, of_queries in zip(VIEWS, ranks, strict=False):
        rows = torch.zeros(len(of_queries), len(of_queries) * passages)
        for query, rank in enumerate(of_queries):
            own = query * passages
            rows[query, own + 1 : own + rank] = 1.0
            rows[query, own + rank : own + passages] = -1.0
        results[view] = rows
    return results


@pytest.mark.parametrize("scope", ["batch", "group"])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("queries", "group", "views", "tau", "scale", "temperature"),
    [(5, 3, VIEWS, 0.5, 1.0, 1.0), (4, 8, ("lexical", "dense"), 2.0, 3.0, 0.7), (1, 4, VIEWS, 0.2, 1.0, 1.0),
     (3, 1, VIEWS, 0.5, 1.0, 1.0), (6, 2, ("late",), 0.5, 1.0, 2.0)],
)  # fmt: skip
def test_the_competition_by_the_formulas(
    scope: Scope, rounded: bool, masked: bool,
    queries: int, group: int, views: tuple[str, ...], tau: float, scale: float, temperature: float,
) -> None:  # fmt: skip
    scores = random_scores(queries, group, rounded=rounded, views=views)
    excluded = random_excluded(queries, group) if masked else torch.zeros(queries, queries * group, dtype=torch.bool)
    settings = Competition(temperature=tau, scope=scope, standardised=0.0, scale=scale)

    losses, observed = compete(
        scores, group, settings, temperature=temperature, excluded=excluded if masked else None, progress=0.0
    )

    plain = {view: score.double().tolist() for view, score in scores.items()}
    expected, weights = slow_competition(plain, group, settings, temperature, excluded.tolist())
    assert tuple(losses) == views
    for view in views:
        assert losses[view].item() == pytest.approx(expected[view], rel=2e-5, abs=1e-6)
        assert observed[f"weight_{view}"] == pytest.approx(weights[view], rel=1e-5)


@pytest.mark.parametrize("scope", ["batch", "group"])
@pytest.mark.parametrize(
    ("tau", "ranks", "weights"),
    [(0.5, (1, 2, 8), (0.649, 0.239, 0.113)), (0.5, (1, 1, 8), (0.46, 0.46, 0.08)), (0.5, (3, 3, 3), (1 / 3,) * 3),
     (2.0, (1, 2, 8), (0.412, 0.321, 0.266)), (2.0, (8, 1, 2), (0.266, 0.412, 0.321))],
)  # fmt: skip
def test_weights_by_hand(scope: Scope, tau: float, ranks: tuple[int, ...], weights: tuple[float, ...]) -> None:
    scores = ranked(*((rank,) for rank in ranks))

    losses, observed = compete(scores, 8, replace(SETTINGS, temperature=tau, scope=scope))

    for view, weight in zip(VIEWS, weights, strict=True):
        assert observed[f"weight_{view}"] == pytest.approx(weight, abs=1e-3)
        plain = contrastive_loss(scores[view], torch.tensor([0]))
        assert losses[view].item() == pytest.approx(weight * plain.item(), rel=1e-2)
    assert sum(observed[f"weight_{view}"] for view in VIEWS) == pytest.approx(1, abs=1e-6)


def test_other_queries_passages_rank_in_the_batch_and_not_in_the_group() -> None:
    # Query 0's positive scores 2: its own negative is below, the other query's two passages are above for dense alone.
    scores = {"dense": torch.tensor([[2.0, 1.0, 3.0, 3.0]]), "late": torch.tensor([[2.0, 1.0, 0.0, 0.0]])}
    scores = {view: torch.cat([score, torch.tensor([[0.0, 0.0, 1.0, 0.0]])]) for view, score in scores.items()}

    _, of_batch = compete(scores, 2)
    _, of_group = compete(scores, 2, replace(SETTINGS, scope="group"))

    assert of_batch["wins_late"] == pytest.approx((1 + 0.5) / 2)
    assert of_batch["ties"] == 0.5
    assert of_group["wins_late"] == 0.5
    assert of_group["ties"] == 1


@pytest.mark.parametrize("scope", ["batch", "group"])
def test_what_is_excluded_neither_ranks_nor_contrasts(scope: Scope) -> None:
    scores = {"dense": torch.tensor([[0.0, 5.0, -1.0]]), "late": torch.tensor([[0.0, -1.0, -2.0]])}
    without = {view: score[:, [0, 2]] for view, score in scores.items()}
    settings, excluded = replace(SETTINGS, scope=scope), torch.tensor([[False, True, False]])

    losses, observed = compete(scores, 3, settings, excluded=excluded)
    expected, of_fewer = compete(without, 2, settings)

    assert observed == pytest.approx(of_fewer)
    assert observed["ties"] == 1
    for view, loss in losses.items():
        assert loss.item() == pytest.approx(expected[view].item(), rel=1e-6)


def test_at_first_all_learn_alike() -> None:
    scores = random_scores(5, 3)
    settings = replace(SETTINGS, scale=3.0)
    plain = {view: contrastive_loss(score, torch.arange(5) * 3, temperature=0.5) for view, score in scores.items()}

    before, of_all = compete(scores, 3, settings, progress=0.1999, temperature=0.5)
    after, of_competing = compete(scores, 3, settings, progress=0.2, temperature=0.5)

    for view in VIEWS:
        assert before[view].item() == pytest.approx(plain[view].item(), rel=1e-6)
        assert after[view].item() != pytest.approx(plain[view].item(), rel=1e-3)
        assert of_all[f"weight_{view}"] == 1
    assert of_all["entropy"] == pytest.approx(math.log(3))
    assert set(of_all) == set(of_competing)
    assert [of_all[name] == of_competing[name] for name in ("wins_dense", "wins_late", "ties")] == [True] * 3


def test_without_a_standardised_share_they_compete_from_the_first_step() -> None:
    scores = random_scores(5, 3)

    first, _ = compete(scores, 3, replace(SETTINGS, standardised=0.0), progress=0.0)
    later, _ = compete(scores, 3, progress=0.7)

    assert first == later


def test_a_high_temperature_gives_all_the_same() -> None:
    scores = random_scores(6, 4)

    mild, _ = compete(scores, 4, replace(SETTINGS, temperature=1e6))
    alike, _ = compete(scores, 4, progress=0.0)

    total = sum(loss.item() for loss in alike.values())
    assert sum(loss.item() for loss in mild.values()) == pytest.approx(total / 3, rel=1e-5)


def test_a_low_temperature_gives_the_best_expert_all() -> None:
    _, observed = compete(ranked((1, 4), (2, 3), (3, 2)), 8, replace(SETTINGS, temperature=1e-3))

    results = {name: value for name, value in observed.items() if not name.startswith("wins")}
    assert results == {"weight_dense": 0.5, "weight_late": 0.0, "weight_lexical": 0.5, "entropy": 0.0, "ties": 0.0}


@pytest.mark.parametrize("progress", [0.0, 1.0])
@pytest.mark.parametrize("view", VIEWS)
def test_a_single_expert_is_plainly_contrasted(view: str, progress: float) -> None:
    scores = random_scores(5, 3, views=(view,))
    excluded = random_excluded(5, 3)

    losses, observed = compete(scores, 3, progress=progress, temperature=0.3, excluded=excluded)

    plain = contrastive_loss(scores[view], torch.arange(5) * 3, temperature=0.3, excluded_QP=excluded)
    assert losses[view].item() == pytest.approx(plain.item(), rel=1e-6)
    assert observed == {f"weight_{view}": 1, f"wins_{view}": 1, "entropy": 0, "ties": 0}


def test_a_constant_added_to_an_experts_scores_of_a_query_changes_nothing() -> None:
    scores = random_scores(5, 3, rounded=True)
    shifted = {**scores, "late": scores["late"] + torch.tensor([4.0, 0.0, -7.0, 0.5, 100.0])[:, None]}

    losses, observed = compete(scores, 3)
    same, seen = compete(shifted, 3)

    assert observed == seen
    for view in VIEWS:
        assert losses[view].item() == pytest.approx(same[view].item(), rel=1e-5)
