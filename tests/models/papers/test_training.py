"""What holds for the pre-training of every paper: gradients of chunks, learning, and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.objective import Losses
from models.papers.dup_mae import word_weights
from models.pretraining import RawBatch
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tasks.training.seeds import mix_seeds
from tests.models.papers import test_co_condenser as co_condenser
from tests.models.papers import test_condenser as condenser
from tests.models.papers import test_cot_mae as cot_mae
from tests.models.papers import test_cot_mote as cot_mote
from tests.models.papers import test_cpdae as cpdae
from tests.models.papers import test_dup_mae as dup_mae
from tests.models.papers import test_ict as ict
from tests.models.papers import test_masked_lm as masked_lm
from tests.models.papers import test_prop as prop
from tests.models.papers import test_retro_mae as retro_mae
from tests.models.papers import test_seed as seed_paper
from tests.models.papers import test_sim_cse as sim_cse
from tests.tiny import PIECES, start


@dataclass(frozen=True)
class Paper:
    """A paper's objective with one of its settings, and how fast it learns a batch by heart."""

    tests: ModuleType
    """Has the paper's `Pretraining`, `make_batch`, `batch` and `objective`."""
    settings: Any
    raw: RawBatch | None = None
    """A batch for the gradients other than `tests.batch`, such as one with a text without words."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `objective`."""
    begin: Callable[..., Any] = lambda **options: start(spread=0, **options)
    """Makes the initialisation of the objective that learns."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ where a batch is learned by heart."""
    steps: int = 100
    """In which it must have learned its batch."""
    learning_rate: float = 1e-2
    share: float = 0.3
    """The share of each first loss above its floor that may remain."""
    floors: Callable[[Any, Any], Mapping[str, float]] = lambda settings, batch: {}
    """Lower bounds of losses that cannot reach 0."""


def bag_entropy(settings: Any, batch: Any) -> dict[str, float]:
    """A bag of k words has k maxima that share one softmax: its loss has a floor, the words' entropy."""
    if settings.bow_weight is None:
        return {}
    words = word_weights(batch.original, batch.words >= 0, len(PIECES), settings.bow_target)
    return {"bow": settings.bow_weight * (words.sum(1) * (words > 0).sum(1).log()).mean().item()}


def even_contrast(settings: Any, batch: Any) -> dict[str, float]:
    """Distributions over words can at best be equal to their partners': each anchor of m costs ln m."""
    return {"contrast": settings.contrast_weight * 5 * np.log(5)} if settings.contrast == "words" else {}


def towers(kind: Any) -> dict[str, Any]:
    """What differs for CoT-MoTE's encoders of this kind."""
    return {"options": {"towers": kind, "spread": 0.02}, "begin": partial(cot_mote.begin, kind, spread=0), "steps": 120}


PAIRS = co_condenser.drawn()
SMALL_STEPS: dict[str, Any] = {  # a fresh BERT's [CLS] hardly depends on its text
    "options": {"spread": 0.1}, "begin": partial(start, spread=0.05), "steps": 80, "learning_rate": 3e-3, "share": 0.1,
}  # fmt: skip
CPDAE: dict[str, Any] = {
    "begin": partial(start, spread=0, terms=cpdae.TERMS), "learned": {"reconstruction_reduction": "per_positive"},
    "steps": 60, "share": 0.4, "floors": even_contrast,
}  # fmt: skip
PAPERS = {
    "co_condenser": Paper(
        co_condenser,
        co_condenser.SETTINGS,
        RawBatch([[], *PAIRS.texts], [[], *PAIRS.contexts]),
        {"spread": 0.1},
        learning_rate=5e-3,
    ),
    "condenser": Paper(condenser, condenser.SETTINGS, RawBatch([[], *condenser.texts()]), steps=70),
    "cot_mae, auto-regressive": Paper(cot_mae, cot_mae.AR),
    "cot_mae, masked": Paper(cot_mae, cot_mae.AE),
    "cot_mote, mixture": Paper(cot_mote, cot_mote.BOTH, **towers("mixture")),
    "cot_mote, separate": Paper(cot_mote, cot_mote.BOTH, **towers("separate"), learned={"query_target": "passage"}),
    "cpdae, words": Paper(cpdae, cpdae.WORDS, **CPDAE | {"steps": 100}),
    "cpdae, hidden": Paper(cpdae, cpdae.HIDDEN, **CPDAE),
    "cpdae, no contrast": Paper(cpdae, cpdae.ALONE, **CPDAE),
    **{
        f"dup_mae, {name}": Paper(dup_mae, settings, floors=bag_entropy, steps=160)
        for name, settings in dup_mae.ALL.items()
    },
    "ict": Paper(ict, ict.SETTINGS, **SMALL_STEPS),
    "masked_lm": Paper(masked_lm, masked_lm.SETTINGS, steps=80),
    "prop": Paper(prop, prop.SETTINGS, steps=80, learning_rate=5e-3),
    "retro_mae, sum": Paper(retro_mae, retro_mae.SUM, steps=160),
    "retro_mae, embedded": Paper(retro_mae, retro_mae.EMBEDDED, steps=160),
    "seed": Paper(seed_paper, seed_paper.SETTINGS),
    "sim_cse": Paper(sim_cse, sim_cse.SETTINGS, **SMALL_STEPS),
}
every_paper = pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)


