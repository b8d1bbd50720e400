"""The examples of each training step: positives and negatives rotate, and nothing relevant is a negative."""

import pytest
import torch

from storage.errors import UserError
from storage.tables import (
    Negatives,
)  # fmt: skip
from tasks.finetuning.training_data import TrainingData
from tests.tasks.finetuning.training_tables import NEGATIVES, POSITIVES, TEXTS, TRAINING, TrainingTables, read_data


def examples_of_epochs(data: TrainingData, epochs: int) -> list[dict[str, list[str]]]:
    """Return for each epoch the passages of each query."""
    results: list[dict[str, list[str]]] = [{} for _ in range(epochs)]
    count, group = 0, data.settings.passages_per_query
    names = data.query_index.ids.to_pylist()
    for step in range(len(names) * epochs // data.settings.batch_queries):
        chosen, passages = data.examples(step)
        for index, query in enumerate(chosen):
            assert names[query] not in results[count // len(names)]
            own = passages[index * group : (index + 1) * group]
            results[count // len(names)][names[query]] = [f"p{number}" for number in own]
            count += 1
    return results


def test_positives_and_negatives_rotate_with_the_epochs(tables: TrainingTables) -> None:
    epochs = examples_of_epochs(tables.data(), 10)

    for query, results in POSITIVES.items():
        assert [epoch[query][0] for epoch in epochs] == [results[n % len(results)] for n in range(10)]
    for query, results in NEGATIVES.items():
        flat = [passage for epoch in epochs for passage in epoch[query][1:]]
        laps = [flat[start : start + len(results)] for start in range(0, len(flat) - len(results) + 1, len(results))]
        assert all(sorted(lap) == sorted(results) for lap in laps), query
        assert all(lap == laps[0] for lap in laps)
    assert [passage for epoch in epochs for passage in epoch["q0"][1:]][:5] != NEGATIVES["q0"]  # shuffled


def test_a_query_without_mined_negatives_has_random_ones(tables: TrainingTables) -> None:
    epochs = examples_of_epochs(tables.data(), 40)

    drawn = [epoch["q5"][1:] for epoch in epochs]
    assert all("p11" not in group for group in drawn)
    assert len({tuple(group) for group in drawn}) > 20
    assert len({passage for group in drawn for passage in group}) > 15


def test_random_negatives_are_not_of_a_relevant_document(tables: TrainingTables) -> None:
    data = tables.data(positive={"q0": [f"p{n}" for n in range(19)]}, negative={})

    assert {passage for epoch in range(20) for passage in data.negatives_of(0, epoch)} == {19}


def test_a_query_to_which_every_document_is_relevant_is_refused(tables: TrainingTables) -> None:
    data = tables.data(positive={"q0": [f"p{n}" for n in range(20)]}, negative={})

    with pytest.raises(UserError, match=r"every document is relevant to it; leave it out of the qrels"):
        data.negatives_of(0, 0)


def test_queries_without_a_positive_are_left_out(tables: TrainingTables) -> None:
    assert len(tables.data().queries) == 6
    with pytest.raises(UserError, match="none of its queries has a positive passage"):
        tables.data(names=["q9"])


def test_labels_of_unknown_passages_are_refused(tables: TrainingTables) -> None:
    _, queries, passages, positives, *_ = tables.inputs()
    wrong = tables.written(Negatives, [{"query_id": "q0", "passage_id": "p99", "rank": 1, "score": 1.0}])

    with pytest.raises(UserError, match="passage 'p99' is not among"):
        read_data(queries, passages, positives, wrong, TRAINING)


def test_queries_without_mined_negatives_can_be_left_out(tables: TrainingTables) -> None:
    _, *inputs, _ = tables.inputs()

    data = read_data(*inputs, TRAINING, mined_only=True)

    assert data.query_index.ids.to_pylist() == [query for query in POSITIVES if query in NEGATIVES]


def test_texts_are_cut_and_have_their_titles(tables: TrainingTables) -> None:
    data = tables.batches(TRAINING.model_copy(update={"passage_max_tokens": 6, "query_max_tokens": 3}))
    tokenizer, ids = data.tokenizer, {tuple(row.tolist()) for step in range(9) for row in data.batch(step).passages.ids}

    assert data.batch(0).queries.ids.shape == (4, 3)
    assert all(len(row) == 6 for row in ids)
    king = tokenizer.token_ids(["king"])[0][0]
    assert any(row[1] == king and list(row[2:5]) == tokenizer.token_ids([TEXTS[3]])[0][:3] for row in ids)


def test_a_step_depends_only_on_its_number(tables: TrainingTables) -> None:
    one, other = tables.batches(), tables.batches()
    for step in range(3):
        other.batch(step)

    assert torch.equal(one.batch(7).passages.ids, other.batch(7).passages.ids)
    assert torch.equal(one.batch(7).queries.ids, other.batch(7).queries.ids)
