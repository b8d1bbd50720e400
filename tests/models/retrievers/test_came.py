"""CAME's experts against the plain BERT, and their competition against loops written from equations 7 to 11."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from models.layers import bert
from models.losses import contrastive_loss
from models.retrievers.came import Competition, Experts, competition_losses
from models.tokens import pad
from tests.tiny import SHAPE, tiny_bert

VIEWS = ("dense", "late", "lexical")
TEXTS = pad([[2, 20, 21, 60, 3], [2, 33, 3], [2, 14, 15, 16, 17, 18, 19, 3]])
SETTINGS = Competition(temperature=0.5, scope="batch", standardised=0.2, scale=1.0)
Scores = dict[str, Tensor]
Scope = Literal["batch", "group"]


def three_layers(*, dropout: float = 0.0) -> bert.BertForMaskedLM:
    """A BERT of random weights."""
    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": 3}
    model = bert.BertForMaskedLM(
        bert.BertConfig(**shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    )
    disturb(model)
    return model


@torch.no_grad()
def disturb(module: nn.Module) -> None:
    """Let each parameter go its own way."""
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)


# Experts


@pytest.mark.parametrize("shared_layers", [0, 1, 2, 3])
@torch.no_grad()
def test_all_experts_start_as_the_plain_bert(shared_layers: int) -> None:
    model = three_layers()

    found = Experts(model, VIEWS, shared_layers)(model, TEXTS)

    expected = model.bert(TEXTS.ids, TEXTS.mask)
    assert tuple(found) == VIEWS
    assert all((hidden - expected).abs().max() == 0 for hidden in found.values())


@pytest.mark.parametrize("shared_layers", [0, 1, 2])
@pytest.mark.parametrize("views", [("lexical", "late", "dense"), ("dense", "lexical"), ("lexical", "late")])
@torch.no_grad()
def test_an_expert_reads_the_shared_layers_and_its_own(views: tuple[str, ...], shared_layers: int) -> None:
    model = three_layers()
    experts = Experts(model, views, shared_layers)
    disturb(experts)

    found = experts(model, TEXTS)

    assert tuple(found) == views
    owner = min(views)  # the first of dense, late, lexical
    for view in views:
        single = three_layers()  # the same weights, then this expert's
        for name, tensor in experts.state_dict().items():
            _, of, inner = name.split(".", 2)
            if of == view:
                single.bert.encoder.layer.state_dict()[inner].copy_(tensor)
        torch.testing.assert_close(found[view], single.bert(TEXTS.ids, TEXTS.mask), atol=0, rtol=0)
        plain = model.bert(TEXTS.ids, TEXTS.mask)
        assert torch.equal(found[view], plain) == (view == owner)


def test_nothing_is_held_but_the_private_layers() -> None:
    model = three_layers()
    layer = model.bert.encoder.layer[2].state_dict()

    experts = Experts(model, VIEWS, 2)

    assert set(experts.state_dict()) == {f"private.{view}.2.{name}" for view in ("late", "lexical") for name in layer}
    assert not {id(each) for each in experts.parameters()} & {id(each) for each in model.parameters()}
    assert len(list(experts.parameters())) == 2 * len(layer)


@pytest.mark.parametrize(("views", "shared_layers"), [(VIEWS, 3), (("lexical",), 1), (("late",), 0)])
def test_where_nothing_is_private_nothing_is_held(views: tuple[str, ...], shared_layers: int) -> None:
    assert not Experts(three_layers(), views, shared_layers).state_dict()


def test_private_layers_are_taken_up_again_by_name() -> None:
    model = three_layers()
    experts, other = Experts(model, VIEWS, 1), Experts(model, VIEWS, 1)
    disturb(experts)

    other.load_state_dict(experts.state_dict())

    for view, hidden in experts(model, TEXTS).items():
        assert torch.equal(other(model, TEXTS)[view], hidden)


@torch.no_grad()
def test_padding_is_never_attended_to() -> None:
    model = three_layers()
    experts = Experts(model, VIEWS, 1)
    disturb(experts)

    padded, alone = experts(model, TEXTS), experts(model, pad([[2, 33, 3]]))

    for view in VIEWS:
        torch.testing.assert_close(padded[view][1, :3], alone[view][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("shared_layers", "runs"), [(0, [3, 3, 3]), (1, [1, 3, 3]), (3, [1, 1, 1])])
def test_shared_layers_run_once(shared_layers: int, runs: list[int]) -> None:
    model = three_layers()
    experts, seen = Experts(model, VIEWS, shared_layers), [0, 0, 0]
    embedded: list[None] = []
    model.bert.embeddings.register_forward_hook(lambda *_: embedded.append(None))

    def counting(number: int) -> Callable[..., None]:
        def count(*_: object) -> None:
            seen[number] += 1

        return count

    for number in range(3):
        copies = [layer for name, layer in experts.named_modules() if name.endswith(f".{number}")]
        for layer in [model.bert.encoder.layer[number], *copies]:
            layer.register_forward_hook(counting(number))
    experts(model, TEXTS)

    assert seen == runs
    assert len(embedded) == 1


@pytest.mark.parametrize("shared_layers", [1, 3])
def test_dropout_is_that_of_bert(shared_layers: int) -> None:
    model = three_layers(dropout=0.5)
    experts = Experts(model, VIEWS, shared_layers)

    torch.manual_seed(1)
    expected = model.bert(TEXTS.ids, TEXTS.mask)
    torch.manual_seed(1)
    found = experts(model, TEXTS)

    assert torch.equal(found["dense"], expected)
    # Below, one drawn mask serves all; above, each expert draws its own.
    assert torch.equal(found["late"], expected) == (shared_layers == 3)
    assert torch.equal(experts.eval()(model.eval(), TEXTS)["late"], model.bert(TEXTS.ids, TEXTS.mask))


@pytest.mark.parametrize("shared_layers", [-1, 3])
def test_shared_layers_out_of_range(shared_layers: int) -> None:
    with pytest.raises(ValueError, match=f"shared_layers: expected 0 to 2, the model's layers, found {shared_layers}"):
        Experts(tiny_bert(), VIEWS, shared_layers)


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
        found = slow_weights([slow_rank(scores[view][query], positive, candidates) for view in scores],
                             settings.temperature)  # fmt: skip
        for view, weight in zip(scores, found, strict=True):
            loss = slow_loss(scores[view][query], positive, contrasted, temperature)
            losses[view] += settings.scale * weight * loss / num_queries
            weights[view] += settings.scale * weight / num_queries
    return losses, weights


def random_scores(queries: int, group: int, *, rounded: bool = False, views: tuple[str, ...] = VIEWS) -> Scores:
    random = torch.Generator().manual_seed(queries * 100 + group)
    found = {view: torch.randn(queries, queries * group, generator=random) * 2 for view in views}
    return {view: each.round() if rounded else each for view, each in found.items()}


def random_excluded(queries: int, group: int) -> Tensor:
    """Own hard negatives too; never a positive."""
    excluded = torch.rand(queries, queries * group, generator=torch.Generator().manual_seed(9)) < 0.4
    excluded[torch.arange(queries), torch.arange(queries) * group] = False
    return excluded


def compete(
    scores: Scores, group: int, settings: Competition = SETTINGS, *, progress: float = 1.0, temperature: float = 1.0,
    excluded: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:  # fmt: skip
    return competition_losses(scores, group, settings, progress=progress, temperature=temperature, excluded_QP=excluded)


def ranked(*ranks: tuple[int, ...], passages: int = 8) -> Scores:
    """Scores of one view after another in which each query's positive, first of its group, has these ranks."""
    found = {}
    for view, of_queries in zip(VIEWS, ranks, strict=False):
        rows = torch.zeros(len(of_queries), len(of_queries) * passages)
        for query, rank in enumerate(of_queries):
            own = query * passages
            rows[query, own + 1 : own + rank] = 1.0
            rows[query, own + rank : own + passages] = -1.0
        found[view] = rows
    return found


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

    plain = {view: each.double().tolist() for view, each in scores.items()}
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
    scores = {view: torch.cat([each, torch.tensor([[0.0, 0.0, 1.0, 0.0]])]) for view, each in scores.items()}

    _, of_batch = compete(scores, 2)
    _, of_group = compete(scores, 2, replace(SETTINGS, scope="group"))

    assert of_batch["wins_late"] == pytest.approx((1 + 0.5) / 2)
    assert of_batch["ties"] == 0.5
    assert of_group["wins_late"] == 0.5
    assert of_group["ties"] == 1


