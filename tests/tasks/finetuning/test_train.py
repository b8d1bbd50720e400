"""Training a retriever: what each batch shows, what counts in its contrast, and that a tiny one learns."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.layers import bert
from models.papers import cot_mae
from models.retrievers import retriever
from models.retrievers.objective import Distillation, Finetuning
from models.retrievers.retriever import RetrieverSettings, load
from models.retrievers.views import dense
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
    passage_text,
)  # fmt: skip
from tasks.finetuning.train import Batches, Teacher, Training, check, train
from tasks.finetuning.training_data import TrainingData
from tasks.pretraining.initialise import Backbone, initialise
from tasks.pretraining.pretrain import Pretraining, pretrain
from tasks.retrieval.encode import Encoding
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tasks.training.loop import Fitting
from tests.tiny import LATE, RETRIEVERS, WORDS, save_backbone

FITTING = Fitting(learning_rate=3e-3, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None)
TRAINING = Training(
    retriever=RetrieverSettings(dense=dense.Settings(dim=None)), contrasts=["sum"],
    epochs=4, batch_queries=4, passages_per_query=3, temperature=1.0, mask_known_positives=True, query_max_tokens=12,
    passage_max_tokens=20, fit=FITTING, seed=5,
)  # fmt: skip
# Passage p0 of document d0 has the text of number 0, and so on; documents d0 and d1 have two passages each.
DOCUMENTS = ["d0", "d0", "d1", "d1", *(f"d{n}" for n in range(2, 18))]
TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, size=8)) for n in range(20)]
POSITIVES = {"q0": ["p0", "p2"], "q1": ["p5"], "q2": ["p6", "p7", "p8"], "q3": ["p9"], "q4": ["p10"], "q5": ["p11"]}
NEGATIVES = {"q0": ["p4", "p5", "p6", "p7", "p8"], "q1": ["p0", "p1"], "q2": ["p9"], "q3": ["p12", "p13", "p14", "p15"],
             "q4": ["p1", "p2", "p3", "p11"]}  # fmt: skip


def passages() -> list[dict[str, Any]]:
    return [
        {"passage_id": f"p{n}", "doc_id": DOCUMENTS[n], "title": "king" if n == 3 else "", "text": text, "start": 0,
         "end": len(text), "num_tokens": 8}
        for n, text in enumerate(TEXTS)
    ]  # fmt: skip


def positives(given: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": passage, "doc_id": DOCUMENTS[int(passage[1:])]}
        for query, found in given.items()
        for passage in found
    ]


def negatives(given: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": passage, "rank": rank + 1, "score": 1.0}
        for query, found in given.items()
        for rank, passage in enumerate(found)
    ]


def queries(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"query_id": name, "text": TEXTS[int(name[1:])].split()[0] + " " + WORDS[int(name[1:])]} for name in names]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


class Given:
    """Tables to training data, with changes to what stands above."""

    def __init__(self, written: Any, backbone: Path) -> None:
        self.written, self.start = written, Artifact[Checkpoint]("initialise", "tiny", backbone)

    def inputs(
        self, *, names: Iterable[str] = (*POSITIVES, "q9"), positive: Any = POSITIVES, negative: Any = NEGATIVES
    ) -> Any:
        return (
            self.start, self.written(Queries, queries(names)), self.written(Passages, passages()),
            self.written(Positives, positives(positive)), self.written(Negatives, negatives(negative)), None,
        )  # fmt: skip

    def data(self, settings: Training = TRAINING, **changes: Any) -> TrainingData:
        return TrainingData.read(*self.inputs(**changes)[1:5], settings)

    def batches(self, settings: Training = TRAINING, **changes: Any) -> Batches:
        return Batches(self.data(settings, **changes), Tokenizer.load(self.start.path), settings, None)


@pytest.fixture
def given(written: Any, backbone: Path) -> Given:
    return Given(written, backbone)


def shown(data: TrainingData, epochs: int) -> list[dict[str, list[str]]]:
    """For each epoch, each query and the passages that its steps show with it."""
    found: list[dict[str, list[str]]] = [{} for _ in range(epochs)]
    count, group = 0, data.settings.passages_per_query
    names = data.query_ids.to_pylist()
    for step in range(len(names) * epochs // data.settings.batch_queries):
        chosen, passages = data.examples(step)
        for place, query in enumerate(chosen):
            assert names[query] not in found[count // len(names)]
            own = passages[place * group : (place + 1) * group]
            found[count // len(names)][names[query]] = [f"p{number}" for number in own]
            count += 1
    return found


def passages_texts() -> list[str]:
    return [passage_text(row["title"], row["text"]) for row in passages()]


def test_positives_and_negatives_take_turns(given: Given) -> None:
    epochs = shown(given.data(), 10)

    for query, found in POSITIVES.items():
        assert [epoch[query][0] for epoch in epochs] == [found[n % len(found)] for n in range(10)]
    for query, found in NEGATIVES.items():
        flat = [passage for epoch in epochs for passage in epoch[query][1:]]
        laps = [flat[start : start + len(found)] for start in range(0, len(flat) - len(found) + 1, len(found))]
        assert all(sorted(lap) == sorted(found) for lap in laps), query
        assert all(lap == laps[0] for lap in laps)
    assert [passage for epoch in epochs for passage in epoch["q0"][1:]][:5] != NEGATIVES["q0"]  # shuffled


def test_a_query_without_negatives_draws_from_the_corpus(given: Given) -> None:
    epochs = shown(given.data(), 40)

    drawn = [epoch["q5"][1:] for epoch in epochs]
    assert all("p11" not in each for each in drawn)
    assert len({tuple(each) for each in drawn}) > 20
    assert len({passage for each in drawn for passage in each}) > 15


def test_what_is_drawn_is_of_no_relevant_document(given: Given) -> None:
    data = given.data(positive={"q0": [f"p{n}" for n in range(19)]}, negative={})

    assert {passage for epoch in range(20) for passage in data.negatives_of(0, epoch)} == {19}


def test_a_query_for_which_everything_is_relevant(given: Given) -> None:
    data = given.data(positive={"q0": [f"p{n}" for n in range(20)]}, negative={})

    with pytest.raises(UserError, match=r"every document is relevant to it; leave it out of the qrels"):
        data.negatives_of(0, 0)


def test_queries_without_a_positive_are_left_out(given: Given) -> None:
    assert len(given.data().queries) == 6
    with pytest.raises(UserError, match="none of its queries has a positive passage"):
        given.data(names=["q9"])


def test_passages_that_are_not_there(given: Given) -> None:
    _, asked, texts, relevant, *_ = given.inputs()
    wrong = given.written(Negatives, [{"query_id": "q0", "passage_id": "p99", "rank": 1, "score": 1.0}])

    with pytest.raises(UserError, match="passage 'p99' is not among"):
        TrainingData.read(asked, texts, relevant, wrong, TRAINING)


def test_queries_that_nothing_was_mined_for_can_be_left_out(given: Given) -> None:
    _, *tables, _ = given.inputs()

    data = TrainingData.read(*tables, TRAINING, mined_only=True)

    assert data.query_ids.to_pylist() == [query for query in POSITIVES if query in NEGATIVES]


def test_texts_are_cut_and_have_their_titles(given: Given) -> None:
    data = given.batches(TRAINING.model_copy(update={"passage_max_tokens": 6, "query_max_tokens": 3}))
    tokenizer, ids = data.tokenizer, {tuple(row.tolist()) for step in range(9) for row in data.batch(step).passages.ids}

    assert data.batch(0).queries.ids.shape == (4, 3)
    assert all(len(row) == 6 for row in ids)
    king = tokenizer.token_ids(["king"])[0][0]
    assert any(row[1] == king and list(row[2:5]) == tokenizer.token_ids([TEXTS[3]])[0][:3] for row in ids)


def slow_excluded(documents: list[str], relevant: list[set[str]], group: int) -> list[list[bool]]:
    return [
        [documents[column] in relevant[query] and column != query * group for column in range(len(documents))]
        for query in range(len(relevant))
    ]


@pytest.mark.parametrize("masked", [True, False])
def test_a_batchs_loss_is_the_formulas(given: Given, masked: bool) -> None:
    settings = TRAINING.model_copy(update={"mask_known_positives": masked, "batch_queries": 6, "temperature": 2.0})
    data = given.batches(settings)
    objective, batch = Finetuning(retriever.load(given.start.path), settings.loss), data.batch(0)
    found = tuple(each.detach() for each in objective.encode(batch)[0])
    loss = objective.compare(found, batch)["contrastive"].item()

    assert batch.places is not None
    assert all((tokens.mask.sum(1).diff() >= 0).all() for tokens in (batch.queries, batch.passages))
    queries, passages = (torch.argsort(places) for places in batch.places)
    vectors = found[0][queries], found[1][passages]
    tokenizer = data.tokenizer
    names = {tuple(ids): n for n, ids in enumerate(tokenizer.encode(passages_texts(), 20))}
    asked = {tuple(ids): n for n, ids in enumerate(tokenizer.encode(data.data.queries, 12))}
    documents = [
        DOCUMENTS[names[tuple(ids[mask].tolist())]]
        for ids, mask in zip(batch.passages.ids[passages], batch.passages.mask[passages], strict=True)
    ]
    numbers = [
        asked[tuple(ids[mask].tolist())]
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


def test_a_step_is_the_same_whatever_went_before(given: Given) -> None:
    one, other = given.batches(), given.batches()
    for step in range(3):
        other.batch(step)

    assert torch.equal(one.batch(7).passages.ids, other.batch(7).passages.ids)
    assert torch.equal(one.batch(7).queries.ids, other.batch(7).queries.ids)


def test_more_tokens_than_the_model_has_positions(given: Given, store: Store) -> None:
    with pytest.raises(UserError, match="expected at most 64, found 65"):
        train.body(store.root, *given.inputs(), settings=TRAINING.model_copy(update={"passage_max_tokens": 65}))


def test_a_tiny_retriever_learns_twenty_texts(store: Store, backbone: Path, written: Any, tmp_path: Path) -> None:
    asked = [{"query_id": f"q{n}", "text": " ".join(text.split()[:3])} for n, text in enumerate(TEXTS)]
    inputs = (
        Artifact[Checkpoint]("initialise", "tiny", backbone), written(Queries, asked), written(Passages, passages()),
        written(Positives, positives({f"q{n}": [f"p{n}"] for n in range(20)})), written(Negatives, []), None,
    )  # fmt: skip
    changes = {"epochs": 40, "batch_queries": 10, "passages_per_query": 2, "mask_known_positives": False}

    train.body(tmp_path, *inputs, settings=TRAINING.model_copy(update=changes))

    assert reciprocal_rank(backbone, asked) < 0.9
    assert reciprocal_rank(tmp_path, asked) == 1


@torch.inference_mode()
def reciprocal_rank(folder: Path, asked: list[dict[str, Any]]) -> float:
    encoder, tokenizer = load(folder), Tokenizer.load(folder)
    found = encoder(tokenizer.pad_batch(tokenizer.encode([row["text"] for row in asked], 12)), "query").dense
    texts = encoder(tokenizer.pad_batch(tokenizer.encode(passages_texts(), 20)), "passage").dense
    assert found is not None
    assert texts is not None
    scores = found @ texts.T
    ranks = (scores >= scores.diagonal()[:, None]).sum(1)
    return float((1 / ranks).mean())


def given_table(name: str, table: type[Table], rows: list[dict[str, Any]]) -> Any:
    """A stage that writes these rows, so that a store has them."""

    def body(out: Path) -> None:
        write_rows(out, table, rows)

    body.__name__ = name
    return stage(version=1, table=table)(body)


def test_from_weights_to_a_retriever_twice_is_the_same_to_the_byte(
    store: Store, backbone: Path, tmp_path: Path
) -> None:
    weights = source_of(backbone, [file for file in backbone.rglob("*") if file.is_file()])
    start = Backbone(weights="tiny", start="random", towers="siamese", layers=[0], dropout=0.1, pooling="mean", seed=3)
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
    for place in (store, Store(tmp_path / "other")):
        with session(Session(place, Execution(workers=1, threads=1, device="cpu"))) as current:
            pretrained = pretrain(
                pairs=given_table("given_pairs", Pairs, contexts)(),
                start=initialise(weights, settings=start),
                settings=Pretraining[cot_mae.Settings].model_validate(before),
            )
            trained = train(
                start=pretrained, queries=given_table("given_queries", Queries, queries(POSITIVES))(),
                passages=given_table("given_passages", Passages, passages())(),
                positives=given_table("given_positives", Positives, positives(POSITIVES))(),
                negatives=given_table("given_negatives", Negatives, negatives(NEGATIVES))(), settings=TRAINING,
            )  # fmt: skip
            assert len(current.done) == 8
        manifests = [place.manifest(*reference.split("/")) for reference in current.done]
        hashes.append([manifest.hash for manifest in manifests if manifest])

    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 8
    assert load(trained.path).encoder.pooling == "mean"
    assert not torch.equal(
        bert.load(trained.path).bert.encoder.layer[0].output.dense.weight,
        bert.load(pretrained.path).bert.encoder.layer[0].output.dense.weight,
    )


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_every_kind_of_retriever_learns_twenty_texts(
    kind: str, store: Store, backbone: Path, written: Any, tmp_path: Path
) -> None:
    asked = [{"query_id": f"q{n}", "text": " ".join(text.split()[:3])} for n, text in enumerate(TEXTS)]
    inputs = (
        Artifact[Checkpoint]("initialise", "tiny", backbone), written(Queries, asked), written(Passages, passages()),
        written(Positives, positives({f"q{n}": [f"p{n}"] for n in range(20)})), written(Negatives, []), None,
    )  # fmt: skip
    changes = {
        "retriever": RETRIEVERS[kind], "epochs": None, "steps": 60, "batch_queries": 10, "passages_per_query": 2,
        "mask_known_positives": False,
    }  # fmt: skip

    train.body(tmp_path, *inputs, settings=TRAINING.model_copy(update=changes))

    made, tokenizer = load(tmp_path), Tokenizer.load(tmp_path)
    with torch.inference_mode():
        found = made(tokenizer.pad_batch(tokenizer.encode([row["text"] for row in asked], 12)), "query")
        scores = made.scores(found, made(tokenizer.pad_batch(tokenizer.encode(passages_texts(), 20)), "passage"))["sum"]
    assert made.settings == RETRIEVERS[kind]
    assert float((scores.argmax(1) == torch.arange(20)).float().mean()) > 0.9


def test_a_teachers_scores_lie_where_the_passages_are(given: Given) -> None:
    scored = {
        (q, p): float(n) for n, (q, p) in enumerate((q, p) for q in NEGATIVES for p in (*POSITIVES[q], *NEGATIVES[q]))
    }
    rows = [{"query_id": q, "passage_id": p, "score": score} for (q, p), score in scored.items()]
    rows.append({"query_id": "q9", "passage_id": "p0", "score": -1.0})
    distilled = TRAINING.model_copy(update={"distillation": Distillation(teacher_temperature=1.0, contrast_weight=0.0)})
    data = TrainingData.read(*given.inputs()[1:5], distilled, mined_only=True)
    teacher = Teacher.read(given.written(TeacherScores, rows[::-1]), data)
    made = Batches(data, Tokenizer.load(given.start.path), distilled, teacher)

    for step in range(6):
        chosen, shown_places = data.examples(step)
        found = made.batch(step).teacher
        assert found is not None
        expected = [
            [scored[data.query_ids[query].as_py(), f"p{place}"] for place in shown_places[n * 3 : n * 3 + 3]]
            for n, query in enumerate(chosen)
        ]
        assert found.tolist() == expected


def test_a_pair_that_the_teacher_has_not_scored(given: Given) -> None:
    data = given.data()
    teacher = Teacher.read(given.written(TeacherScores, [{"query_id": "q0", "passage_id": "p0", "score": 1.0}]), data)

    with pytest.raises(UserError, match=r"no score of query .* with passage 'p2'"):
        teacher.of([0], [0, 2])


def test_either_steps_or_epochs() -> None:
    with pytest.raises(ValueError, match="either steps or epochs"):
        Training.model_validate(TRAINING.model_dump() | {"steps": 3})


def test_a_batch_knows_how_much_is_done(given: Given) -> None:
    batches = given.batches(TRAINING.model_copy(update={"epochs": None, "steps": 8}))

    assert [batches.batch(step).progress for step in (0, 2, 7)] == [0, 0.25, 7 / 8]


def test_new_heads_are_drawn_by_the_seed(given: Given, store: Store, tmp_path: Path) -> None:
    settings = TRAINING.model_copy(update={"retriever": RETRIEVERS["coil"], "epochs": None, "steps": 1})
    found = []
    for number in range(2):
        torch.manual_seed(number)
        (tmp_path / str(number)).mkdir()
        train.body(tmp_path / str(number), *given.inputs(), settings=settings)
        found.append((tmp_path / str(number) / "retriever.safetensors").read_bytes())

    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"retriever": {"late": {**LATE, "dim": 99}}}, "late.dim: expected at most the model's 32"),
        ({"retriever": {"dense": {"dim": None}, "late": LATE, "shared_layers": 9}}, "shared_layers: expected 0 to 2"),
        ({"passage_max_tokens": 65}, "train.passage_max_tokens: expected at most 64, found 65"),
    ],
)  # fmt: skip
def test_what_a_backbone_cannot_be_trained_as(backbone: Path, changes: dict[str, Any], said: str) -> None:
    settings = Training.model_validate(TRAINING.model_dump() | changes)
    shape = Backbone(weights="tiny", start="weights", towers="siamese", layers=None, dropout=0.0, pooling="cls", seed=3)

    with pytest.raises(UserError, match=f"rounds: first: .*{said}"):
        check("first", settings, Encoding(query_max_tokens=8, passage_max_tokens=16), shape, backbone)


def test_soft_labels_need_two_passages() -> None:
    distillation = {"teacher_temperature": 1.0, "contrast_weight": 0.0}
    with pytest.raises(ValueError, match="soft labels of one passage"):
        Training.model_validate(TRAINING.model_dump() | {"passages_per_query": 1, "distillation": distillation})
    with pytest.raises(ValueError, match="expected each once"):
        Training.model_validate(TRAINING.model_dump() | {"contrasts": ["sum", "sum"]})
