"""Drop pseudo-queries by rules for their text (`tasks.pseudo_queries.text_rules`)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.formats.lines import read_lines
from storage.tables import Passages, PseudoQueries
from tasks.pseudo_queries.column_rewrite import Texts, file_shards, rewrite
from tasks.pseudo_queries.dropped_counts import report_dropped
from tasks.pseudo_queries.query_text import words_of
from tasks.pseudo_queries.text_rules import OwnPassage, TextRules, reason_to_drop, rules_of
from tasks.runtime.shard import ShardJob, ShardTask, load_once
from tasks.runtime.shards import run_shards
from tasks.stage import stage


@stage(version=1, table=PseudoQueries)
def filter_texts(
    out: Path, pseudo_queries: Artifact[PseudoQueries], passages: Artifact[Passages], word_list: Source | None, *,
    settings: TextRules,
) -> None:  # fmt: skip
    """Write the pseudo-queries with new values of `kept` and `reason` where a rule drops a query that was kept.

    The reason is that of the first rule that drops it. `word_list` has forbidden words and phrases, one on each line.
    """
    job = ShardJob(
        filter_part, out, (pseudo_queries, passages, word_list), settings, what="filtering texts", unit="queries"
    )
    run_shards(job, file_shards(pseudo_queries, passages))
    report_dropped("filter_texts", out, pseudo_queries, "queries.filter.texts", "relax a rule")


def filter_part(
    task: ShardTask, pseudo_queries: Artifact[PseudoQueries], passages: Artifact[Passages], word_list: Source | None, *,
    settings: TextRules,
) -> None:  # fmt: skip
    """Write a shard's queries with `kept` and `reason`."""
    listed = settings.forbidden if isinstance(settings.forbidden, list) else []
    rules = rules_of(settings, listed if word_list is None else load_once(_phrases, word_list))
    texts, own = Texts(task.shard, pseudo_queries, passages), {"": OwnPassage("")}

    def reason(row: dict[str, str]) -> str:
        if row["reason"]:
            return row["reason"]
        if (passage_id := row["passage_id"]) not in own:
            own.clear()
            own[passage_id] = OwnPassage(texts.of(passage_id))
        return reason_to_drop(rules, row["query"], own[passage_id])

    def change(block: pa.Table) -> dict[str, pa.Array]:
        reasons = [reason(row) for row in block.select(["passage_id", "query", "reason"]).to_pylist()]
        task.done(len(block))
        return {"kept": pa.array([not given for given in reasons]), "reason": pa.array(reasons, pa.string())}

    rewrite(task.out, task.shard, pseudo_queries, change)


def _phrases(word_list: Source) -> list[str]:
    """Return the forbidden words and phrases of a file."""
    phrases = [line.strip() for _, line in read_lines(word_list.path)]
    if not any(map(words_of, phrases)):
        raise UserError(f"{word_list.path}: expected a word or phrase on each line, found none")
    return phrases