@pytest.mark.parametrize("scope", ["batch", "group"])
def test_what_is_excluded_neither_ranks_nor_contrasts(scope: Scope) -> None:
    scores = {"dense": torch.tensor([[0.0, 5.0, -1.0]]), "late": torch.tensor([[0.0, -1.0, -2.0]])}
    without = {view: each[:, [0, 2]] for view, each in scores.items()}
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
    plain = {view: contrastive_loss(each, torch.arange(5) * 3, temperature=0.5) for view, each in scores.items()}

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

    total = sum(each.item() for each in alike.values())
    assert sum(each.item() for each in mild.values()) == pytest.approx(total / 3, rel=1e-5)


def test_a_low_temperature_gives_the_best_expert_all() -> None:
    _, observed = compete(ranked((1, 4), (2, 3), (3, 2)), 8, replace(SETTINGS, temperature=1e-3))

    found = {name: value for name, value in observed.items() if not name.startswith("wins")}
    assert found == {"weight_dense": 0.5, "weight_late": 0.0, "weight_lexical": 0.5, "entropy": 0.0, "ties": 0.0}


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


def test_weights_have_no_gradient() -> None:
    scores = {view: each.requires_grad_() for view, each in random_scores(5, 3).items()}
    weights = {
        view: [compete({each: scores[each][[row]].roll(-3 * row, 1) for each in VIEWS}, 3)[1][f"weight_{view}"]
               for row in range(5)]
        for view in VIEWS
    }  # fmt: skip

    losses, _ = compete(scores, 3)
    torch.stack(list(losses.values())).sum().backward()

    wanted = torch.zeros(5, 15)
    wanted[range(5), range(0, 15, 3)] = 1
    for view, each in scores.items():
        # The gradient of a constant times -log softmax.
        expected = torch.tensor(weights[view])[:, None] * (each.detach().softmax(1) - wanted) / 5
        assert each.grad is not None
        torch.testing.assert_close(each.grad, expected, atol=1e-6, rtol=1e-5)


