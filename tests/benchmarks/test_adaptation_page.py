"""The table of docs/adaptation.md: it is that of the kept results, and its numbers follow from the values by query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from benchmarks import adaptation_page
from benchmarks.adaptation_page import (
    MARKS,
    PAGE,
    RESULTS,
    against_bm25,
    agreement,
    answer,
    choices,
    file_name,
    groups,
    missed_gains,
    part,
    values_by_query,
    values_file,
)


def test_the_page_has_the_table_of_the_kept_results() -> None:
    written = PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]

    assert written == part(json.loads(RESULTS.read_text()))


def test_values_by_query_have_the_kept_means() -> None:
    for row in json.loads(RESULTS.read_text()):
        assert pq.read_table(values_file(row)).num_rows == row["systems"]["start"]["queries"]
        for name, system in row["systems"].items():
            assert values_by_query(row, name).mean() == pytest.approx(system["value"], abs=1e-6)


def run(seed: int, winner: str, real: tuple[float, float], pseudo: tuple[float, float]) -> dict[str, Any]:
    """A run with one candidate, by the differences and p-values of its real and its pseudo-queries."""
    adapted = {
        "value": 0.5, "queries": 4, "difference": real[0], "p_holm": real[1],
        "pseudo_difference": pseudo[0], "pseudo_p_holm": pseudo[1],
    }  # fmt: skip
    return {
        "collection": "covid-qa", "documents": 9, "start": "package:tiny/model", "seed": seed, "size": "medium",
        "requested_size": "medium", "requested": 9, "winner": winner,
        "cpu_seconds": 60 * seed,
        "systems": {"start": {"value": 0.4, "queries": 4}, "adapted": adapted},
    }  # fmt: skip


def test_intervals_and_tests_are_over_seeds_and_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation_page, "VALUES", tmp_path)
    rows = [run(1, "adapted", (0.1, 0.01), (0.2, 0.01)), run(2, "start", (0.1, 0.01), (0.1, 0.2))]
    differences = np.array([[0.1, 0.3, 0.0, 0.2], [0.2, 0.2, 0.1, 0.1]])
    for row, by_query in zip(rows, differences, strict=True):
        values = {
            "query_id": ["d", "c", "b", "a"], "start": np.full(4, 0.25), "adapted": 0.25 + by_query,
            "bm25": np.full(4, 0.5), "hybrid": 0.5 + by_query,
        }  # fmt: skip
        pq.write_table(pa.table(values), values_file(row))

    _, lines = part(list(reversed(rows))).split("| collection | start | system |")
    start, adapted = lines.splitlines()[2:4]

    # The two-way table by hand: the means of seeds are equal, so the queries' mean square decides.
    means = differences.mean(axis=0)
    half = stats.t.ppf(0.975, 3) * means.std(ddof=1) / 2
    p = stats.ttest_1samp(means, 0).pvalue
    assert "| covid-qa: 9 documents, 4 queries | tiny, plan medium, seeds 1, 2 | start | 0.250" in start
    assert f"+0.150 [{differences.mean() - half:+.3f}, {differences.mean() + half:+.3f}] | {p:.2g} |" in adapted
    assert adapted.endswith("| +0.200, +0.100 | 1 of 2 |")


def test_the_returned_models_and_the_hybrid_are_compared_with_bm25(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation_page, "VALUES", tmp_path)
    rows = [run(1, "adapted", (0.1, 0.01), (0.2, 0.01)), run(2, "start", (0.1, 0.01), (0.1, 0.2))]
    hybrid = np.array([0.1, 0.3, 0.0, 0.2])
    for row in rows:
        adapted = np.array([0.5, 0.6, 0.7, 0.8])
        values = {"query_id": ["a", "b", "c", "d"], "start": np.full(4, 0.25), "adapted": adapted}
        pq.write_table(pa.table(values | {"bm25": np.full(4, 0.5), "hybrid": 0.5 + hybrid}), values_file(row))

    [[name, _, returned, _, fused, p]] = against_bm25(groups(rows))

    # Seed 1 returned `adapted`, 0.15 above BM25, and seed 2 the start, 0.25 below it.
    assert (name, returned.split()[0], fused.split()[0]) == ("covid-qa: 9 documents", "−0.050", "+0.150")
    # The smaller p of two, so Holm's factor is 2.
    assert p == f"{2 * stats.ttest_1samp(hybrid, 0).pvalue:.2g}"


def test_the_answer_counts_significant_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation_page, "VALUES", tmp_path)
    rows = [run(1, "adapted", (0.1, 0.01), (0.2, 0.01)) | {"collection": name} for name in ("a", "b", "c")]
    noise = np.array([-0.01, 0.01, -0.02, 0.02])
    for row, gain in zip(rows, (0.3, 0.3, 0.0), strict=True):  # on the last one nothing differs significantly
        values = {"query_id": ["a", "b", "c", "d"], "start": np.full(4, 0.25), "adapted": 0.25 + gain + noise}
        pq.write_table(pa.table(values | {"bm25": 0.75 - gain * noise, "hybrid": 0.75 + 2 * noise}), values_file(row))

    line = answer(groups(rows)).splitlines()[-1]

    assert line == "| `tiny` | 3 | 2 better, 0 worse | 0 better, 3 worse | 0 better, 0 worse |"


def test_agreement_counts_verdicts_and_returned_models_that_are_worse() -> None:
    rows = [
        run(1, "adapted", (0.1, 0.01), (0.2, 0.01)),
        run(2, "start", (0.1, 0.01), (0.1, 0.2)),
        run(3, "adapted", (-0.1, 0.01), (0.1, 0.01)),
    ]
    lost = [*rows, run(4, "start", (-0.2, 0.01), (-0.1, 0.01))]

    other = run(5, "adapted", (0.1, 0.01), (0.1, 0.01)) | {"start": "other"}
    assert "so many candidates: 1 of 3 from `tiny`, 1 of 1 from `other`." in agreement([*rows, other])
    assert "In 1 of 2 runs that returned a candidate its mean on real queries is below the start's" in agreement(rows)
    worse = "of them are significantly worse than their start"
    assert f"On real queries 1 {worse}, 0 of these on pseudo-queries, too. In 1" in agreement(rows)
    assert f"On real queries 2 {worse}, 1 of these on pseudo-queries, too. In 1" in agreement(lost)
    assert "On real queries 0 of them are significantly worse than their start, so whether" in agreement(rows[:2])
    assert "In 1 of 2 runs that returned the start, a candidate is significantly better" in agreement(lost)
    assert missed_gains(rows).endswith("on real queries, by at most 0.100.")
    assert missed_gains(rows[:1]) == "No run returned the start."


def test_a_choice_among_several_candidates_is_compared_with_the_best_of_them() -> None:
    def of(first: float, second: float, winner: str) -> dict[str, Any]:
        systems = {name: {"value": value, "pseudo_difference": 0.1} for name, value in (("a", first), ("b", second))}
        return {"winner": winner, "systems": {"start": {"value": 0.9}, **systems}}

    alone = {"winner": "a", "systems": {"start": {"value": 0.1}, "a": {"value": 0.2, "pseudo_difference": 0.1}}}
    words = choices([of(0.5, 0.3, "a"), of(0.5, 0.3, "b"), of(0.5, 0.54, "a"), of(0.5, 0.3, "start"), alone])

    assert words.startswith("Of the runs that chose among several candidates, 1 of 3 returned the one that is best")
    assert words.endswith("lost at most 0.200 by the choice.")


def test_runs_with_a_generator_or_a_teacher_are_apart_from_those_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation_page, "VALUES", tmp_path)
    without = run(1, "adapted", (0.1, 0.01), (0.2, 0.01))
    models = [{}, {"generator": "to/t5", "teacher": None}, {"generator": None, "teacher": "package:cross/model"}]
    models += [{"generator": "to/t5", "teacher": "package:cross/model"}]
    rows = [without | given for given in models]
    for gain, row in enumerate(rows):
        noise = np.array([-0.01, 0.01, -0.02, 0.02])
        values = {"query_id": ["a", "b", "c", "d"], "start": np.full(4, 0.25), "adapted": 0.25 + 0.1 * gain + noise}
        pq.write_table(pa.table(values | {"bm25": np.full(4, 0.2), "hybrid": np.full(4, 0.2)}), values_file(row))

    written = part(rows)

    assert [file_name(row) for row in rows] == [
        "covid-qa-9-tiny-medium-1", "covid-qa-9-tiny-generator_t5-medium-1", "covid-qa-9-tiny-teacher_cross-medium-1",
        "covid-qa-9-tiny-generator_t5-teacher_cross-medium-1",
    ]  # fmt: skip
    names = ["tiny", "tiny, teacher cross", "tiny, generator t5", "tiny, generator t5, teacher cross"]
    cell_pairs = [line.split(" | ")[:2] for line in written.splitlines()]
    headings = [cells[1] for cells in cell_pairs if cells[0] == "| covid-qa: 9 documents, 4 queries"]
    assert headings == [f"{name}, plan medium, seed 1" for name in names]
    against = [cells[1] for cells in cell_pairs if cells[0] == "| covid-qa: 9 documents"]
    assert against == [f"{name}, plan medium" for name in names]
    assert len(groups([without, without | {"generator": None, "teacher": None, "seed": 2}])) == 1
    for name in names:
        start, comma, given = name.partition(",")
        assert f"| `{start}`{comma}{given} | 1 | " in written
    means = [line.split(" | ")[3].split()[0] for line in written.splitlines() if " | adapted | " in line]
    assert means == ["0.250", "0.450", "0.350", "0.550"]  # each by its own values
    for model, gain in (("the generator `t5`", 0.1), ("the teacher `cross`", 0.2)):
        assert f"With {model}, the model that is returned on 9 documents of covid-qa differs" in written
        assert f"differs from the one without by {gain:+.3f} [" in written
    assert "With the generator `t5` and the teacher `cross`, the model" in written
    apart = [without, rows[1] | {"seed": 2}]  # other seeds are not compared
    pq.write_table(pq.read_table(values_file(rows[1])), values_file(apart[1]))
    assert " the one without by " not in part(apart)
