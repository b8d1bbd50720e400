"""Pre-training as a stage: what each step visits, what comes out, and that it comes out the same again."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.layers.bert import BertForMaskedLM
from models.objective import Batch
from models.papers import cot_mae
from models.pretraining import RawBatch
from models.retrievers.bi_encoder import load_pooling
from models.retrievers.retriever import HEADS_FILE
from models.row_random import RowRandom
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import Checkpoint, Pairs
from tasks.pretraining.pretrain import Pretraining, choose_contexts, pretrain
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tasks.training.epochs import rows_of_step
from tasks.training.optimiser import OptimisationSettings
from tests.tiny import WORDS, save_backbone

FITTING = OptimisationSettings(
    learning_rate=2e-3, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None
)
STILL = {**FITTING.model_dump(), "warmup_ratio": 1.0}
"""One step of warm-up: a learning rate of 0."""
OBJECTIVE = {
    "decoder": "ar", "decoder_layers": 1, "window": 3, "text_mask_rate": 0.3, "context_mask_rate": None,
    "symmetric": False, "max_tokens": 24, "context_max_tokens": 12,
}  # fmt: skip
MASKED = {**OBJECTIVE, "decoder": "ae", "window": None, "context_mask_rate": 0.45}


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
        {
            "passage_id": f"p{n}",
            "text": " ".join(words),
            "queries": [" ".join(words[:3]), f"{words[0]}s", "the end"],
            "passages": [],
        }
        for n, words in enumerate(texts)
    ]


def settings(**changes: Any) -> Pretraining[cot_mae.Settings]:
    values = {
        "paper": "cot_mae",
        "objective": OBJECTIVE,
        "mix": None,
        "heads": "fresh",
        "steps": 12,
        "epochs": None,
        "batch": 8,
        "probe": None,
        "fit": FITTING.model_dump(),
        "seed": 3,
    }
    return Pretraining[cot_mae.Settings].model_validate(values | changes)


def test_every_row_is_visited_once_an_epoch_in_an_order_of_its_own() -> None:
    seen = [rows_of_step(step, 8, 20, seed=1) for step in range(10)]

    flat = [row for rows in seen for row in rows]
    epochs = [flat[start : start + 20] for start in range(0, 80, 20)]
    assert all(len(rows) == 8 for rows in seen)
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert [rows_of_step(step, 8, 20, seed=1) for step in (9, 3)] == [seen[9], seen[3]]
    assert rows_of_step(0, 8, 20, seed=2) != seen[0]


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert Counter(rows_of_step(0, 10, 4, seed=1) + rows_of_step(1, 10, 4, seed=1)) == dict.fromkeys(range(4), 5)


@pytest.mark.parametrize("decoder", ["ar", "ae"])
def test_a_pretrained_checkpoint_is_made_and_made_the_same_again(store: Store, tmp_path: Path, decoder: str) -> None:
    wanted = settings(objective=OBJECTIVE if decoder == "ar" else MASKED)
    hashes = []
    for other in (store, Store(tmp_path / "other")):
        with session(Session(other, Execution(workers=1, threads=1, device="cpu"))):
            start = given_start()
            built = pretrain(pairs=given_pairs(), start=start, settings=wanted)
        manifest = other.manifest(built.stage, built.key)
        assert manifest is not None
        hashes.append(manifest.hash)

    assert hashes[0] == hashes[1]
    assert load_pooling(built.path) == "mean"
    assert not (built.path / "scratch").exists()
    assert not any("scratch" in name for name in manifest.files)
    assert "logs/metrics.jsonl" in manifest.logs
    before, after = (
        BertForMaskedLM.load(start.path).state_dict(),
        BertForMaskedLM.load(built.path).state_dict(),
    )
    assert {name for name in before if torch.equal(before[name], after[name])} == set()


def test_half_a_pretraining_goes_on_where_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    start, given = given_start(), given_pairs()
    whole = pretrain(pairs=given, start=start, settings=settings())
    built, visits = cot_mae.make_batch, []

    def breaking(*arguments: Any) -> Batch:
        visits.append(1)
        if len(visits) == 6:
            raise KeyboardInterrupt
        return built(*arguments)

    monkeypatch.setattr("tasks.training.loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(cot_mae, "make_batch", breaking)
    other = Store(store.root.parent / "other")
    with session(Session(other, Execution(workers=1, threads=1, device="cpu"))):
        inputs = {"pairs": given_pairs(), "start": given_start()}
        with pytest.raises(KeyboardInterrupt):
            pretrain(**inputs, settings=settings())
        again = pretrain(**inputs, settings=settings())

    assert len(visits) == 6 + 7  # five steps were kept
    assert other.manifest(again.stage, again.key).hash == store.manifest(whole.stage, whole.key).hash  # type: ignore[union-attr]


def test_each_visit_draws_one_of_the_contexts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.tokens import Tokenizer

    start, inputs, drawn = given_start(), given_pairs(), Counter[tuple[int, int]]()
    tokenizer = Tokenizer.load(start.path)
    rows = pairs()
    texts = {tuple(ids): n for n, ids in enumerate(tokenizer.token_ids([row["text"] for row in rows]))}
    contexts = [tokenizer.token_ids(row["queries"]) for row in rows]
    built = cot_mae.make_batch

    def watching(inputs: RawBatch, *others: Any) -> Batch:
        for text, context in zip(inputs.texts, inputs.contexts, strict=True):
            row = texts[tuple(text)]
            drawn[row, contexts[row].index(context.tolist())] += 1
        return built(inputs, *others)

    monkeypatch.setattr(cot_mae, "make_batch", watching)
    pretrain(pairs=inputs, start=start, settings=settings(steps=75, batch=8))  # each row 30 times

    assert [sum(drawn[row, n] for n in range(3)) for row in range(20)] == [30] * 20
    assert all(170 < sum(drawn[row, n] for row in range(20)) < 230 for n in range(3))  # 200 are expected
    assert sum(drawn[row, n] > 0 for row in range(20) for n in range(3)) == 60


def test_nothing_to_pretrain_on(store: Store, written: Any) -> None:
    with pytest.raises(UserError, match="expected pairs to pre-train on, found none"):
        pretrain.body(store.root, written(Pairs, []), None, given_start(), None, settings=settings())


def test_more_tokens_than_the_model_has_positions(store: Store) -> None:
    with pytest.raises(UserError, match=r"pretrain\.objective: max_tokens: expected at most 64, found 65"):
        pretrain(pairs=given_pairs(), start=given_start(), settings=settings(objective={**OBJECTIVE, "max_tokens": 65}))


def test_settings_are_the_papers_own() -> None:
    with pytest.raises(ValueError, match="max_token"):
        settings(objective={**OBJECTIVE, "max_token": 3})
    with pytest.raises(ValueError, match="text_mask_rate: expected a share"):
        settings(objective={**OBJECTIVE, "text_mask_rate": 30})
    assert settings().model_dump(mode="json")["objective"] == OBJECTIVE


def test_an_artifact_is_a_hugging_face_folder(store: Store) -> None:
    built: Artifact[Checkpoint] = pretrain(pairs=given_pairs(), start=given_start(), settings=settings(steps=1))

    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert names <= {file.name for file in built.path.iterdir()}


def test_decoder_and_heads_are_saved_and_taken_up_again(store: Store) -> None:
    start = given_start()
    first = pretrain(pairs=given_pairs(), start=start, settings=settings(steps=2))

    heads = load_file(first.path / HEADS_FILE)
    assert heads
    assert all(name.startswith(("decoder.blocks.0.", "decoder.norm")) for name in heads)
    again = pretrain(pairs=given_pairs(), start=first, settings=settings(steps=1, heads="continued", fit=STILL))
    fresh = pretrain(pairs=given_pairs(), start=first, settings=settings(steps=1, fit=STILL))
    kept, made_anew = load_file(again.path / HEADS_FILE), load_file(fresh.path / HEADS_FILE)
    assert all(torch.equal(heads[name], kept[name]) for name in heads)
    assert not torch.equal(heads["decoder.blocks.0.widen.weight"], made_anew["decoder.blocks.0.widen.weight"])


def test_heads_that_are_not_there_or_not_these_are_refused(store: Store) -> None:
    with pytest.raises(UserError, match=r"the backbone has no heads\.safetensors to continue"):
        pretrain(pairs=given_pairs(), start=given_start(), settings=settings(heads="continued"))
    first = pretrain(pairs=given_pairs(), start=given_start(), settings=settings(steps=1))
    with pytest.raises(UserError, match=r"pretrain\.heads: .*weights are missing \(decoder\.layers"):
        pretrain(pairs=given_pairs(), start=first, settings=settings(objective=MASKED, heads="continued"))


def test_the_length_is_given_once() -> None:
    assert settings(steps=None, epochs=1.5).num_steps(20) == 4  # 30 texts, 8 a step
    assert settings().num_steps(20) == 12
    for wrong in ({"epochs": 1.0}, {"steps": None}):
        with pytest.raises(ValueError, match="give either steps or epochs"):
            settings(**wrong)


def test_contexts_of_both_kinds_are_mixed_by_step_or_by_example() -> None:
    two, three, none = (np.full(400, number) for number in (2, 3, 0))

    def chosen(queries: Any, passages: Any, mix: str | None, seed: int = 0) -> list[tuple[int, int]]:
        columns, numbers = choose_contexts(queries, passages, mix, RowRandom(seed, 0))
        return list(zip(columns.tolist(), numbers.tolist(), strict=True))

    by_example = chosen(two, three, "example")
    by_step = [chosen(two, three, "step", seed) for seed in range(60)]

    counts = Counter(by_example)
    assert sorted(counts) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert 160 < counts[0, 0] + counts[0, 1] < 240
    kinds = [{column for column, _ in step} for step in by_step]
    assert all(len(kind) == 1 for kind in kinds)
    assert 18 < sum(kind == {0} for kind in kinds) < 42
    assert set(chosen(two, none, None)) == {(0, 0), (0, 1)}
    assert set(chosen(none, three, None)) == {(1, 0), (1, 1), (1, 2)}


def test_the_probe_is_logged_at_the_start_and_every_so_many_steps(store: Store) -> None:
    wanted = settings(probe={"every": 5, "pairs": 20})

    built = pretrain(pairs=given_pairs(), start=given_start(), probe=given_pairs(), settings=wanted)

    lines = [json.loads(line) for line in (built.path / "logs" / "metrics.jsonl").read_text().splitlines()]
    probed = {line["step"]: line["probe_MRR@10"] for line in lines if "probe_MRR@10" in line}
    assert list(probed) == [0, 5, 10]
    assert len(set(probed.values())) > 1
    names = {"mlm", "context", "gradient_norm", "gradient_norm_model", "gradient_norm_decoder", "tokens_per_second"}
    assert all(names <= line.keys() for line in lines if line["step"])
    # The probe only looks: without it the same weights come out.
    without = pretrain(pairs=given_pairs(), start=given_start(), settings=settings())
    name = "model.safetensors"
    assert (built.path / name).read_bytes() == (without.path / name).read_bytes()