def batch_of(paper: Paper, tokenizer: Tokenizer) -> Any:
    if paper.raw is None:
        return paper.tests.batch(tokenizer, paper.settings)
    return paper.tests.make_batch(paper.raw, tokenizer, paper.settings, RowRandom(0, 0))


def by_name(objective: Any) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in objective.named_parameters() if value.grad is not None}


def direct_pass(objective: Any, batch: Any, spans: list[tuple[int, int]]) -> Losses:
    """One graph over all chunks, each encoded under its seed; local losses are means over their terms."""
    vectors, local = [], []
    for number, span in enumerate(spans):
        torch.manual_seed(mix_seeds(3, 5, number))
        encoded = objective.encode(batch.rows(*span))
        vectors.append(encoded[0])
        local.append(encoded[1])
    losses = dict(objective.compare(tuple(torch.cat(parts) for parts in zip(*vectors, strict=True)), batch))
    for name in local[0]:
        terms = [batch.rows(*span).num_terms(name) for span in spans]
        losses[name] = sum(loss[name] * n for loss, n in zip(local, terms, strict=True)) / sum(terms)
    return losses


@every_paper
@pytest.mark.parametrize(("chunk", "dropout"), [(1, 0.0), (3, 0.0), (3, 0.3)])
@pytest.mark.usefixtures("store")
def test_chunks_have_the_gradients_of_a_direct_pass(
    tokenizer: Tokenizer, paper: Paper, chunk: int, dropout: float, request: pytest.FixtureRequest
) -> None:
    """Without chance one pass over the complete batch; with dropout and sampled masks, chunk by chunk."""
    settings, has_chance = paper.settings, bool(dropout) or paper.tests is sim_cse
    if not has_chance:
        request.getfixturevalue("fixed_masks")
    if paper.tests is sim_cse:
        settings = dataclasses.replace(settings, dropout=dropout or 0.1)
    objective = paper.tests.objective(settings, dropout=dropout, **paper.options).train()
    batch = batch_of(paper, tokenizer)
    size = len(batch)
    spans = [(n, min(size, n + chunk)) for n in range(0, size, chunk)] if has_chance else [(0, size)]

    losses, results = gradients(objective, batch, chunk, (3, 5)), by_name(objective)
    objective.zero_grad()
    direct = direct_pass(objective, batch, spans)
    sum(direct.values()).backward()  # type: ignore[union-attr]

    expected = by_name(objective)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(
        {name: loss.item() for name, loss in direct.items()}, rel=1e-5, abs=1e-5
    )
    assert set(results) == set(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(results[name], gradient, atol=1e-5 * max(1.0, largest), rtol=1e-4)


def unlearned(history: list[dict[str, float]], share: float, floors: Mapping[str, float]) -> set[str]:
    """The losses whose last three steps are above a share of the first, both counted from the floor."""
    floor = {name: floors.get(name, 0.0) for name in history[0]}
    means = {name: np.mean([losses[name] for losses in history[-3:]]) for name in floor}
    return {name for name in floor if not means[name] - floor[name] < share * (history[0][name] - floor[name])}


@every_paper
@pytest.mark.usefixtures("store")
def test_a_batch_is_learned_by_heart_and_equal_seeds_learn_equally(tokenizer: Tokenizer, paper: Paper) -> None:
    settings = dataclasses.replace(paper.settings, **paper.learned)
    batch, runs = paper.tests.batch(tokenizer, settings), []
    floors = paper.floors(settings, batch)
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        objective = paper.tests.Pretraining(paper.begin(dropout=0.05), settings).train()
        optimiser, history = torch.optim.Adam(objective.parameters(), lr=paper.learning_rate), []
        for step in range(3 if runs else paper.steps):
            losses = gradients(objective, batch, None, (seed, step))
            history.append({name: loss.item() for name, loss in losses.items()})
            optimiser.step()
            optimiser.zero_grad()
            if step > 2 and not unlearned(history, paper.share, floors):
                break
        runs.append(history)

    assert unlearned(runs[0], paper.share, floors) == set()
    assert runs[0][:3] == runs[1] != runs[2]
