"""The folder of an adaptation's model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_rel

from flows.adapt.decision import Decision
from flows.adapt.recipes import Start
from flows.adapt.request import Request
from flows.adapt.results import deciding_tests, suite, write_model
from flows.recipe.suite_schema import Collection
from storage.store.store import Store
from tasks.corpus.split_corpus import Splitting
from tasks.retrieval.stated_model import StatedModel
from tests.flows.export.test_model_card import Named, given_model
from tests.tiny import save_backbone


def test_a_start_that_was_trained_again_in_its_folder_is_copied_again(tmp_path: Path, store: Store) -> None:
    start, decision = tmp_path / "start", Decision("start", "nothing was gained", "", {})
    start.mkdir()
    for spread in (0.1, 0.2):
        save_backbone(start, spread=spread, pooling="mean")
        model = write_model(Request(tmp_path / "texts", tmp_path / "out", str(start)), decision, {}, store)
        assert (model / "model.safetensors").read_bytes() == (start / "model.safetensors").read_bytes()


def test_the_model_card_has_the_last_verdict_and_is_not_written_twice(tmp_path: Path, store: Store) -> None:
    checkpoint = given_model(settings=Named(recipe="one"))
    request = Request(tmp_path / "texts" / ".." / "texts", tmp_path / "out")

    def card(verdict: str) -> Path:
        decision = Decision("adapted_bm25", verdict, "Means: 0.5", {})
        return write_model(request, decision, {"adapted_bm25": checkpoint.key}, store) / "README.md"

    first = card("It helped.").read_text()
    assert "# A retriever adapted to texts\n" in first
    assert "\n\nIt helped. Means: 0.5.\n" in first
    written = card("It helped more.")
    assert written.read_text() == first.replace("It helped.", "It helped more.")
    before = written.stat().st_ino
    assert card("It helped more.").stat().st_ino == before


def test_held_out_documents_are_split_by_the_rules_of_their_language() -> None:
    start = Start("a/start", StatedModel(pooling="mean", normalises=True), 128)
    collection = Collection(name="heldout", reader="beir", path="texts", eval_split="heldout")

    splits = [suite(start, [collection], "texts", language).split for language in ("en", "de")]

    assert [split.language for split in splits] == ["en", "de"]
    assert splits[0] == suite(start, [collection], "texts").split == Splitting(max_tokens=128, titles=True)


def test_pseudo_queries_of_a_document_count_together(store: Store) -> None:
    """The t-test of the documents' means, since each has two queries; judged queries are left as they are."""
    ids = [f"{name}?{number}" for name in ("a", "b", "c") for number in (0, 1)]
    start, better, bm25 = np.full(6, 0.4), np.array([0.5, 0.5, 0.6, 0.8, 0.4, 0.3]), np.linspace(0.3, 0.9, 6)
    folder = store.folder("evaluate", "key")
    folder.mkdir(parents=True)
    pq.write_table(
        pa.table({
            "run": [name for name in ("start", "better", "bm25") for _ in ids], "query_id": ids * 3,
            "metric": ["nDCG@10"] * 18, "value": np.concatenate([start, better, bm25]),
        }), folder / "queries.parquet",
    )  # fmt: skip
    row = {"baseline": "start", "metric": "nDCG@10", "difference": 0.1, "p": 0.01, "p_holm": 0.02}
    content = {
        "inputs": {"heldout": "key"},
        "comparisons": [
            row | {"dataset": of, "run": run} for of in ("heldout", "judged") for run in ("better", "bm25")
        ],
    }

    better_row, bm25_row, *judged = deciding_tests(content, store)

    expected = [ttest_rel(run.reshape(3, 2).mean(axis=1), [0.4] * 3).pvalue for run in (better, bm25)]
    assert [better_row["p"], bm25_row["p"]] == pytest.approx(expected)
    assert [one["p"] for one in judged] == [0.01, 0.01]
    # Holm's correction over one candidate changes nothing, whatever BM25 does.
    assert all(one["p_holm"] == one["p"] for one in (better_row, bm25_row, *judged))


def test_the_correction_is_over_the_candidates(store: Store) -> None:
    ids, rng = [f"{name}?0" for name in "abcdefgh"], np.random.default_rng(3)
    runs = {name: rng.uniform(size=8) for name in ("start", "adapted_bm25", "adapted_mined", "bm25")}
    folder = store.folder("evaluate", "key")
    folder.mkdir(parents=True)
    pq.write_table(
        pa.table({
            "run": [name for name in runs for _ in ids], "query_id": ids * 4, "metric": ["nDCG@10"] * 32,
            "value": np.concatenate(list(runs.values())),
        }), folder / "queries.parquet",
    )  # fmt: skip
    row = {"dataset": "heldout", "baseline": "start", "metric": "nDCG@10", "difference": 0.1, "p": 0.5, "p_holm": 0.5}
    content = {"inputs": {"heldout": "key"}, "comparisons": [row | {"run": run} for run in list(runs)[1:]]}

    found = {one["run"]: one["p_holm"] for one in deciding_tests(content, store)}

    p = {name: ttest_rel(values, runs["start"]).pvalue for name, values in runs.items() if name != "start"}
    low, high = sorted((p["adapted_bm25"], p["adapted_mined"]))
    corrected = {low: min(1, 2 * low), high: max(min(1, 2 * low), high)}
    assert found == pytest.approx({
        "adapted_bm25": corrected[p["adapted_bm25"]], "adapted_mined": corrected[p["adapted_mined"]], "bm25": p["bm25"],
    })  # fmt: skip
