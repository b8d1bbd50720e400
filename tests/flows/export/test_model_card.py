"""The model card of an exported retriever has the recipe and the metrics of its evaluations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flows.export.model_card import Purpose, model_card
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Checkpoint, Metrics, Report, Run
from tasks.retrieval.fuse import Fusion, fuse
from tasks.retrieval.sentence_transformer_export import Exported
from tasks.stage import stage


class Names(Settings):
    names: list[str]


class Named(Settings):
    recipe: str


@stage(version=1, table=Checkpoint)
def given_model(out: Path, *, settings: Named) -> None:
    (out / "config.json").write_text(settings.recipe)


@stage(version=1, table=Run)
def given_run(out: Path, checkpoint: Artifact[Checkpoint], *, settings: Named) -> None:
    write_rows(out, Run, [])


@stage(version=1, table=Run)
def given_reranking(out: Path, teacher: Artifact[Checkpoint], run: Artifact[Run]) -> None:
    write_rows(out, Run, [])


@stage(version=1, table=Metrics)
def given_metrics(out: Path, runs: Any, *, settings: Names) -> None:
    values = [
        {"dataset": "leads", "split": "test", "run": name, "metric": "MRR@10", "value": 0.25 + 0.5 * number}
        for number, name in enumerate(settings.names)
    ]
    for file in Metrics.files:
        pq.write_table(pa.Table.from_pylist(values), out / file)


@stage(version=1, table=Report)
def given_report(out: Path, metrics: Artifact[Metrics], *, settings: Named) -> None:
    for file in ("report.json", "report.html"):
        (out / file).write_text("{}")


def card(model: Artifact[Checkpoint], store: Store) -> str:
    manifest = store.manifest(model.stage, model.key)
    assert manifest is not None
    return model_card(manifest, store, Exported(None, "it is none"))


def rows(text: str) -> list[str]:
    """Return the names of the runs in a card's table of results."""
    return re.findall(r"\| leads \| test \| (\w+) \|", text)


def test_only_the_checkpoints_own_results_are_in_its_card(store: Store) -> None:
    one, other, never = (given_model(settings=Named(recipe=name)) for name in ("one", "other", "never"))
    runs = [given_run(checkpoint=model, settings=Named(recipe="any")) for model in (one, other)]
    metrics = given_metrics(runs=runs, settings=Names(names=["plain", "modern"]))
    given_report(metrics=metrics, settings=Named(recipe="small_modern"))

    cards = {name: card(model, store) for name, model in (("one", one), ("other", other), ("never", never))}

    assert "| small_modern | leads | test | plain | MRR@10 | 0.2500 |" in cards["one"]
    assert "modern | MRR@10" not in cards["one"]
    assert "| small_modern | leads | test | modern | MRR@10 | 0.7500 |" in cards["other"]
    assert "## Results" not in cards["never"]
    assert "sentence-transformers does not: it is none." in cards["never"]


def test_a_fusion_of_the_checkpoints_own_views_and_what_a_teacher_reranks_are_their_results(store: Store) -> None:
    model, teacher = (given_model(settings=Named(recipe=name)) for name in ("model", "teacher"))
    views = [given_run(checkpoint=model, settings=Named(recipe=view)) for view in ("dense", "lexical")]
    fused = fuse(runs=views, settings=Fusion(kind="sum_rr", depth=10))
    reranked = given_reranking(teacher=teacher, run=fused)
    both = fuse(runs=[fused, reranked], settings=Fusion(kind="sum_rr", depth=10))
    given_metrics(runs=[*views, fused, reranked, both], settings=Names(names=["d", "l", "fused", "reranked", "both"]))

    assert rows(card(model, store)) == ["d", "l", "fused"]
    assert rows(card(teacher, store)) == ["reranked"]


def test_the_head_is_what_the_command_says_or_the_key(store: Store) -> None:
    model = given_model(settings=Named(recipe="one"))
    manifest = store.manifest(model.stage, model.key)
    assert manifest is not None

    without = model_card(manifest, store, None).splitlines()
    adapted = model_card(manifest, store, None, Purpose("A retriever of leads", "Two\n\nparagraphs.")).splitlines()

    place = without.index(f"# {model.stage} {model.key}")
    assert adapted[place : place + 6] == ["# A retriever of leads", "", "Two", "", "paragraphs.", ""]
    assert without[place + 1 :] == ["", *adapted[place + 6 :]]
