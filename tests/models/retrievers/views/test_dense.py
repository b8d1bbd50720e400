"""The dense view: pooled, projected, and compared in single precision."""

import pytest
import torch

from models.representation import Pooling, Representation
from models.retrievers.views.dense import DenseSettings, DenseView
from models.tokens import pad
from tests.tiny import SHAPE, tiny_bert

TOKENS = pad([[2, 60, 61, 62, 3], [2, 63, 3], [2, 3]])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(("dim", "bias"), [(None, False), (7, False), (7, True)])
def test_vectors_and_scores_by_the_formula(pooling: Pooling, dim: int | None, bias: bool) -> None:
    model = tiny_bert()
    view = DenseView(model.config, DenseSettings(dim=dim, bias=bias), pooling)
    if bias and view.projection is not None:
        torch.nn.init.normal_(view.projection.bias)
    hidden = model.bert(TOKENS.ids, TOKENS.mask).detach()

    queries, passages = (view(hidden, TOKENS, role, model) for role in ("query", "passage"))

    assert (queries.lexical, queries.tokens, queries.token_mask, queries.token_ids) == (None,) * 4
    wanted = []
    for row, length in enumerate([5, 3, 2]):
        states = hidden[row, :length].double()
        vector = states[0] if pooling == "cls" else sum(states) / length
        if view.projection is not None:
            vector = torch.stack([sum(w * x for w, x in zip(row, vector, strict=True))
                                  for row in view.projection.weight.detach().double()])  # fmt: skip
            vector = vector + view.projection.bias.detach().double() if bias else vector
        wanted.append(vector)
    assert queries.dense is not None
    assert queries.dense.shape == (3, dim or SHAPE["hidden_size"])
    torch.testing.assert_close(queries.dense.double(), torch.stack(wanted), rtol=1e-5, atol=1e-5)
    scores = torch.tensor([[sum(a * b for a, b in zip(q, p, strict=True)) for p in wanted] for q in wanted])
    torch.testing.assert_close(view.similarity(queries, passages), scores.float(), rtol=1e-4, atol=1e-4)


def test_the_projection_is_one_matrix_that_starts_as_berts_do() -> None:
    torch.manual_seed(0)
    view = DenseView(tiny_bert().config, DenseSettings(dim=384), "cls")

    assert [(name, parameter.shape) for name, parameter in view.named_parameters()] == [
        ("projection.weight", (384, 32))
    ]
    assert view.projection is not None
    assert view.projection.weight.std().item() == pytest.approx(0.02, rel=0.03)
    biased = DenseView(tiny_bert().config, DenseSettings(dim=384, bias=True), "cls").projection
    assert biased is not None
    assert not biased.bias.any()
    assert not list(DenseView(tiny_bert().config, DenseSettings(dim=None), "cls").parameters())


def test_autocast_rounds_nothing() -> None:
    model = tiny_bert()
    view = DenseView(model.config, DenseSettings(dim=9), "mean")
    hidden = torch.randn(3, 5, 32)

    def scores() -> torch.Tensor:
        built = view(hidden, TOKENS, "query", model)
        return view.similarity(built, built)

    exact = scores()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scores(), exact)
    assert exact.dtype == torch.float32
    built = Representation(dense=torch.full((1, 2), 300.0, dtype=torch.float16))
    assert view.similarity(built, built).item() == 180_000  # more than half precision holds


def test_settings_that_are_refused() -> None:
    with pytest.raises(ValueError, match="dim: expected 1 or more"):
        DenseSettings(dim=0)
    with pytest.raises(ValueError, match="bias: a bias belongs to a projection"):
        DenseSettings(dim=None, bias=True)
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight: expected a number above 0"):
            DenseSettings(dim=None, weight=weight)
    view = DenseView(tiny_bert().config, DenseSettings(dim=None), "cls")
    with pytest.raises(ValueError, match="expected a dense part on both sides"):
        view.similarity(Representation(), Representation(dense=torch.ones(1, 2)))