def test_what_is_observed_by_hand() -> None:
    # Query 0: dense is best; 1: dense and late tie; 2: all tie; 3: lexical is best.
    scores = ranked((1, 2, 5, 3), (2, 2, 5, 2), (8, 4, 5, 1))

    _, observed = compete(scores, 8, replace(SETTINGS, scope="group"))

    assert observed["wins_dense"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)
    assert observed["wins_late"] == pytest.approx((1 / 2 + 1 / 3) / 4)
    assert observed["wins_lexical"] == pytest.approx((1 / 3 + 1) / 4)
    assert observed["ties"] == 0.5
    weights = [slow_weights(list(ranks), 0.5) for ranks in [(1, 2, 8), (2, 2, 4), (5, 5, 5), (3, 2, 1)]]
    entropies = [-sum(weight * math.log(weight) for weight in each) for each in weights]
    assert observed["entropy"] == pytest.approx(sum(entropies) / 4, rel=1e-5)
    assert observed["weight_dense"] == pytest.approx(sum(each[0] for each in weights) / 4, rel=1e-5)
    assert all(type(value) is float for value in observed.values())


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


def view_scores(model: bert.BertForMaskedLM, experts: Experts) -> Scores:
    """Two queries with two passages each, by the similarities of equations 4 to 6."""
    torch.manual_seed(3)
    queries, passages = (pad(torch.randint(5, 60, (rows, 6)).tolist()) for rows in (2, 4))
    hidden_q, hidden_p = experts(model, queries), experts(model, passages)
    terms = [model.vocabulary(each["lexical"]).relu().log1p().amax(1) for each in (hidden_q, hidden_p)]
    return {
        "dense": hidden_q["dense"][:, 0] @ hidden_p["dense"][:, 0].T,
        "late": torch.einsum("qih,pjh->qpij", hidden_q["late"], hidden_p["late"]).amax(3).sum(2),
        "lexical": terms[0] @ terms[1].T,
    }


def gradients(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(each) if grad is None else grad for each, grad in zip(parameters, found, strict=True)]


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
        assert any(each.abs().max() > 0 for each in alone)
        for one, other in zip(gradients(total, own[view]), alone, strict=True):
            torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)
        for other_view in set(VIEWS) - {view}:
            assert all((each == 0).all() for each in gradients(losses[other_view], own[view]))
    parts = [gradients(losses[view], trunk) for view in VIEWS]
    assert all(any(each.abs().max() > 0 for each in part) for part in parts)
    for whole, *each in zip(gradients(total, trunk), *parts, strict=True):
        torch.testing.assert_close(whole, torch.stack(each).sum(0), atol=1e-6, rtol=1e-4)
