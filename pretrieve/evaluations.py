"""Evaluations of retrievers on a suite of collections."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.evaluate.evaluate import evaluated, requested
from pretrieve.retrievers import LoadedRetriever
from pretrieve.runs import COLUMNS, Checkpoint
from pretrieve.settings import Store, as_changes, printing, store_folder
from storage.errors import UserError
from storage.store.store import Store as OpenStore
from tasks.report.page.statistics import with_intervals

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evaluation:
    """The measurements of several systems on a suite."""

    page: Path
    """The report."""
    content: Mapping[str, Any]
    """The content of report.json, with tests and expected values."""

    @property
    def metrics(self) -> pd.DataFrame:
        """The metrics: run, split (as COLLECTION/SPLIT), metric, value, and its interval from low to high."""
        import pandas as pd

        rows = with_intervals(self.content["rows"], self.content["intervals"])
        named = [{**row, "split": f"{row['dataset']}/{row['split']}"} for row in rows]
        return pd.DataFrame(named, columns=list(COLUMNS))

    @property
    def comparisons(self) -> pd.DataFrame:
        """The paired tests against the first system: dataset, run, baseline, metric, difference, p, p_holm."""
        import pandas as pd

        return pd.DataFrame(self.content["comparisons"])


def evaluate(
    models: Sequence[str | Path | Checkpoint | LoadedRetriever], *, suite: str, only: str | Sequence[str] = (),
    skip_missing: bool = False, store: Store = None, set: Mapping[str, Any] | None = None,  # noqa: A002
    progress: bool = True,
) -> Evaluation:  # fmt: skip
    """Measure retrievers on a suite, as `pretrieve evaluate` does; all are tested against the first.

    pretrieve.evaluate(["bm25", run["retriever_2"]], suite="beir_public", only=["SciFact"]).metrics
    """
    if isinstance(models, str) or not models:
        raise UserError(f"models: expected a list of models, found {models or 'none'}; write ['bm25', …]")
    folder = store_folder(store)
    selected = [only] if isinstance(only, str) else only
    request = requested(
        [_name(model, folder) for model in models], str(suite), folder, selected, skip_missing, as_changes(set)
    )
    with printing(progress) as print_line:
        page = evaluated(request, OpenStore.open_or_new(folder), print_line=print_line, with_server=False)
    return Evaluation(page, json.loads(page.with_suffix(".json").read_text(encoding="utf-8")))


def _name(model: str | Path | Checkpoint | LoadedRetriever, store: Path) -> str:
    """Return a model as the command line names it; one of another store by its folder, one of a run by its round."""
    if isinstance(model, Checkpoint):
        same = model.store.resolve() == store.resolve()
        return f"{model.name}={model.key if same else model.path}"
    if isinstance(model, LoadedRetriever):
        return model.argument(store)
    return str(model)
