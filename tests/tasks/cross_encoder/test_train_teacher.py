"""Training a cross-encoder: what each step shows it, that it learns, and that it comes out the same again."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import Groups
from models.tokens import Tokenizer
from storage.artifact import Source
from storage.errors import UserError
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries, Table, passage_text
from tasks.cross_encoder.train_teacher import TeacherBatches, TeacherTraining, train_teacher
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tasks.training.optimiser import OptimisationSettings
from tests.tasks.finetuning.training_tables import read_data
from tests.tiny import WORDS, save_backbone

FITTING = OptimisationSettings(
    learning_rate=3e-3, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None
)
TRAINING = TeacherTraining(
    query_max_tokens=6, max_tokens=16, epochs=2, batch_queries=4, passages_per_query=3, fit=FITTING, seed=5
)  # fmt: skip
PASSAGES = [
    {"passage_id": f"p{n}", "doc_id": f"d{n}", "title": "king" if n % 5 == 0 else "", "text": text, "start": 0,
     "end": len(text), "num_tokens": 8}
    for n in range(16)
    for text in [" ".join(np.random.default_rng(n).choice(WORDS[1:], size=n % 5 + 4)) + f" {WORDS[n]}"]
]  # fmt: skip
QUERIES = [{"query_id": f"q{n}", "text": f"{WORDS[n]}"} for n in range(12)]
POSITIVES = [{"query_id": f"q{n}", "passage_id": f"p{n}", "doc_id": f"d{n}"} for n in range(10)]
NEGATIVES = [
    {"query_id": f"q{n}", "passage_id": f"p{(n + 1 + rank) % 16}", "rank": rank + 1, "score": 1.0}
    for n in range(9)
    for rank in range(6)
]


@stage(version=1, table=Checkpoint)
def given_start(out: Path) -> None:
    """A tiny backbone."""
    save_backbone(out, dropout=0.1)


def given_table(name: str, table: type[Table], rows: Iterable[Any]) -> Any:
    def write_given_rows(out: Path) -> None:
        """The test's rows."""
        write_rows(out, table, rows)

    write_given_rows.__name__ = name
    return stage(version=1, table=table)(write_given_rows)()


def tables() -> Any:
    return (
        given_table("given_queries", Queries, QUERIES), given_table("given_passages", Passages, PASSAGES),
        given_table("given_positives", Positives, POSITIVES), given_table("given_negatives", Negatives, NEGATIVES),
    )  # fmt: skip


def trained(store: Store, settings: TeacherTraining = TRAINING) -> Any:
    with session(Session(store, Execution(workers=1, threads=1, device="cpu"))):
        inputs = given_start(), *tables()
        torch.seed()  # whatever the global state is
        return train_teacher(**dict(zip(train_teacher.parameters, inputs, strict=True)), settings=settings)


def hash_of(store: Store, run_stage: Any) -> str:
    manifest = store.manifest(run_stage.stage, run_stage.key)
    assert manifest is not None
    return manifest.hash


def test_a_step_shows_queries_with_their_positive_and_negatives(store: Store) -> None:
    start, settings = given_start(), TRAINING.model_copy(update={"epochs": 3})
    tokenizer, data = Tokenizer.load(start.path), read_data(*tables(), settings)
    batches, seen = TeacherBatches(data, tokenizer, settings), []
    assert batches.steps == 8  # ten queries have a positive, three times, by four
    texts = [passage_text(row["title"], row["text"]) for row in PASSAGES]
    pieces, query_ids = tokenizer.token_ids(texts), tokenizer.token_ids([row["text"] for row in QUERIES])

    for step in range(batches.steps):
        batch = batches.batch(step)
        assert (len(batch), batch.group) == (4, 3)
        rows = [ids[mask].tolist() for ids, mask in zip(batch.pairs.tokens.ids, batch.pairs.tokens.mask, strict=True)]
        queries = {tuple(row[1 : row.index(3)]) for row in rows[:3]}
        assert len(queries) == 1
        for number in range(4):
            query = query_ids.index(rows[number * 3][1 : rows[number * 3].index(3)])
            own = rows[number * 3 : number * 3 + 3]
            assert own[0] == expected(query_ids[query], pieces[query])
            if query < 9:
                hard = [expected(query_ids[query], pieces[(query + 1 + rank) % 16]) for rank in range(6)]
                assert all(row in hard for row in own[1:])
            seen.append(query)

    assert sorted(seen[:30]) == sorted(list(range(10)) * 3)
    assert sorted(seen[:10]) == list(range(10))


