"""The adaptation of a retriever to a collection without queries."""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flows.adapt.run
from flows.adapt.request import DEFAULT_START, Request
from pretrieve.retrievers import LoadedRetriever, load
from pretrieve.runs import COLUMNS
from pretrieve.settings import Store, printing, store_folder
from storage.errors import UserError, quoted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Adaptation:
    """A finished adaptation: the start, or the candidate that was better."""

    out: Path
    """The folder with `model`, the recipe and the reports."""
    verdict: str
    """One sentence."""
    gained: bool
    """Whether a candidate was better than the start."""
    winner: str
    page: Path
    """The report."""
    content: Mapping[str, Any]
    """The content of report.json."""

    @cached_property
    def retriever(self) -> LoadedRetriever:
        """The model that was chosen, with an index of the collection: `adaptation.retriever.search("what is …")`."""
        return load(self.out)

    @property
    def metrics(self) -> pd.DataFrame:
        """The measurements that decided: run, split (`heldout`, `judged`), metric, value, and its 95 % interval."""
        import pandas as pd

        return pd.DataFrame(self.content["rows"], columns=list(COLUMNS))


def adapt(
    collection: str | Path, *, start: str | Path | None = None, generator: str | Path | None = None,
    teacher: str | Path | None = None, hours: float = 1.0, judgements: str | Path | None = None,
    out: str | Path = "adapted", seed: int = 42, store: Store = None, progress: bool = True,
) -> Adaptation:  # fmt: skip
    """Adapt a retriever to a collection, as `pretrieve adapt` does; the same call resumes after an interruption.

    `hours` chooses the plan: the largest of which all stages fit by an estimate. It is no limit. Without a generator it
    also limits the number of pseudo-queries that are trained on.

    pretrieve.adapt("my-collection", hours=1).verdict
    """
    for parameter, path in {"collection": collection, "out": out}.items():
        _must_be_path(parameter, path)
    for parameter, model in {"start": start, "generator": generator, "teacher": teacher}.items():
        if model is not None:
            _must_be_path(parameter, model, "a model's name or folder")
    if judgements is not None:
        _must_be_path("judgements", judgements)
    request = Request(
        Path(collection), Path(out), str(start or DEFAULT_START),
        generator=None if generator is None else str(generator), teacher=None if teacher is None else str(teacher),
        hours=_number("hours", hours), judgements=None if judgements is None else Path(judgements), seed=seed,
    )  # fmt: skip
    with printing(progress) as print_line:
        done = flows.adapt.run.adapt(request, store_folder(store), print_line, with_server=False)
    content = json.loads(done.page.with_suffix(".json").read_text(encoding="utf-8"))
    return Adaptation(done.out, done.decision.verdict, done.decision.gained, done.decision.winner, done.page, content)


def _must_be_path(parameter: str, value: object, what: str = "a path") -> None:
    """Raise UserError for what is neither a text nor a path, as of a notebook without a type checker."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise UserError(f"{parameter}: expected {what} as a text or a Path, found {quoted(value)}")


def _number(parameter: str, value: object) -> float:
    """Return a number, which may be one of NumPy. Raises UserError for another value."""
    if not isinstance(value, numbers.Real):
        raise UserError(f"{parameter}: expected a number, found {quoted(value)}")
    return float(value)
