"""Mine hard negatives: passages that a run ranks high for a query and that are not relevant to it.

All passages of all relevant documents are removed from a list before it is cut to the depth; then a miner
(`tasks/finetuning/miners/<miner>.py`) selects, and a sample of its selection is kept. So a query with many positives
has as many negatives as any other.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import write_atomically
from storage.rows import read_table, write_rows
from storage.tables import Negatives, Passages, Positives, Run, TeacherScores
from tasks.finetuning.candidates import (
    counts_file,
    positives_of_queries,
    query_shards,
    ranked_lists,
    relevant_passages,
    remove_positives,
    sample,
)  # fmt: skip
from tasks.finetuning.miners import MiningSettings, NegativeSelector, QueryCandidates, Row
from tasks.retrieval.run_lists import RunLists
from tasks.runtime.shard import ShardJob, ShardTask, load_once, part
from tasks.runtime.shards import run_shards
from tasks.session import print_line
from tasks.stage import stage


@stage(version=3, table=Negatives)
def mine(
    out: Path,
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    scores: Artifact[TeacherScores] | None,
    *,
    settings: MiningSettings,
) -> None:
    """Write each query's negatives; a query without a positive has none."""
    miner(settings, len(runs), scores)  # a wrong combination is refused here, before a process is started
    shards = query_shards([RunLists(run) for run in runs])
    run_shards(ShardJob(mine_part, out, (runs, positives, passages, scores), settings, "mining", "candidates"), shards)
    counts = Counter[str]()
    for shard in shards:
        counts.update(json.loads((out / counts_file(shard.number)).read_text(encoding="utf-8")))
    selected = f"{counts['selected']:,} of {counts['candidates']:,} candidates"
    print_line(f"{settings.miner}: {selected} (pairs of a query and a passage) may be negatives")


def mine_part(
    task: ShardTask,
    runs: Sequence[Artifact[Run]],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    scores: Artifact[TeacherScores] | None,
    *,
    settings: MiningSettings,
) -> None:
    """Write the negatives of a shard's queries, and the numbers of candidates and of selected passages."""
    context = load_once(MiningContext, settings, tuple(runs), positives, passages, scores)

    def rows() -> Iterator[Row]:
        counts = Counter[str]()
        for query_id, ranked in ranked_lists(context.lists, task.shard.of):
            task.done(sum(map(len, ranked)))
            yield from context.negatives(query_id, ranked, counts)
        write_atomically(task.out / counts_file(task.shard.number), json.dumps(counts))

    write_rows(task.out, Negatives, rows(), part(task.shard.number))


class MiningContext:
    """The inputs of a mining process: all queries' lists, positives and relevant passages, and the selector."""

    def __init__(
        self, settings: MiningSettings, runs: Sequence[Artifact[Run]], positives: Artifact[Positives],
        passages: Artifact[Passages], scores: Artifact[TeacherScores] | None,
    ) -> None:  # fmt: skip
        labels = read_table(positives, Positives)
        self.settings, self.lists = settings, [RunLists(run) for run in runs]
        self.relevant = relevant_passages(labels, passages)
        self.positives = positives_of_queries(labels)
        self.selector: NegativeSelector = miner(settings, len(runs), scores).Selector(settings, scores)

    def negatives(self, query_id: str, ranked: Sequence[Sequence[Row]], counts: Counter[str]) -> Iterator[Row]:
        """Yield a query's negatives; add its numbers of candidates and of selected passages to `counts`."""
        if query_id not in self.relevant:
            return
        candidates = [remove_positives(rows, self.relevant[query_id], self.settings.depth) for rows in ranked]
        selected = self.selector(QueryCandidates(query_id, self.positives[query_id], ranked, candidates))
        counts["candidates"] += len({row["passage_id"] for rows in candidates for row in rows})
        counts["selected"] += len(selected)
        for row in sample(selected, self.settings.negatives, f"{self.settings.seed} {query_id}"):
            yield {name: row[name] for name in ("query_id", "passage_id", "rank", "score")}


def miner(settings: MiningSettings, runs: int, scores: Artifact[TeacherScores] | None) -> Any:
    """Return the miner's module; raise UserError if it cannot read this number of runs or this teacher."""
    module = importlib.import_module(f"tasks.finetuning.miners.{settings.miner}")
    if runs != 1 and not (runs and module.SEVERAL_RUNS):
        number = "one or more rankings" if module.SEVERAL_RUNS else "one ranking"
        raise UserError(f"mine.miner: {settings.miner} reads {number}, found {runs}")
    if (scores is None) == module.READS_SCORES:
        raise UserError(
            f"mine.miner: {settings.miner} {'reads' if module.READS_SCORES else 'does not read'} a teacher's scores"
        )
    return module
