"""Training a retriever: each loss by its formula, for every kind of view, whole and in chunks."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch

from models.retrievers.came import Competition
from models.retrievers.examples import Examples
from models.retrievers.objective import Distillation, Finetuning, Flops, ObjectiveSettings
from models.retrievers.retriever import Retriever
from tasks.training.grad_cache import gradients
from tests.models.retrievers.random_examples import examples, exclusions, slow_scores
from tests.models.test_losses import slow_contrast, slow_pairwise
from tests.tiny import RETRIEVERS, SHAPE, tiny_retriever

pytestmark = pytest.mark.usefixtures("one_thread", "store")
PLAIN = ObjectiveSettings(contrasts=["sum"], temperature=4.0)
PRICE = Flops(queries=0.3, passages=0.2, ramp=0.5)
COMPETITION = Competition(temperature=0.5, scope="batch", standardised=0.2, scale=1.0)


@pytest.mark.parametrize("kind", RETRIEVERS)
@pytest.mark.parametrize("masked", [False, True])
def test_each_query_is_contrasted_with_all_passages_of_the_batch(kind: str, masked: bool) -> None:
    retriever = tiny_retriever(kind).eval()
    views = ["sum", *retriever.views]
    objective = Finetuning(retriever, replace(PLAIN, contrasts=views))
    excluded = exclusions(4, 3)
    batch = examples(3, excluded=excluded if masked else None)

    vectors, local = objective.encode(batch)
    losses = objective.compare(vectors, batch)

    assert local == {}
    scores = slow_scores(retriever, batch)
    for view in views:
        expected = slow_contrast(scores[view], [0, 3, 6, 9], 4.0, excluded if masked else None)
        name = "contrastive" if view == "sum" else f"contrast_{view}"
        assert losses[name].item() == pytest.approx(expected, rel=1e-4), view


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_chunks_with_dropout_are_a_direct_pass_under_the_same_seeds(kind: str) -> None:
    retriever = tiny_retriever(kind, dropout=0.2, spread=0.1).train()
    lexical = "lexical" in retriever.views
    objective = Finetuning(retriever, replace(PLAIN, flops=PRICE if lexical else None))
    batch = examples(2, queries=7, excluded=exclusions(7, 2))
    losses = gradients(objective, batch, 3, (3, 5))
    cached = {name: parameter.grad for name, parameter in objective.named_parameters() if parameter.grad is not None}
    objective.zero_grad()

    direct = directly(objective, batch, chunk=3)

    assert set(losses) == set(direct)
    for name, loss in direct.items():
        assert losses[name].item() == pytest.approx(loss, abs=1e-5, rel=1e-5)
    expected = {name: parameter.grad for name, parameter in objective.named_parameters() if parameter.grad is not None}
    assert set(cached) == set(expected)
    scale = max(float(tensor.abs().max()) for tensor in expected.values())
    assert max(float((cached[name] - tensor).abs().max()) for name, tensor in expected.items()) < 1e-5 * scale


@pytest.mark.parametrize("kind", RETRIEVERS)
@pytest.mark.parametrize("chunk", [3, None])
def test_texts_in_the_order_of_their_lengths_have_the_same_losses_and_gradients(kind: str, chunk: int | None) -> None:
    retriever = tiny_retriever(kind, spread=0.1)
    price = PRICE if "lexical" in retriever.views else None
    objective = Finetuning(
        retriever, replace(PLAIN, flops=price, distillation=Distillation(teacher_temperature=1.0, contrast_weight=0.5))
    )
    teacher = torch.randn(7, 2, generator=torch.Generator().manual_seed(4))
    batch = examples(2, queries=7, excluded=exclusions(7, 2), teacher=teacher)
    losses, grads = [], []
    for inputs, size in ((batch, None), (batch.sorted_by_length(), chunk)):
        objective.zero_grad()
        losses.append({name: loss.item() for name, loss in gradients(objective, inputs, size, (3, 5)).items()})
        grads.append(
            {
                name: parameter.grad.clone()
                for name, parameter in objective.named_parameters()
                if parameter.grad is not None
            }
        )

    assert losses[1] == pytest.approx(losses[0], abs=1e-5, rel=1e-5)
    assert set(grads[0]) == set(grads[1])
    scale = max(float(grad.abs().max()) for grad in grads[0].values())
    assert max(float((grads[1][name] - grad).abs().max()) for name, grad in grads[0].items()) < 1e-5 * scale


def test_a_chunk_is_read_without_the_padding_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = Finetuning(tiny_retriever("colbert"), PLAIN), examples(2, queries=8).sorted_by_length()
    lengths = batch.passages.mask.sum(1)
    assert (lengths.diff() >= 0).all()
    assert lengths[0] < lengths[-1]
    assert sorted(lengths.tolist()) == sorted(examples(2, queries=8).passages.mask.sum(1).tolist())
    read, real = [], Retriever.forward
    monkeypatch.setattr(
        Retriever, "forward", lambda self, tokens, role: read.append(tokens.ids.shape) or real(self, tokens, role)
    )

    parts = [objective.encode(batch.rows(start, start + 2))[0] for start in range(0, 8, 2)]

    assert [shape for shape in read if shape[0] == 4] == [(4, int(lengths[end])) for end in (3, 7, 11, 15)]
    assert {part[1].shape[1] for part in parts} == {batch.passages.ids.shape[1]}


def directly(objective: Finetuning, batch: Examples, chunk: int) -> dict[str, float]:
    """One graph over all chunks, each under the seed that the loop gives it."""
    from tasks.training.seeds import mix_seeds

    spans = [(at, min(len(batch), at + chunk)) for at in range(0, len(batch), chunk)]
    passed = []
    for number, span in enumerate(spans):
        torch.manual_seed(mix_seeds(3, 5, number))
        passed.append(objective.encode(batch.rows(*span))[0])
    losses = objective.compare(tuple(torch.cat(vectors) for vectors in zip(*passed, strict=True)), batch)
    torch.stack(list(losses.values())).sum().backward()
    return {name: loss.item() for name, loss in losses.items()}


@pytest.mark.parametrize(
    ("progress", "counts", "share"),
    [
        (0.0, False, 0.0),
        (0.25, False, 0.25),
        (0.5, False, 1.0),
        (0.9, False, 1.0),
        (0.0, True, 0.04),
        (0.45, True, 1.0),
    ],
)
def test_flops_are_the_square_of_mean_weights(progress: float, counts: bool, share: float) -> None:
    retriever = tiny_retriever("splade").eval()
    batch = examples(2, progress=progress, step_share=0.1)
    objective = Finetuning(retriever, replace(PLAIN, flops=replace(PRICE, ramp_counts_step=counts)))

    losses = objective.compare(objective.encode(batch)[0], batch)

    for name, tokens, role, price in (
        ("flops_queries", batch.queries, "query", 0.3), ("flops_passages", batch.passages, "passage", 0.2)
    ):  # fmt: skip
        weights = retriever(tokens, role).lexical.detach().double().numpy()
        expected = sum(
            (sum(abs(weights[n, v]) for n in range(len(weights))) / len(weights)) ** 2
            for v in range(SHAPE["vocab_size"])
        )
        assert losses[name].item() == pytest.approx(share * price * expected, rel=1e-5)
        assert objective.observed[name.replace("flops", "nonzero")] == pytest.approx((weights != 0).sum(1).mean())


@pytest.mark.parametrize("group", [2, 4])
def test_the_pairwise_loss_is_of_each_querys_own_negatives(group: int) -> None:
    retriever = tiny_retriever("hybrid").eval()
    batch = examples(group, excluded=exclusions(4, group))
    objective = Finetuning(retriever, replace(PLAIN, contrasts=["sum", "dense"], contrast_loss="pairwise"))

    losses = objective.compare(objective.encode(batch)[0], batch)

    scores = slow_scores(retriever, batch)
    assert list(losses) == ["contrastive", "contrast_dense"]
    for loss, name in (("contrastive", "sum"), ("contrast_dense", "dense")):
        assert losses[loss].item() == pytest.approx(slow_pairwise(scores[name], group, 4.0), rel=1e-4)


@pytest.mark.parametrize("contrast_weight", [0.0, 0.3])
def test_soft_labels_are_a_cross_entropy_over_the_querys_own_passages(contrast_weight: float) -> None:
    retriever = tiny_retriever("hybrid").eval()
    teacher = torch.randn(4, 3, generator=torch.Generator().manual_seed(4)) * 3
    batch = examples(3, teacher=teacher)
    distillation = Distillation(teacher_temperature=2.0, contrast_weight=contrast_weight)
    objective = Finetuning(retriever, replace(PLAIN, distillation=distillation))

    losses = objective.compare(objective.encode(batch)[0], batch)

    scores = slow_scores(retriever, batch)["sum"]
    expected = 0.0
    for query in range(4):
        wanted = [exp(float(value) / 2.0) for value in teacher[query]]
        own = [float(scores[query, query * 3 + number]) / 4.0 for number in range(3)]
        total = log(sum(exp(value - max(own)) for value in own)) + max(own)
        expected -= sum(weight / sum(wanted) * (value - total) for weight, value in zip(wanted, own, strict=True)) / 4
    assert losses["distillation"].item() == pytest.approx(expected, rel=1e-4)
    contrast = slow_contrast(scores, [0, 3, 6, 9], 4.0, None)
    if contrast_weight:
        assert losses["contrastive"].item() == pytest.approx(contrast_weight * contrast, rel=1e-4)
    else:
        assert set(losses) == {"distillation"}


def test_margins_are_compared_with_those_of_the_teacher() -> None:
    retriever = tiny_retriever("hybrid").eval()
    teacher = torch.randn(4, 3, generator=torch.Generator().manual_seed(4)) * 3
    batch = examples(3, teacher=teacher)
    distillation = Distillation(teacher_temperature=2.0, contrast_weight=0.0, targets="margins")
    objective = Finetuning(retriever, replace(PLAIN, distillation=distillation))

    losses = objective.compare(objective.encode(batch)[0], batch)

    scores = slow_scores(retriever, batch)["sum"]
    expected = 0.0
    for query in range(4):
        for number in (1, 2):
            margin = float(scores[query, query * 3] - scores[query, query * 3 + number]) / 4.0
            expected += (margin - float(teacher[query, 0] - teacher[query, number]) / 2.0) ** 2 / 8
    assert set(losses) == {"distillation"}
    assert losses["distillation"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("progress", [0.1, 0.5])
def test_experts_learn_alike_and_then_compete(progress: float) -> None:
    retriever = tiny_retriever("mixture").eval()
    batch = examples(3, progress=progress)
    objective = Finetuning(retriever, replace(PLAIN, contrasts=[], competition=COMPETITION))

    losses = objective.compare(objective.encode(batch)[0], batch)

    scores = slow_scores(retriever, batch)
    ranks = {
        view: [1 + sum(float(score) > float(row[query * 3]) for score in row) for query, row in enumerate(scores[view])]
        for view in retriever.views
    }
    for view in retriever.views:
        expected = 0.0
        for query in range(4):
            powers = {view: exp(1 / ranks[view][query] / 0.5) for view in retriever.views}
            weight = 1.0 if progress < 0.2 else powers[view] / sum(powers.values())
            expected += weight * slow_contrast(scores[view][query : query + 1], [query * 3], 4.0, None) / 4
        assert losses[f"contrast_{view}"].item() == pytest.approx(expected, rel=1e-4)
    weights = [objective.observed[f"weight_{view}"] for view in retriever.views]
    assert sum(weights) == pytest.approx(3.0 if progress < 0.2 else 1.0)


def test_the_sizes_of_several_views_are_told() -> None:
    retriever = tiny_retriever("hybrid").eval()
    objective, batch = Finetuning(retriever, PLAIN), examples(2)

    objective.compare(objective.encode(batch)[0], batch)

    scores = slow_scores(retriever, batch)
    for view in ("dense", "lexical"):
        expected = np.mean([abs(float(scores[view][query, query * 2])) for query in range(4)])
        assert objective.observed[f"positive_{view}"] == pytest.approx(expected, rel=1e-4)


def test_rows_keep_queries_with_their_passages() -> None:
    batch = examples(3, teacher=torch.zeros(4, 3), excluded=exclusions(4, 3))

    part = batch.rows(1, 3)

    assert len(part) == 2
    assert torch.equal(part.queries.ids, batch.queries.ids[1:3])
    assert torch.equal(part.passages.ids, batch.passages.ids[3:9])
    assert torch.equal(part.passages.mask, batch.passages.mask[3:9])