def expected(query: list[int], passage: list[int]) -> list[int]:
    """Here no query is longer than four pieces."""
    return [2, *query, 3, *passage[: 16 - len(query) - 3], 3]


def test_a_tiny_teacher_learns(store: Store, tmp_path: Path) -> None:
    """Every query's positive is a negative of others, so what a passage says alone is no help."""
    settings = TRAINING.model_copy(update={"epochs": 60, "batch_queries": 10, "passages_per_query": 4})
    start = Source("start", save_backbone(tmp_path, spread=0.2))

    inputs = dict(zip(train_teacher.parameters, (start, *tables()), strict=True))
    built = train_teacher(**inputs, settings=settings)

    losses = [json.loads(line)["listwise"] for line in (built.path / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] == pytest.approx(np.log(4), abs=0.05)
    assert np.mean(losses[-5:]) < 0.3 * losses[0]
    teacher, tokenizer = cross_encoder.load(built.path), Tokenizer.load(built.path)
    batch = TeacherBatches(read_data(*tables(), settings), tokenizer, settings).batch(0)
    with torch.inference_mode():
        scores = teacher(batch.pairs).view(10, 4)
    assert (scores.argmax(1) == 0).float().mean() >= 0.8


def test_a_teacher_comes_out_the_same_again(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    one, two = trained(store), trained(other)

    assert hash_of(store, one) == hash_of(other, two)
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    manifest = store.manifest(one.stage, one.key)
    assert manifest is not None
    assert set(manifest.files) == names
    assert (manifest.seed, manifest.schema) == (5, "Checkpoint")


def test_half_a_training_goes_on_where_it_was(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TRAINING.model_copy(update={"fit": FITTING.model_copy(update={"chunk": 3})})
    whole, drawn, batch = trained(store, settings), [], TeacherBatches.batch

    def breaking(self: TeacherBatches, step: int) -> Groups:
        drawn.append(step)
        if len(drawn) == 4:
            raise KeyboardInterrupt
        return batch(self, step)

    monkeypatch.setattr("tasks.training.loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(TeacherBatches, "batch", breaking)
    other = Store(tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        trained(other, settings)
    again = trained(other, settings)

    assert drawn == [0, 1, 2, 3, 3, 4]
    assert hash_of(store, whole) == hash_of(other, again)


def test_a_cross_encoder_is_a_start(store: Store, tmp_path: Path) -> None:
    """With a learning rate of 0, which the first step of a warm-up has, it stays what it was."""
    still = {"epochs": 1, "batch_queries": 10, "fit": FITTING.model_copy(update={"warmup_ratio": 1.0})}
    first = trained(store)

    train_teacher.body(tmp_path, Source("given", first.path), *tables(), settings=TRAINING.model_copy(update=still))

    before, after = cross_encoder.load(first.path).state_dict(), cross_encoder.load(tmp_path).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_settings_that_leave_no_room_for_a_passage() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at least 8, two more than query_max_tokens"):
        TeacherTraining.model_validate(TRAINING.model_dump() | {"max_tokens": 7})
    assert TeacherTraining.model_validate(TRAINING.model_dump() | {"max_tokens": 8})
    with pytest.raises(ValueError, match="passages_per_query"):
        TeacherTraining.model_validate(TRAINING.model_dump() | {"passages_per_query": 1})


def test_starts_that_do_not_fit(store: Store, tmp_path: Path) -> None:
    start = given_start()
    with pytest.raises(UserError, match="start of the teacher: max_tokens: expected at most 64, found 65"):
        train_teacher.body(
            tmp_path, start, *tables(), settings=TRAINING.model_copy(update={"max_tokens": 65})
        )  # fmt: skip
    with pytest.raises(UserError, match=r"expected a tokenizer in tokenizer\.json"):
        train_teacher.body(tmp_path, Source("empty", tmp_path), *tables(), settings=TRAINING)
