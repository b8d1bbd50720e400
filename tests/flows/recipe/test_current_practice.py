"""Settings of current practice that do not fit together are refused when the recipe is planned, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from storage.errors import UserError
from storage.store.store import Store

PLAIN = "rounds.0.train"
LEXICAL = "{lexical: {activation: log1p_relu, head: mlm, pool_specials: true, top_passages: null, top_queries: null}}"
REFUSED: dict[str, tuple[list[str], str]] = {
    "pooling that contradicts the model": (["backbone.pooling=cls"], r"states the pooling mean in .*expected mean"),
    "vectors that contradict the model": (
        ["backbone.pooling=null", f"{PLAIN}.retriever.dense.normalise=false"],
        r"rounds: plain: train.retriever: dense.normalise: the backbone compares vectors of length 1; expected null",
    ),
    "nested dimensions beyond the vectors": ([f"{PLAIN}.matryoshka=[384]"], "matryoshka: .* below the vectors' 384"),
    "a nested dimension twice": ([f"{PLAIN}.matryoshka=[96, 96]"], "matryoshka: expected each dimension once"),
    "no dimension": ([f"{PLAIN}.matryoshka=[0]"], "matryoshka.*greater than 0"),
    "truncated beyond the vectors": (["rounds.1.truncate_dims=[400]"], "truncate_dims: .* the vectors' 384"),
    "truncated weights": ([f"{PLAIN}.retriever={LEXICAL}"], "truncate_dims: expected a round with one dense vector"),
    "a run's name that is taken by dimensions": (
        ["rounds.0.truncate_dims=[96, 96]"], "truncate_dims: expected each once",
    ),
    "likely relevant passages of pairs": (
        [f"{PLAIN}.exclude_above=0.1", f"{PLAIN}.contrast_loss=pairwise"], "exclude_above: expected a contrast_loss",
    ),
    "a negative margin": ([f"{PLAIN}.exclude_above=-0.1"], "exclude_above.*greater than or equal to 0"),
    "two kinds of averages": ([f"{PLAIN}.fit.average={{decay: 0.9, last: 2}}"], "give either decay, or last and every"),
    "more checkpoints than steps": (
        [f"{PLAIN}.epochs=null", f"{PLAIN}.steps=10", f"{PLAIN}.fit.average={{last: 5, every: 4}}"],
        "fit.average: 5 checkpoints need 17 steps or more, found 10",
    ),
    "a prompt of one side": ([f"{PLAIN}.retriever.prompts={{query: q}}"], "retriever.prompts.passage: .* missing"),
    "both margins": (["rounds.7.mine.margin=0.1"], "give either margin or share"),
}  # fmt: skip


def plan(name: str, changes: list[str], store: Store) -> None:
    recipe, path = load_recipe(name, changes)
    planned(recipe, path.stem, store)


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_together_is_refused(what: str, store: Store) -> None:
    changes, message = REFUSED[what]

    with pytest.raises(UserError, match=message) as error:
        plan("small/modern", changes, store)
    assert "\n" not in str(error.value)


def test_warming_heads_that_do_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(UserError, match=r"pretrain.warm_heads: ict trains no head or decoder"):
        plan("small/ict", ["pretrain.warm_heads=5"], store)


def test_a_teacher_of_another_family_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")

    with pytest.raises(UserError, match=r"a teacher is a BERT, and .* has another model_type; name a BERT"):
        plan("small/dup_mae", [f"teacher.weights={tmp_path}"], store)
