"""Training settings that change what a batch has or which loss is used."""

import pytest

from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views import late
from models.retrievers.views.late import LateSettings
from tasks.finetuning.train import Training
from tests.tasks.finetuning.training_tables import TRAINING, TrainingTables
from tests.tiny import LATE


def test_batches_have_the_markers_that_searches_have(tables: TrainingTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "MARKERS", {"query": "q", "passage": "d"})
    marked = RetrieverSettings(late=LateSettings(**LATE, markers=True))
    settings = TRAINING.model_copy(update={"retriever": marked, "query_max_tokens": 4, "passage_max_tokens": 6})
    batches = tables.batches(settings)

    batch = batches.batch(1)

    ids = batches.tokenizer.token_id("q"), batches.tokenizer.token_id("d")
    for tokens, marker, length in zip((batch.queries, batch.passages), ids, (4, 6), strict=True):
        assert (tokens.ids[:, 0] == batches.tokenizer.cls).all()
        assert (tokens.ids[:, 1] == marker).all()
        assert tokens.ids.shape[1] == length
    assert (batch.progress, batch.step_share) == (1 / batches.steps, 1 / batches.steps)


def test_a_pairwise_loss_needs_a_negative() -> None:
    values = TRAINING.model_dump() | {
        "retriever": TRAINING.retriever, "fit": TRAINING.fit, "contrast_loss": "pairwise"
    }  # fmt: skip
    assert Training(**values).loss.contrast_loss == "pairwise"
    assert "contrast_loss" not in TRAINING.model_dump()
    with pytest.raises(ValueError, match="a pairwise loss needs a negative"):
        Training(**values | {"passages_per_query": 1})
