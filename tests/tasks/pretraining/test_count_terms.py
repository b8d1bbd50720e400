"""Counts of WordPiece tokens, compared with a count by hand."""

from collections import Counter
from typing import Any

import pytest

from models.tokens import Tokenizer
from storage.artifact import Source
from storage.rows import read_rows
from storage.tables import Pairs, Terms
from tasks.corpus import token_counts
from tasks.pretraining.count_terms import count_terms
from tests.tiny import PIECES, save_tokenizer

TEXTS = ["river river castles", "the river", "king of stone stone stone", ""]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("batch", [1000, 2])
def test_pieces_are_counted(
    written: Any, run_stage: Any, tmp_path: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_counts, "TEXTS_PER_BATCH", batch)
    save_tokenizer(tmp_path)
    pairs = written(Pairs, [{"passage_id": str(n), "text": text, "queries": [], "passages": []}
                            for n, text in enumerate(TEXTS)])  # fmt: skip

    results = list(read_rows(run_stage(count_terms, pairs=pairs, tokenizer=Source("tiny", tmp_path)), Terms))

    split = Tokenizer.load(tmp_path).token_ids(TEXTS)
    occurrences = Counter(piece for text in split for piece in text)
    texts = Counter(piece for text in split for piece in set(text))
    assert [row["piece"] for row in results] == list(range(len(PIECES)))
    assert {row["piece"]: row["occurrences"] for row in results if row["occurrences"]} == dict(occurrences)
    assert {row["piece"]: row["texts"] for row in results if row["texts"]} == dict(texts)
    river = results[PIECES.index("river")]
    assert (river["texts"], river["occurrences"]) == (2, 3)
