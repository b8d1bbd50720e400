"""Two systems side by side, against numpy and scipy on the same values."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_rel

from storage.errors import UserError
from tasks.evaluation.paired_runs import compare_runs

QUERIES = [f"q{n}" for n in range(30)]


def metrics(folder: Path, values: dict[tuple[str, str], np.ndarray], queries: list[str] = QUERIES) -> Path:
    """A folder as `evaluate` writes it, its queries in an order of its own."""
    folder.mkdir()
    order = np.random.default_rng(sum(map(ord, folder.name))).permutation(len(queries))
    pq.write_table(
        pa.concat_tables(
            pa.table({
                "run": [run] * len(queries), "query_id": [queries[index] for index in order],
                "metric": [metric] * len(queries), "value": results[order],
            })
            for (run, metric), results in values.items()
        ),
        folder / "queries.parquet",
    )  # fmt: skip
    return folder


def test_seeds_are_averaged_by_query_and_tested_as_a_family(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    base, better = draw.random(30), draw.random((3, 30)) + 0.4
    worse = base - 0.1 * draw.random(30)
    before = metrics(tmp_path / "before", {("a", "MRR@10"): base, ("b", "MRR@10"): base, ("c", "MRR@10"): base})
    after = [
        metrics(tmp_path / f"after{seed}", {("a", "MRR@10"): value, ("b", "MRR@10"): worse, ("c", "MRR@10"): base})
        for seed, value in enumerate(better)
    ]
    pairs = [("a", "a"), ("b", "b"), ("c", "c"), ("c", "a")]
    rows = compare_runs({"A": [before], "B": after}, pairs, [("c", "c")])

    assert [tuple(row["runs"]) for row in rows] == pairs
    first, second, third, fourth = rows
    mean = better.mean(0)
    assert first["values"] == pytest.approx([base.mean(), mean.mean()])
    assert first["spreads"] == [None, pytest.approx(better.mean(1).std(ddof=1))]
    assert first["difference"] == pytest.approx((mean - base).mean())
    assert first["p"] == pytest.approx(ttest_rel(mean, base).pvalue)
    assert second["spreads"] == [None, None]  # the same in every seed
    assert second["difference"] < 0
    assert second["p"] == pytest.approx(ttest_rel(worse, base).pvalue)
    assert (third["p"], third["p_holm"], third["p_randomisation"]) == (None, None, None)
    assert fourth["p"] == pytest.approx(first["p"])
    three = sorted([first["p"], second["p"], fourth["p"]])  # the same run is not in the family
    assert min(row["p_holm"] for row in (first, second, fourth)) == pytest.approx(3 * three[0])


def test_other_queries_are_refused(tmp_path: Path) -> None:
    one = metrics(tmp_path / "one", {("a", "MRR@10"): np.ones(30)})
    other = metrics(tmp_path / "other", {("a", "MRR@10"): np.ones(29)}, QUERIES[:-1])
    with pytest.raises(UserError, match="1 of B are not in A, 'q29' among them"):
        compare_runs({"A": [other], "B": [one]}, [("a", "a")], [])
    with pytest.raises(UserError, match="1 of A are not in B, 'q29' among them"):
        compare_runs({"A": [one], "B": [other]}, [("a", "a")], [])
    with pytest.raises(UserError, match="one seed are not in another"):
        compare_runs({"A": [one, other], "B": [one]}, [("a", "a")], [])
