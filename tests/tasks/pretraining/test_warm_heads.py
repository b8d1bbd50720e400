"""Heads that are trained first: what stays as it was, and that an interrupted training ends with equal weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from models.layers.bert import BertForMaskedLM
from models.papers import ict
from models.retrievers.retriever import HEADS_FILE
from storage.errors import UserError
from storage.store.store import Store
from tasks.pretraining.pretrain import Pretraining, pretrain
from tasks.session import Execution, Session, session
from tasks.training.frozen import Frozen
from tests.tasks.pretraining.test_pretrain import given_pairs, given_start, settings


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.usefixtures("store")
def test_only_heads_change_in_the_first_steps_and_then_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    start, pairs = given_start(), given_pairs()
    clear = Frozen.clear_gradients

    def watched(frozen: Frozen, objective: torch.nn.Module, step: int) -> None:
        seen.append({name: value.detach().clone() for name, value in objective.named_parameters()})
        clear(frozen, objective, step)

    monkeypatch.setattr(Frozen, "clear_gradients", watched)
    built = pretrain(pairs=pairs, start=start, settings=settings(steps=5, warm_heads=3))

    encoder = {name for name in seen[0] if name.startswith("model.bert.")}
    for step in range(4):  # the state before each step; the learning rate of the first is 0
        assert not changed(seen[0], seen[step]) & encoder, step
    assert changed(seen[0], seen[3]) == seen[0].keys() - encoder
    assert changed(seen[0], seen[4]) >= encoder - {"model.bert.embeddings.token_type_embeddings.weight"}
    assert changed(BertForMaskedLM.load(start.path).state_dict(), BertForMaskedLM.load(built.path).state_dict())


def test_an_interrupted_training_ends_with_equal_weights(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(steps=5, warm_heads=3)
    unbroken = pretrain(pairs=given_pairs(), start=given_start(), settings=chosen)
    clear, steps = Frozen.clear_gradients, list[int]()

    def breaking(frozen: Frozen, objective: torch.nn.Module, step: int) -> None:
        steps.append(step)
        if len(steps) in (3, 6):  # within and after the first steps
            raise KeyboardInterrupt
        clear(frozen, objective, step)

    monkeypatch.setattr(Frozen, "clear_gradients", breaking)
    monkeypatch.setattr("tasks.training.loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with session(Session(Store(tmp_path / "other"), Execution(workers=1, threads=1, device="cpu"))):
        start, pairs = given_start(), given_pairs()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                pretrain(pairs=pairs, start=start, settings=chosen)
        resumed = pretrain(pairs=pairs, start=start, settings=chosen)

    assert steps == [0, 1, 2, 2, 3, 4, 4]
    assert (resumed.path / "model.safetensors").read_bytes() == (unbroken.path / "model.safetensors").read_bytes()
    assert (resumed.path / HEADS_FILE).read_bytes() == (unbroken.path / HEADS_FILE).read_bytes()


@pytest.mark.usefixtures("store")
def test_an_objective_without_heads_is_refused() -> None:
    objective = {"removal_rate": 1.0, "temperature": 1.0, "max_tokens": 24, "sentence_max_tokens": 12}
    values: dict[str, Any] = settings(steps=2).model_dump() | {"paper": "ict", "objective": objective, "warm_heads": 1}

    with pytest.raises(UserError, match=r"pretrain\.warm_heads: the objective trains no head; leave the setting out"):
        pretrain(pairs=given_pairs(), start=given_start(), settings=Pretraining[ict.Settings].model_validate(values))


def test_the_setting_is_in_a_key_only_where_it_is_given() -> None:
    assert "warm_heads" not in settings().model_dump()
    assert settings(warm_heads=None).model_dump() == settings().model_dump()
    assert settings(warm_heads=3).model_dump()["warm_heads"] == 3
    with pytest.raises(ValidationError, match="warm_heads: expected fewer than all 12 steps, found 12"):
        settings(warm_heads=12)


@pytest.mark.usefixtures("store")
def test_frozen_steps_beyond_the_epochs_are_refused() -> None:
    with pytest.raises(UserError, match=r"warm_heads: expected fewer than all \d+ steps, found 10000"):
        pretrain(pairs=given_pairs(), start=given_start(), settings=settings(steps=None, epochs=1.0, warm_heads=10_000))
