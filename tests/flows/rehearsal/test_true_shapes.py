"""Training steps with the true shapes: which chunk is measured, and how a step follows from one and two chunks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.plan.costs import CostEstimate
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.rehearsal import true_shapes
from flows.rehearsal.true_shapes import TrueShapes, TrueStep
from storage.store import sources
from storage.store.store import Store
from tasks.estimates.capacity import Capacity
from tasks.session import Done, Execution, Session, session
from tests.tiny import save_backbone

LENGTH = 24
MEBIBYTE = 2**20
LIMIT = 40.0


@pytest.fixture(autouse=True)
def on_one_thread(tmp_path: Path) -> Iterator[None]:
    """The CPU with one thread."""
    with session(Session(Store.open_or_new(tmp_path / "store"), Execution(workers=1, threads=1, device="cpu"))):
        yield


@pytest.fixture(scope="module")
def planned_recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CostEstimate, list[Done]]]:
    """CoT-MAE with a tiny backbone: a batch of 128 rows in chunks of 32, and two equal fine-tunings."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "backbone").mkdir()
    lengths = ("pretrain.objective.max_tokens", "pretrain.objective.context_max_tokens")
    rounds = [
        f"rounds.{number}.train.{name}" for number in (0, 1) for name in ("query_max_tokens", "passage_max_tokens")
    ]
    changes = [
        "dataset.path=nowhere", f"backbone.weights={save_backbone(folder / 'backbone')}", "backbone.layers=[0]",
        "pretrain.batch=64", "pretrain.steps=1000", "pretrain.fit.chunk=32", "pretrain.fit.precision=null",
        *(f"{name}={LENGTH}" for name in (*lengths, *rounds)), "encode.passage_max_tokens=24",
        *(f"rounds.{number}.train.fit.precision=null" for number in (0, 1)),
    ]  # fmt: skip
    recipe, path = load_recipe("cot_mae", changes)
    with sources.assuming_present():
        steps = list(planned(recipe, path.stem, Store.open_or_new(folder / "store")).done.values())
        yield CostEstimate(recipe, steps), steps


def test_trainings_of_true_shapes_run_in_the_recipes_chunk(planned_recipe: tuple[CostEstimate, list[Done]]) -> None:
    estimate, steps = planned_recipe

    pretraining, *trainings = TrueShapes(estimate, 1000 * MEBIBYTE, LIMIT).of(steps)

    assert isinstance(pretraining, TrueStep)
    assert (pretraining.chunk, pretraining.rows) == (32, 128)
    assert pretraining.seconds > 0
    assert pretraining.hours == pytest.approx(pretraining.seconds * 1000 / 3600)
    assert [(step.stage, step.round) for step in trainings if isinstance(step, TrueStep)] == [
        ("train", "retriever_1"), ("train", "retriever_2")
    ]  # fmt: skip
    assert len({step.seconds for step in trainings if isinstance(step, TrueStep)}) == 1  # measured once


def test_further_chunks_take_as_long_as_the_second(
    planned_recipe: tuple[CostEstimate, list[Done]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[int, int | None]] = []

    def seconds(work: object, texts: int, chunk: int | None) -> float:
        measured.append((texts, chunk))
        return 5.0 * texts if chunk is None else 12.0 * texts / 2  # a text takes 5 s, in a second chunk 7 s

    monkeypatch.setattr(true_shapes, "_seconds", seconds)
    estimate, steps = planned_recipe

    pretraining = next(TrueShapes(estimate, 1000 * MEBIBYTE, LIMIT).of(steps))

    assert isinstance(pretraining, TrueStep)
    assert pretraining.chunk == 4  # two texts, each exchanged with its context: more take over a quarter of the limit
    assert measured[2:4] == [(2, None), (4, 4)]
    assert pretraining.seconds == pytest.approx(10 + 31 * 14)


def test_only_one_text_is_measured_where_it_takes_longer_than_the_limit(
    planned_recipe: tuple[CostEstimate, list[Done]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def seconds(work: object, texts: int, chunk: int | None) -> float:
        measured.append(texts)
        return 2 * LIMIT

    monkeypatch.setattr(true_shapes, "_seconds", seconds)
    estimate, steps = planned_recipe

    pretraining = next(TrueShapes(estimate, 1000 * MEBIBYTE, LIMIT).of(steps))

    assert isinstance(pretraining, TrueStep)
    assert measured == [1]
    assert (pretraining.chunk, pretraining.seconds) == (2, 64 * 2 * LIMIT)


def test_a_precision_of_null_is_that_of_the_device(planned_recipe: tuple[CostEstimate, list[Done]]) -> None:
    estimate, _ = planned_recipe
    capacity, pretraining = TrueShapes(estimate, 1000 * MEBIBYTE, LIMIT).capacity, estimate.recipe.pretrain
    assert pretraining

    peak = capacity.pretraining(pretraining).peak(64, 32)

    single, half = (Capacity(capacity.costs, half=half).pretraining(pretraining).peak(64, 32) for half in (False, True))
    assert single == peak != half


def test_a_chunk_fits_into_the_memory_or_a_line_says_so(planned_recipe: tuple[CostEstimate, list[Done]]) -> None:
    estimate, steps = planned_recipe
    complete = next(TrueShapes(estimate, 1000 * MEBIBYTE, LIMIT).of(steps))
    assert isinstance(complete, TrueStep)

    less = next(TrueShapes(estimate, complete.counted_bytes - 1, LIMIT).of(steps))

    assert isinstance(less, TrueStep)
    assert less.chunk < complete.chunk
    assert less.counted_bytes < complete.counted_bytes
    assert "pretrain: not even one row" in str(next(TrueShapes(estimate, 1000, LIMIT).of(steps)))
