"""Comparisons of two finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.compare import compared
from pretrieve.runs import FinishedRun
from pretrieve.settings import Store, store_folder
from storage.store.store import Store as OpenStore

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """The differences of a second run from a first one: settings, and every metric of the systems that both have."""

    content: Mapping[str, Any]
    """The content of the page of `pretrieve compare`."""

    @property
    def settings(self) -> pd.DataFrame:
        """The settings that differ: setting, first, second."""
        import pandas as pd

        return pd.DataFrame(self.content["settings"], columns=["setting", "first", "second"])

    @property
    def metrics(self) -> pd.DataFrame:
        """The metrics: run, split, metric, first, second, difference, p, and p with Holm's correction.

        `run` is a system that both have, or the two names where the headlines differ; p is missing where both have
        the same ranking. `pretrieve.compare("quickstart", other).metrics.query("p_holm < 0.05")`.
        """
        import pandas as pd

        rows = [
            {
                "run": " → ".join(dict.fromkeys(row["runs"])), "split": split["name"], "metric": row["metric"],
                "first": row["values"][0], "second": row["values"][1],
                **{name: row[name] for name in ("difference", "p", "p_holm")},
            }
            for split in self.content["splits"]
            for row in split["rows"]
        ]  # fmt: skip
        return pd.DataFrame(rows)


def compare(first: FinishedRun | str, second: FinishedRun | str, *, store: Store = None) -> Comparison:
    """Compare two finished runs on equal queries, as `pretrieve compare` does.

    Runs are given as such, by a recipe's name, a report's key or a folder; several seeds of one recipe by their names
    with commas. Runs of another store than `store` are given by the folders of their reports.

        pretrieve.compare(run, "small/masked_lm").metrics
    """
    one, other = (str(run.path) if isinstance(run, FinishedRun) else run for run in (first, second))
    return Comparison(compared(one, other, OpenStore.open_or_new(store_folder(store))))
