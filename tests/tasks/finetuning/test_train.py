"""Training a retriever: the loss of a batch, the teacher's scores, and that a tiny retriever learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.layers.bert import BertForMaskedLM
from models.papers import cot_mae
from models.retrievers import retriever
from models.retrievers.objective import Distillation, Finetuning
from models.retrievers.retriever import load
from models.tokens import Tokenizer
from storage.artifact import Artifact, source_of
from storage.errors import UserError
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import (
    Checkpoint,
    Negatives,
    Pairs,
    Passages,
    Positives,
    Queries,
    Table,
    TeacherScores,
)  # fmt: skip
from tasks.finetuning.teacher_scores import ScoreLookup
from tasks.finetuning.train import RetrieverBatches, Training, check, train
from tasks.pretraining.initialise import BackboneSettings, initialise
from tasks.pretraining.pretrain import Pretraining, pretrain
from tasks.retrieval.encode import Encoding
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests.tasks.finetuning.training_tables import (
    DOCUMENTS,
    FITTING,
    NEGATIVES,
    POSITIVES,
    TEXTS,
    TRAINING,
    TrainingTables,
    negatives,
    passages,
    passages_texts,
    positives,
    queries,
    read_data,
)
from tests.tiny import LATE, RETRIEVERS


def slow_excluded(documents: list[str], relevant: list[set[str]], group: int) -> list[list[bool]]:
    return [
        [documents[column] in relevant[query] and column != query * group for column in range(len(documents))]
        for query in range(len(relevant))
    ]


@pytest.mark.parametrize("masked", [True, False])
def test_the_loss_of_a_batch_equals_the_formula(tables: TrainingTables, masked: bool) -> None:
    settings = TRAINING.model_copy(update={"mask_known_positives": masked, "batch_queries": 6, "temperature": 2.0})
    data = tables.batches(settings)
    objective, batch = Finetuning(retriever.load(tables.start.path), settings.loss), data.batch(0)
    results = tuple(tensor.detach() for tensor in objective.encode(batch)[0])
    loss = objective.compare(results, batch)["contrastive"].item()

    assert batch.order is not None
    assert all((tokens.mask.sum(1).diff() >= 0).all() for tokens in (batch.queries, batch.passages))
    queries, passages = (torch.argsort(order) for order in batch.order)
    vectors = results[0][queries], results[1][passages]
    tokenizer = data.tokenizer
    names = {tuple(ids): n for n, ids in enumerate(tokenizer.encode(passages_texts(), 20))}
    number_of_query = {tuple(ids): n for n, ids in enumerate(tokenizer.encode(data.data.queries, 12))}
    documents = [
        DOCUMENTS[names[tuple(ids[mask].tolist())]]
        for ids, mask in zip(batch.passages.ids[passages], batch.passages.mask[passages], strict=True)
    ]
    numbers = [
        number_of_query[tuple(ids[mask].tolist())]
        for ids, mask in zip(batch.queries.ids[queries], batch.queries.mask[queries], strict=True)
    ]
    relevant = [{DOCUMENTS[int(passage[1:])] for passage in POSITIVES[f"q{n}"]} for n in numbers]
    excluded = slow_excluded(documents, relevant, 3)
    assert any(map(any, excluded))
    assert batch.excluded is None if not masked else batch.excluded.tolist() == excluded

    expected = 0.0
    for query in range(6):
        scores = [float(vectors[0][query].double() @ passage.double()) / 2.0 for passage in vectors[1]]
        kept = [score for score, out in zip(scores, excluded[query], strict=True) if not (masked and out)]
        expected += float(np.log(np.exp(kept).sum()) - scores[query * 3]) / 6
    assert loss == pytest.approx(expected, abs=1e-5)


def test_more_tokens_than_the_model_has_positions(tables: TrainingTables, store: Store) -> None:
    with pytest.raises(UserError, match="expected at most 64, found 65"):
        train.body(store.root, *tables.inputs(), settings=TRAINING.model_copy(update={"passage_max_tokens": 65}))


def test_a_tiny_retriever_learns_twenty_texts(store: Store, backbone: Path, written: Any, tmp_path: Path) -> None:
    topics = [{"query_id": f"q{n}", "text": " ".join(text.split()[:3])} for n, text in enumerate(TEXTS)]
    inputs = (
        Artifact[Checkpoint]("initialise", "tiny", backbone), written(Queries, topics), written(Passages, passages()),
        written(Positives, positives({f"q{n}": [f"p{n}"] for n in range(20)})), written(Negatives, []), None,
    )  # fmt: skip
    changes = {"epochs": 40, "batch_queries": 10, "passages_per_query": 2, "mask_known_positives": False}

    train.body(tmp_path, *inputs, settings=TRAINING.model_copy(update=changes))

    assert reciprocal_rank(backbone, topics) < 0.9
    assert reciprocal_rank(tmp_path, topics) == 1


@torch.inference_mode()
def reciprocal_rank(folder: Path, topics: list[dict[str, Any]]) -> float:
    encoder, tokenizer = load(folder), Tokenizer.load(folder)
    result = encoder(tokenizer.pad_batch(tokenizer.encode([row["text"] for row in topics], 12)), "query").dense
    texts = encoder(tokenizer.pad_batch(tokenizer.encode(passages_texts(), 20)), "passage").dense
    assert result is not None
    assert texts is not None
    scores = result @ texts.T
    ranks = (scores >= scores.diagonal()[:, None]).sum(1)
    return float((1 / ranks).mean())


def stage_writing(name: str, table: type[Table], rows: list[dict[str, Any]]) -> Any:
    """A stage that writes these rows, so that a store has them."""

    def body(out: Path) -> None:
        write_rows(out, table, rows)

    body.__name__ = name
    return stage(version=1, table=table)(body)


def test_from_weights_to_a_retriever_twice_is_the_same_to_the_byte(
    store: Store, backbone: Path, tmp_path: Path
) -> None:
    weights = source_of(backbone, [file for file in backbone.rglob("*") if file.is_file()])
    start = BackboneSettings(
        weights="tiny", start="random", towers="siamese", layers=[0], dropout=0.1, pooling="mean", seed=3
    )
    objective = {
        "decoder": "ar", "decoder_layers": 1, "window": 3, "text_mask_rate": 0.3, "context_mask_rate": None,
        "symmetric": False, "max_tokens": 24, "context_max_tokens": 12,
    }  # fmt: skip
    before = {
        "paper": "cot_mae",
        "objective": objective,
        "mix": None,
        "heads": "fresh",
        "steps": 4,
        "epochs": None,
        "batch": 8,
        "probe": None,
        "fit": FITTING.model_dump(),
        "seed": 3,
    }
    contexts = [
        {"passage_id": f"p{n}", "text": text, "queries": [text[:20]], "passages": []} for n, text in enumerate(TEXTS)
    ]
    hashes: list[list[str]] = []
    for other in (store, Store(tmp_path / "other")):
        with session(Session(other, Execution(workers=1, threads=1, device="cpu"))) as current:
            pretrained = pretrain(
                pairs=stage_writing("given_pairs", Pairs, contexts)(),
                start=initialise(weights, settings=start),
                settings=Pretraining[cot_mae.Settings].model_validate(before),
            )
            trained = train(
                start=pretrained, queries=stage_writing("given_queries", Queries, queries(POSITIVES))(),
                passages=stage_writing("given_passages", Passages, passages())(),
                positives=stage_writing("given_positives", Positives, positives(POSITIVES))(),
                negatives=stage_writing("given_negatives", Negatives, negatives(NEGATIVES))(), settings=TRAINING,
            )  # fmt: skip
            assert len(current.done) == 8
        manifests = [other.manifest(*reference.split("/")) for reference in current.done]
        hashes.append([manifest.hash for manifest in manifests if manifest])

    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 8
    assert load(trained.path).encoder.pooling == "mean"
    assert not torch.equal(
        BertForMaskedLM.load(trained.path).bert.encoder.layer[0].output.dense.weight,
        BertForMaskedLM.load(pretrained.path).bert.encoder.layer[0].output.dense.weight,
    )


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_every_kind_of_retriever_learns_twenty_texts(
    kind: str, store: Store, backbone: Path, written: Any, tmp_path: Path
) -> None:
    topics = [{"query_id": f"q{n}", "text": " ".join(text.split()[:3])} for n, text in enumerate(TEXTS)]
    inputs = (
        Artifact[Checkpoint]("initialise", "tiny", backbone), written(Queries, topics), written(Passages, passages()),
        written(Positives, positives({f"q{n}": [f"p{n}"] for n in range(20)})), written(Negatives, []), None,
    )  # fmt: skip
    changes = {
        "retriever": RETRIEVERS[kind], "epochs": None, "steps": 60, "batch_queries": 10, "passages_per_query": 2,
        "mask_known_positives": False,
    }  # fmt: skip

    train.body(tmp_path, *inputs, settings=TRAINING.model_copy(update=changes))

    built, tokenizer = load(tmp_path), Tokenizer.load(tmp_path)
    with torch.inference_mode():
        result = built(tokenizer.pad_batch(tokenizer.encode([row["text"] for row in topics], 12)), "query")
        scores = built.scores(result, built(tokenizer.pad_batch(tokenizer.encode(passages_texts(), 20)), "passage"))[
            "sum"
        ]
    assert built.settings == RETRIEVERS[kind]
    assert float((scores.argmax(1) == torch.arange(20)).float().mean()) > 0.9


def test_teacher_scores_are_aligned_with_the_passages(tables: TrainingTables) -> None:
    scored = {
        (q, p): float(n) for n, (q, p) in enumerate((q, p) for q in NEGATIVES for p in (*POSITIVES[q], *NEGATIVES[q]))
    }
    rows = [{"query_id": q, "passage_id": p, "score": score} for (q, p), score in scored.items()]
    rows.append({"query_id": "q9", "passage_id": "p0", "score": -1.0})
    distilled = TRAINING.model_copy(update={"distillation": Distillation(teacher_temperature=1.0, contrast_weight=0.0)})
    data = read_data(*tables.inputs()[1:5], distilled, mined_only=True)
    teacher = ScoreLookup.read(tables.written(TeacherScores, rows[::-1]), data)
    built = RetrieverBatches(data, Tokenizer.load(tables.start.path), distilled, teacher)

    for step in range(6):
        chosen, shown_places = data.examples(step)
        result = built.batch(step).teacher
        assert result is not None
        expected = [
            [scored[data.query_index.ids[query].as_py(), f"p{row}"] for row in shown_places[n * 3 : n * 3 + 3]]
            for n, query in enumerate(chosen)
        ]
        assert result.tolist() == expected


def test_a_pair_that_the_teacher_has_not_scored(tables: TrainingTables) -> None:
    data = tables.data()
    teacher = ScoreLookup.read(
        tables.written(TeacherScores, [{"query_id": "q0", "passage_id": "p0", "score": 1.0}]), data
    )

    with pytest.raises(UserError, match=r"no score of query .* with passage 'p2'"):
        teacher.of([0], [0, 2])
    unknown = tables.written(TeacherScores, [{"query_id": "q9", "passage_id": "p0", "score": 1.0}])
    with pytest.raises(UserError, match="no score is of a query and a passage that are trained on"):
        ScoreLookup.read(unknown, data)


def test_either_steps_or_epochs() -> None:
    with pytest.raises(ValueError, match="either steps or epochs"):
        Training.model_validate(TRAINING.model_dump() | {"steps": 3})


def test_a_batch_has_the_progress_of_the_training(tables: TrainingTables) -> None:
    batches = tables.batches(TRAINING.model_copy(update={"epochs": None, "steps": 8}))

    assert [batches.batch(step).progress for step in (0, 2, 7)] == [0, 0.25, 7 / 8]


def test_new_heads_are_drawn_by_the_seed(tables: TrainingTables, store: Store, tmp_path: Path) -> None:
    settings = TRAINING.model_copy(update={"retriever": RETRIEVERS["coil"], "epochs": None, "steps": 1})
    results = []
    for number in range(2):
        torch.manual_seed(number)
        (tmp_path / str(number)).mkdir()
        train.body(tmp_path / str(number), *tables.inputs(), settings=settings)
        results.append((tmp_path / str(number) / "retriever.safetensors").read_bytes())

    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retriever": {"late": {**LATE, "dim": 99}}}, "late.dim: expected at most the model's 32"),
        ({"retriever": {"dense": {"dim": None}, "late": LATE, "shared_layers": 9}}, "shared_layers: expected 0 to 2"),
        ({"passage_max_tokens": 65}, "train.passage_max_tokens: expected at most 64, found 65"),
    ],
)  # fmt: skip
def test_unsuitable_backbones_are_refused(backbone: Path, changes: dict[str, Any], message: str) -> None:
    settings = Training.model_validate(TRAINING.model_dump() | changes)
    shape = BackboneSettings(
        weights="tiny", start="weights", towers="siamese", layers=None, dropout=0.0, pooling="cls", seed=3
    )

    with pytest.raises(UserError, match=f"rounds: first: .*{message}"):
        check("first", settings, Encoding(query_max_tokens=8, passage_max_tokens=16), shape, backbone)


def test_soft_labels_need_two_passages() -> None:
    distillation = {"teacher_temperature": 1.0, "contrast_weight": 0.0}
    with pytest.raises(ValueError, match="soft labels of one passage"):
        Training.model_validate(TRAINING.model_dump() | {"passages_per_query": 1, "distillation": distillation})
    with pytest.raises(ValueError, match="expected each once"):
        Training.model_validate(TRAINING.model_dump() | {"contrasts": ["sum", "sum"]})
