"""PyLate has the scores of this project. It needs another release of sentence-transformers, and so another Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from models.retrievers.retriever_settings import Prompts, RetrieverSettings
from models.retrievers.views.late import LateSettings
from tasks.retrieval.package_modules import Lengths
from tasks.retrieval.pylate_layout import fits
from tasks.retrieval.sentence_transformer_export import add_files
from tests.tasks.retrieval.test_sentence_transformer_export import (
    FAMILIES,
    LENGTHS,
    PASSAGES,
    QUERIES,
    backbone,
    our_scores,
    saved,
)
from tests.tiny import LATE

PYTHON = "PRETRIEVE_PYLATE_PYTHON"
NORMALISED = LATE | {"normalise": True}
KINDS = {
    "masks": LateSettings(**NORMALISED | {"query_masks": 12}),
    "a bias and no masks": LateSettings(**NORMALISED | {"bias": True}),
    "punctuation": LateSettings(**NORMALISED | {"skip_punctuation": False}),
}
OTHERS = {
    "not normalised": LateSettings(**LATE), "more masks than tokens": LateSettings(**NORMALISED | {"query_masks": 10}),
    "no [CLS]": LateSettings(**NORMALISED | {"use_cls": False}),
    "no [SEP]": LateSettings(**NORMALISED | {"use_sep": False}),
}  # fmt: skip
SCRIPT = """
import json, sys
from pylate import models, scores

queries, passages, folders = json.load(sys.stdin)
results = []
for folder in folders:
    model = models.ColBERT(folder, device="cpu", local_files_only=True)
    sides = [model.encode(texts, is_query=is_query, convert_to_tensor=True)
             for texts, is_query in ((queries, True), (passages, False))]
    results.append([[float(scores.colbert_scores(query[None], passage[None])) for passage in sides[1]]
                    for query in sides[0]])
print(json.dumps(results))
"""


@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no Python with PyLate")
def test_pylate_has_our_scores(tmp_path: Path) -> None:
    expected = {}
    for number, (family, late) in enumerate(
        (family, late) for family in ("bert", *FAMILIES) for late in KINDS.values()
    ):
        (part := tmp_path / str(number)).mkdir()
        saved(folder := part / "model", backbone(part, family), "siamese", RetrieverSettings(late=late))
        assert add_files(folder, **LENGTHS).in_pylate
        expected[str(folder)] = our_scores(folder)

    given = json.dumps([QUERIES, PASSAGES, [*expected]])
    ran = subprocess.run(
        [os.environ[PYTHON], "-c", SCRIPT], input=given, capture_output=True, text=True, check=True, cwd=tmp_path
    )

    theirs = json.loads(ran.stdout.splitlines()[-1])
    for result, scores in zip(theirs, expected.values(), strict=True):
        np.testing.assert_allclose(result, scores, rtol=1e-5, atol=1e-5)
        assert np.ptp(scores) > 0.1


def test_what_pylate_would_compute_otherwise_has_another_layout() -> None:
    lengths = Lengths(12, 20)

    assert all(fits(RetrieverSettings(late=late), lengths) for late in KINDS.values())
    assert not any(fits(RetrieverSettings(late=late), lengths) for late in OTHERS.values())
    assert not fits(RetrieverSettings(late=KINDS["masks"], prompts=Prompts(query="q: ", passage="p: ")), lengths)
    assert not fits(RetrieverSettings(late=KINDS["masks"]), Lengths(12, None))
