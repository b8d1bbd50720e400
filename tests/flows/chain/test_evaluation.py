"""A metric that a split does not allow is an error before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.chain.collection import SplitTopics
from flows.chain.evaluation import check_metrics, measurable
from flows.recipe.load import load_recipe
from storage.artifact import Artifact
from storage.errors import UserError

HERE: Artifact[Any] = Artifact("ingest", "0" * 24, Path("nowhere"))
JUDGED, ANSWERED = SplitTopics("dev", HERE, HERE, None), SplitTopics("test", HERE, None, HERE)


def test_answers_measure_answers_and_judgements_all_else() -> None:
    metrics = ["MRR@10", "answer@20"]

    assert measurable(metrics, JUDGED) == ["MRR@10"]
    assert measurable(metrics, ANSWERED) == ["answer@20"]
    assert measurable(metrics, SplitTopics("both", HERE, HERE, HERE)) == metrics


def test_a_split_that_nothing_measures_is_named() -> None:
    with pytest.raises(UserError, match=r"split test has answers and no judgements, so MRR@10 .* add answer@20, or"):
        measurable(["MRR@10"], ANSWERED)
    with pytest.raises(UserError, match=r"split dev has no answers, so answer@5 .* add nDCG@10, or leave"):
        measurable(["answer@5"], JUDGED)


def test_a_headline_that_its_split_has_not_is_refused() -> None:
    recipe, _ = load_recipe("quickstart", ["evaluate.metrics=[MRR@10, answer@20]"])

    check_metrics(recipe, [JUDGED, ANSWERED])
    with pytest.raises(UserError, match=r"headline\.metric: MRR@10 cannot be measured on test.* expected answer@20"):
        check_metrics(recipe, [ANSWERED, JUDGED])
