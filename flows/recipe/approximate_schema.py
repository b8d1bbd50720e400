"""The settings of approximate indexes: rankings that are evaluated next to the exact ones, and indexes to mine with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from storage.settings import Settings
from tasks.finetuning.train import ViewName
from tasks.retrieval.engines.candidates import Candidates
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.engines.seismic import Seismic

Engine = Annotated[Faiss | Seismic | Candidates, Field(discriminator="engine")]
SEARCHED_VIEW = {"faiss": "dense", "seismic": "lexical", "candidates": "late"}


class Approximate(Settings):
    """A ranking from an approximate index of a round's vectors, evaluated next to the exact one."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    round: str
    view: ViewName
    index: Engine


class ApproximateMining(Settings):
    """An approximate index that a round mines with, in place of exact search by the same view."""

    view: ViewName
    index: Engine
    recall_queries: Annotated[int, Field(gt=0)] = 1000
    """Train queries that are sampled and also searched exactly: the report has the recall."""
