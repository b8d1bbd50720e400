"""Models from outside the store are checked for each stage that reads them; test_model_weights.py has pickled ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.chain.given_models import check_models
from models.layers.bert_config import BertConfig
from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.store.store import Store
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.rerank import Reranking, rerank
from tasks.cross_encoder.score import score
from tasks.session import Session, session
from tests.tiny import SHAPE, save_tokenizer


def test_a_model_that_fits_one_stage_is_checked_for_a_later_one_with_longer_pairs(tmp_path: Path) -> None:
    teacher = Source("teacher", tmp_path / "teacher")
    teacher.path.mkdir()
    cross_encoder.save(CrossEncoder(BertConfig(**SHAPE)), teacher.path)
    save_tokenizer(teacher.path)
    positions = SHAPE["max_position_embeddings"]
    table: Any = Artifact("any", "0" * 24, tmp_path)
    with session(Session(Store(tmp_path / "store"), planning=True)) as plan:
        score(
            teacher=teacher, queries=table, passages=table, positives=table, negatives=table,
            settings=Scoring(query_max_tokens=8, max_tokens=positions),
        )  # fmt: skip
        check_models(plan.jobs, plan)
        rerank(
            teacher=teacher, run=table, queries=table, passages=table,
            settings=Reranking(query_max_tokens=8, max_tokens=positions + 1, depth=10),
        )  # fmt: skip

        with pytest.raises(UserError, match=f"max_tokens: expected at most {positions}, found {positions + 1}"):
            check_models(plan.jobs, plan)
