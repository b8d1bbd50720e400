"""The estimate of an adaptation's hours, by which its plan is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flows.adapt import hours, results
from flows.adapt.collections import HELDOUT, JUDGED, ORIGINAL, TRAIN, TRAINING, of_salient_sentences, write_collections
from flows.adapt.hours import Amounts, StageSeconds, amounts
from flows.adapt.recipes import Start, recipe_content, sizes
from flows.recipe.load import load_recipe
from flows.recipe.suite_schema import Collection
from storage.formats.records import TextRow
from storage.store.store import Store
from tasks.corpus.split_corpus import split_documents
from tasks.retrieval.stated_model import StatedModel
from tests.flows.adapt.test_collections import documents
from tests.tiny import save_backbone

QUERIES = {TRAIN: 1_000, HELDOUT: 200}


@pytest.fixture
def start(tmp_path: Path) -> Start:
    (tmp_path / "start").mkdir()
    save_backbone(tmp_path / "start", pooling="mean")
    return Start(str(tmp_path / "start"), StatedModel(pooling="mean", normalises=True), 64)


def longer(rows: Sequence[TextRow], times: int) -> list[TextRow]:
    """Documents with their text several times."""
    return [{**row, "text": " ".join([row["text"]] * times)} for row in rows]


def number_of_passages(rows: Sequence[TextRow], start: Start) -> int:
    settings = results.splitting(start, "en")
    return len(
        split_documents([dict(row) for row in rows], tokenizer=f"{start.weights}/tokenizer.json", settings=settings)
    )


def estimate(folder: Path, start: Start, size: str, known: Amounts) -> StageSeconds:
    """The estimate for a plan on a collection of 60 documents."""
    rows = documents(60)
    write_collections(folder, rows, of_salient_sentences(rows, "en"), None, hours=1)
    file, store = folder / "adapt.yaml", Store.open_or_new(folder / "store")
    content = recipe_content("texts", folder / TRAINING, start, sizes(size)[0], "en")
    file.write_text(yaml.safe_dump({**content, "seed": 1}))
    held_out = Collection(name=HELDOUT, reader="beir", path=str(folder / TRAINING), eval_split=HELDOUT)
    original = Collection(name=JUDGED, reader="beir", path=str(folder / ORIGINAL), eval_split=JUDGED)
    plan = hours.planned_adaptation(file, store, results.suite(start, [held_out], "texts"), original, start)
    return StageSeconds(load_recipe(str(file))[0], plan, known)


def seconds(of: StageSeconds, known: Amounts) -> Mapping[str, float]:
    """The seconds by stage of the same plan with other amounts, at the same rate of the machine."""
    other = StageSeconds(of.costs.recipe, of.plan, known)
    other.machine = of.machine
    by_stage: dict[str, float] = {}
    for step in of.plan.done.values():
        by_stage[step.stage] = by_stage.get(step.stage, 0.0) + other.of(step)
    return by_stage


def test_passages_of_a_small_collection_are_counted(start: Start) -> None:
    rows = [*documents(30), *longer(documents(10), 40)]

    assert amounts(rows, QUERIES, start, "en").passages == number_of_passages(rows, start) > 5 * len(rows)


def test_passages_of_a_large_collection_are_extrapolated_from_a_sample(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every eleventh document is read; every tenth is long."""
    rows = [row for n, row in enumerate(documents(400)) for row in longer([row], 40 if n % 10 == 5 else 1)]
    monkeypatch.setattr(hours, "SAMPLE", 37)

    assert len(hours.sampled(rows)) == 37
    assert amounts(rows, QUERIES, start, "en").passages == pytest.approx(number_of_passages(rows, start), rel=0.1)


def test_few_long_documents_are_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "SAMPLED_CHARACTERS", 1_000)

    assert len(hours.sampled(longer(documents(5), 40))) == 1


def test_tokens_of_a_passage_are_at_most_those_that_the_start_reads(start: Start) -> None:
    assert amounts(documents(5), QUERIES, replace(start, max_tokens=16), "en").mean_tokens == 16


def test_hours_grow_with_passages_and_not_with_documents(tmp_path: Path, start: Start) -> None:
    short, long = documents(60), longer(documents(60), 40)
    known = amounts(short, QUERIES, start, "en")
    of = estimate(tmp_path, start, "without pre-training", known)

    less, more = seconds(of, known), seconds(of, amounts(long, QUERIES, start, "en"))

    assert all(more[stage] > less[stage] for stage in ("ingest_corpus", "split_corpus", "encode", "index", "search"))
    assert more["train"] == pytest.approx(less["train"], rel=0.5)  # of longer passages, but no more queries


def test_searches_for_train_queries_are_counted(tmp_path: Path, start: Start) -> None:
    """BM25's once for all rounds, and that of the retriever that mines, which also encodes the queries."""
    known, in_a_search = Amounts(100_000, 64, QUERIES), 1_000 * (hours.QUERY_SECONDS + 100_000 * hours.PAIR_SECONDS)
    without = replace(known, queries={**QUERIES, TRAIN: 0})

    of_bm25, of_both = (
        seconds(of, known)["search"] - seconds(of, without)["search"]
        for of in (estimate(tmp_path / name, start, name, known) for name in ("one round", "without pre-training"))
    )

    assert of_bm25 == pytest.approx(in_a_search)
    assert 0 < of_both - 2 * in_a_search < in_a_search


def test_decision_and_index_are_counted(tmp_path: Path, start: Start) -> None:
    of = estimate(tmp_path, start, "one round", Amounts(500, 64, QUERIES))

    stages = [step.stage for step in of.plan.done.values()]

    assert stages.count("evaluate") == 2
    assert stages.count("encode") == 2 + 1 + 2  # by start and candidate; by the start as published; for the index
    assert stages.count("split_corpus") == 2 + 1  # to retrieve, to pre-train; the original documents


def test_larger_plans_take_longer(tmp_path: Path, start: Start) -> None:
    known, taken = Amounts(500, 64, QUERIES), []
    machine = None
    for name in ("complete", "medium", "without pre-training", "one round"):
        of = estimate(tmp_path / name, start, name, known)
        machine = of.machine = machine or of.machine
        taken.append(of.all())

    assert taken == sorted(taken, reverse=True)
    assert taken[-1] > hours.RUN_SECONDS + hours.STAGE_SECONDS * 20


def test_a_teacher_scores_a_positive_and_eight_negatives_of_each_train_query(tmp_path: Path, start: Start) -> None:
    given = replace(start, teacher=start.weights, teacher_max_tokens=64)

    of = estimate(tmp_path, given, "one round", Amounts(100_000, 64, QUERIES))

    pairs = {step.stage: of._number(step) for step in of.plan.done.values() if step.stage in ("score", "rerank")}
    assert pairs == {"score": 9 * QUERIES[TRAIN], "rerank": 20 * QUERIES[HELDOUT]}
