"""Pre-training as a stage: what each step visits, what comes out, and that it comes out the same again."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import bert, cot_mae
from models.encoder import load_pooling
from models.objective import Batch
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import write_rows
from storage.store import Store
from storage.tables import Checkpoint, Pairs
from tasks.fit import Fitting
from tasks.pretrain import Pretraining, pretrain, visited
from tasks.stage import Execution, Session, session, stage
from tests.tiny import WORDS, save_backbone

FITTING = Fitting(learning_rate=2e-3, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None)
OBJECTIVE = {
    "decoder": "ar", "decoder_layers": 1, "window": 3, "text_mask_rate": 0.3, "context_mask_rate": 0.45,
    "max_tokens": 24, "context_max_tokens": 12,
}  # fmt: skip


@stage(version=1, table=Checkpoint)
def given_start(out: Path) -> None:
    """A tiny backbone."""
    save_backbone(out, dropout=0.1, pooling="mean")


@stage(version=1, table=Pairs)
def given_pairs(out: Path) -> None:
    """Texts of random words, each with the contexts that it names by its first words."""
    write_rows(out, Pairs, pairs())


def pairs() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    texts = [random.choice(WORDS, size=12).tolist() for _ in range(20)]
    return [
        {"passage_id": f"p{n}", "text": " ".join(words), "contexts": [" ".join(words[:3]), f"{words[0]}s", "the end"]}
        for n, words in enumerate(texts)
    ]


def settings(**changes: Any) -> Pretraining[cot_mae.Settings]:
    values = {
        "paper": "cot_mae",
        "objective": OBJECTIVE,
        "steps": 12,
        "batch": 8,
        "fit": FITTING.model_dump(),
        "seed": 3,
    }
    return Pretraining[cot_mae.Settings].model_validate(values | changes)


def test_every_row_is_visited_once_an_epoch_in_an_order_of_its_own() -> None:
    seen = [visited(step, 8, 20, seed=1) for step in range(10)]

    flat = [row for rows in seen for row in rows]
    epochs = [flat[start : start + 20] for start in range(0, 80, 20)]
    assert all(len(rows) == 8 for rows in seen)
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert [visited(step, 8, 20, seed=1) for step in (9, 3)] == [seen[9], seen[3]]
    assert visited(0, 8, 20, seed=2) != seen[0]


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert Counter(visited(0, 10, 4, seed=1) + visited(1, 10, 4, seed=1)) == dict.fromkeys(range(4), 5)


@pytest.mark.parametrize("decoder", ["ar", "ae"])
def test_a_pretrained_checkpoint_is_made_and_made_the_same_again(store: Store, tmp_path: Path, decoder: str) -> None:
    wanted = settings(objective={**OBJECTIVE, "decoder": decoder})
    hashes = []
    for place in (store, Store(tmp_path / "other")):
        with session(Session(place, Execution(workers=1, threads=1, device="cpu"))):
            start = given_start()
            made = pretrain(given_pairs(), start, settings=wanted)
        manifest = place.manifest(made.stage, made.key)
        assert manifest is not None
        hashes.append(manifest.hash)

    assert hashes[0] == hashes[1]
    assert load_pooling(made.path) == "mean"
    assert not (made.path / "scratch").exists()
    assert not any("decoder" in name or "scratch" in name for name in manifest.files)
    assert "logs/metrics.jsonl" in manifest.logs
    before, after = bert.load(start.path).state_dict(), bert.load(made.path).state_dict()
    assert {name for name in before if torch.equal(before[name], after[name])} == set()


def test_half_a_pretraining_goes_on_where_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    start, given = given_start(), given_pairs()
    whole = pretrain(given, start, settings=settings())
    made, visits = cot_mae.make_batch, []

    def breaking(*arguments: Any) -> Batch:
        visits.append(1)
        if len(visits) == 6:
            raise KeyboardInterrupt
        return made(*arguments)

    monkeypatch.setattr("tasks.fit.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(cot_mae, "make_batch", breaking)
    other = Store(store.root.parent / "other")
    with session(Session(other, Execution(workers=1, threads=1, device="cpu"))):
        inputs = given_pairs(), given_start()
        with pytest.raises(KeyboardInterrupt):
            pretrain(*inputs, settings=settings())
        again = pretrain(*inputs, settings=settings())

    assert len(visits) == 6 + 7  # five steps were kept
    assert other.manifest(again.stage, again.key).hash == store.manifest(whole.stage, whole.key).hash  # type: ignore[union-attr]


def test_each_visit_draws_one_of_the_contexts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.tokens import Tokenizer

    start, given, drawn = given_start(), given_pairs(), Counter[tuple[int, int]]()
    tokenizer = Tokenizer.load(start.path)
    rows = pairs()
    texts = {tuple(ids): n for n, ids in enumerate(tokenizer.pieces([row["text"] for row in rows]))}
    contexts = [tokenizer.pieces(row["contexts"]) for row in rows]
    made = cot_mae.make_batch

    def watching(text_ids: Any, context_ids: Any, *others: Any) -> Batch:
        for text, context in zip(text_ids, context_ids, strict=True):
            row = texts[tuple(text)]
            drawn[row, contexts[row].index(context)] += 1
        return made(text_ids, context_ids, *others)

    monkeypatch.setattr(cot_mae, "make_batch", watching)
    pretrain(given, start, settings=settings(steps=75, batch=8))  # each row 30 times

    assert [sum(drawn[row, n] for n in range(3)) for row in range(20)] == [30] * 20
    assert all(170 < sum(drawn[row, n] for row in range(20)) < 230 for n in range(3))  # 200 are expected
    assert sum(drawn[row, n] > 0 for row in range(20) for n in range(3)) == 60


def test_nothing_to_pretrain_on(store: Store, written: Any) -> None:
    with pytest.raises(UserError, match="expected pairs to pre-train on, found none"):
        pretrain.body(store.root, written(Pairs, []), given_start(), settings=settings())


def test_more_tokens_than_the_model_has_positions(store: Store) -> None:
    with pytest.raises(UserError, match=r"pretrain\.objective: max_tokens: expected at most 64, found 65"):
        pretrain(given_pairs(), given_start(), settings=settings(objective={**OBJECTIVE, "max_tokens": 65}))


def test_settings_are_the_papers_own() -> None:
    with pytest.raises(ValueError, match="max_token"):
        settings(objective={**OBJECTIVE, "max_token": 3})
    with pytest.raises(ValueError, match="text_mask_rate and context_mask_rate: expected shares"):
        settings(objective={**OBJECTIVE, "text_mask_rate": 30})
    assert settings().model_dump(mode="json")["objective"] == OBJECTIVE


def test_an_artifact_is_a_hugging_face_folder(store: Store) -> None:
    made: Artifact[Checkpoint] = pretrain(given_pairs(), given_start(), settings=settings(steps=1))

    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert names <= {file.name for file in made.path.iterdir()}
