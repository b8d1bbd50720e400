"""Search for the page: every index and model is opened once, by one thread, which reports what it is doing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from flows.browse import queries
from flows.browse.contents import Collection, RankedSystem
from storage.errors import UserError
from storage.rows import first_rows
from storage.store.store import Store
from storage.tables import Passages
from tasks.retrieval.contributions import contributions
from tasks.retrieval.interactive import OpenSearch
from tasks.retrieval.open_searches import OpenSearches
from tasks.retrieval.ranking import Hits
from tasks.session import Session, session

TOP = 10  # results of a system
T = TypeVar("T")
Report = Callable[[str], object]
Row = dict[str, Any]


class Searches:
    """The open indexes of a run. Java and the models belong to one thread; questions wait for each other."""

    def __init__(self, store: Store) -> None:
        self._store, self._thread = store, ThreadPoolExecutor(1, "searches")
        self._open = OpenSearches(store)

    def close(self) -> None:
        """Remove the temporary files, after the search that is running."""
        self._thread.shutdown(cancel_futures=True)
        self._open.close()

    def run(self, job: Callable[[Report], T]) -> Generator[str, None, T]:
        """Yield what a job reports while it runs in the thread, and return its result."""
        reported: SimpleQueue[str | None] = SimpleQueue()
        future = self._thread.submit(self._in_session, job, reported.put)
        future.add_done_callback(lambda _: reported.put(None))
        while (line := reported.get()) is not None:
            yield line
        return future.result()

    def _in_session(self, job: Callable[[Report], T], report: Report) -> T:
        with session(Session(self._store)):
            return job(report)

    def warm_up(self, collection: Collection, names: Sequence[str]) -> None:
        """Begin to open systems and to compile what searches them, so that the first question waits less."""

        def job(report: Report) -> None:
            for name in names:
                if collection.systems[name].searched:
                    search = self._opened(collection.systems[name], report)
                    contributions(search, "warm up", search.hits("warm up", 1).rows)

        self._thread.submit(self._in_session, job, lambda line: None)

    def results(
        self, collection: Collection, name: str, question: str, query_id: str | None, report: Report
    ) -> list[Row]:
        """Return the first passages of a system with scores by view and the terms that contribute.

        A query of the split has the passages of its evaluated ranking. Raises UserError where there is neither that
        nor an index.
        """
        system = collection.systems[name]
        evaluated = queries.ranked(system.ranking, query_id, TOP) if query_id and system.ranking else None
        if system.searched is None:
            return self._as_evaluated(collection, system, query_id, evaluated)
        search = self._opened(system, report)
        report(f"searching with {name}")
        if evaluated is None:
            hits = search.hits(question, TOP)
        else:
            rows = search.ids.rows(pa.array([row["passage_id"] for row in evaluated], pa.string()))
            hits = Hits(rows, np.array([row["score"] for row in evaluated], np.float32))
        answers = search.with_texts(hits.rows, search.scores(question, hits))
        report(f"working out which terms contributed to the scores of {name}")
        terms = contributions(search, question, hits.rows)
        return [{**vars(answer), "terms": contributing} for answer, contributing in zip(answers, terms, strict=True)]

    def _as_evaluated(
        self, collection: Collection, system: RankedSystem, query_id: str | None, evaluated: list[Row] | None
    ) -> list[Row]:
        """Return the evaluated ranking of a system that answers no other questions."""
        if query_id is None or evaluated is None:
            why = (
                f"combines {', '.join(system.members)}" if system.members else "its index or model is not in the store"
            )
            raise UserError(f"{system.name} ranks only the run's own queries ({why}); select one of these, or a system")
        passage_ids = [row["passage_id"] for row in evaluated]
        texts = first_rows(collection.passages, Passages, "passage_id", passage_ids, ["title", "text"])
        members = queries.member_scores(system, query_id, passage_ids)
        return [
            {**texts[row["passage_id"]], "rank": number + 1, "terms": {},
             "scores": {"score": row["score"]} | {name: scores[number] for name, scores in members.items()}}
            for number, row in enumerate(evaluated)
        ]  # fmt: skip

    def _opened(self, system: RankedSystem, report: Report) -> OpenSearch:
        if system.searched is None:
            raise TypeError("only a system with an index is opened")
        if not self._open.has(system.searched, system.view):
            report(f"opening {system.name}: its index and model are read once")
        return self._open.opened(system.searched, system.view)
