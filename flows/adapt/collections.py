"""The two collections of an adaptation, in BEIR's layout.

`original` has the documents as they are; its index is what the user searches, and real queries are judged on it.
`training` has the pseudo-queries of two splits, `train` and `heldout`, and the documents that these should retrieve.
Of documents of `heldout` neither the queries nor, in pre-training, the texts are trained on. In fine-tuning their texts
may be negatives of other queries. Duplicates are in the same split, and are all relevant to their queries.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from flows.adapt.judgements import Judgements
from flows.adapt.survey import text_hash
from storage.conversions.beir_files import (
    per_mille,
    query_line,
    relevant,
    text_line,
    write_json_lines,
    write_qrels,
)
from storage.errors import UserError
from storage.formats.records import QrelRow, QueryRow, TextRow
from tasks.pseudo_queries.salient_sentences import DocumentFrequencies, cloze, one_part, parts

HELD_OUT = 200  # of 1,000 documents of a small collection
MOST_HELD_OUT = 1_000  # documents of a large one
FEWEST = 10  # queries of either split
MOST_DECIDING = 2_000  # queries
TRAINED_PER_HOUR, FEWEST_TRAINED, MOST_TRAINED = 10_000, 5_000, 1_000_000  # queries
JUDGED, HELDOUT, TRAIN = "judged", "heldout", "train"
ORIGINAL, TRAINING = "original", "training"


@dataclass(frozen=True)
class Pseudo:
    """A document as it is searched for, and its pseudo-queries."""

    row: TextRow
    queries: Sequence[str]
    """To train on."""
    deciding: Sequence[str]
    """To decide with, where the document is held out."""


def of_salient_sentences(documents: Sequence[TextRow], language: str) -> list[Pseudo]:
    """Return documents without their salient sentences and titles, which are their pseudo-queries.

    To train on there are these and one part of each; to decide with, all their parts. Whole sentences hardly decide:
    on long documents a good start has nearly the best value on them (docs/adaptation.md).
    """
    frequencies = DocumentFrequencies(row["text"] for row in documents)
    pseudo = []
    for row in documents:
        gaps = cloze(text_hash(row["text"]), row["title"], row["text"], frequencies, language)
        queries = [text for query in gaps.queries for text in (query, one_part(query))]
        deciding = [text for query in gaps.queries for text in parts(query)]
        pseudo.append(Pseudo({"doc_id": row["doc_id"], "title": gaps.title, "text": gaps.text}, queries, deciding))
    return pseudo


def of_generated(documents: Sequence[TextRow], generated: Mapping[str, Sequence[str]]) -> list[Pseudo]:
    """Return complete documents with their generated queries, by document id."""
    return [Pseudo(row, texts, texts) for row in documents for texts in [generated.get(row["doc_id"], ())]]


def write_collections(
    out: Path, documents: Sequence[TextRow], pseudo: Sequence[Pseudo], judgements: Judgements | None, hours: float
) -> dict[str, int]:
    """Write both collections below a folder; return the numbers of train and held-out queries.

    Of many pseudo-queries some are chosen by the hash of their ids: to train on, as many as the hours allow. Raises
    UserError where there are too few to train and to decide.
    """
    groups = [text_hash(row["text"] if row["text"].strip() else row["title"]) for row in documents]
    held_out = {group for group in groups if per_mille(group) < _held_out_per_mille(len(set(groups)))}
    queries, qrels = _topics(groups, pseudo, held_out, [] if judgements is None else judgements.queries)
    chosen = {
        TRAIN: _some([name for name, (group, _) in qrels.items() if group not in held_out], most_trained(hours)),
        HELDOUT: _some([name for name, (group, _) in qrels.items() if group in held_out], MOST_DECIDING),
    }
    counts = {split: len(names) for split, names in chosen.items()}
    if min(counts.values()) < FEWEST:
        raise UserError(
            f"the collection gives {counts[TRAIN]} pseudo-queries to train on and {counts[HELDOUT]} to decide with; "
            f"expected {FEWEST} of both; add documents of several sentences, or name a generator that fits your "
            "texts"
        )
    original, training = out / ORIGINAL, out / TRAINING
    write_originals(original, documents)
    if judgements is not None:
        write_json_lines(original / "queries.jsonl.gz", map(query_line, judgements.queries))
        write_qrels(original / "qrels" / f"{JUDGED}.tsv", judgements.qrels)
    write_json_lines(training / "corpus.jsonl.gz", (text_line(document.row) for document in pseudo))
    trained = (row for row, group in zip(documents, groups, strict=True) if group not in held_out)
    write_json_lines(training / "documents.jsonl.gz", map(text_line, trained))
    listed = chosen[TRAIN] | chosen[HELDOUT]
    write_json_lines(training / "queries.jsonl.gz", (query_line(row) for row in queries if row["query_id"] in listed))
    for split, names in chosen.items():
        judged = (row for name, (_, rows) in qrels.items() if name in names for row in rows)
        write_qrels(training / "qrels" / f"{split}.tsv", judged)
    return counts


def most_trained(hours: float) -> int:
    """Return the most queries that are trained on: their mining takes a small part of the hours."""
    return max(FEWEST_TRAINED, int(min(TRAINED_PER_HOUR * hours, MOST_TRAINED)))


def write_originals(folder: Path, documents: Sequence[TextRow]) -> None:
    """Write the documents as they are."""
    write_json_lines(folder / "corpus.jsonl.gz", map(text_line, documents))


def digest(documents: Sequence[TextRow]) -> str:
    """Return a hash of the documents in their order."""
    content = sha256()
    for row in documents:
        content.update(json.dumps(text_line(row)).encode())
    return content.hexdigest()


def _held_out_per_mille(documents: int) -> int:
    return min(HELD_OUT, max(1, math.ceil(1000 * MOST_HELD_OUT / max(1, documents))))


Judged = dict[str, tuple[str, list[QrelRow]]]


def _topics(
    groups: Sequence[str], pseudo: Sequence[Pseudo], held_out: set[str], judged_queries: Sequence[QueryRow]
) -> tuple[list[QueryRow], Judged]:
    """Return the queries of the first document of each group, and by query its group and judgements.

    A text that is a query of several groups does not say which document is relevant, and is left out. So is a text that
    is one of the user's judged queries, such as a title: on these nothing is trained.
    """
    members: dict[str, list[str]] = defaultdict(list)
    first: dict[str, tuple[str, Sequence[str]]] = {}
    for group, document in zip(groups, pseudo, strict=True):
        members[group].append(document.row["doc_id"])
        texts = document.deciding if group in held_out else document.queries
        first.setdefault(group, (document.row["doc_id"], texts))
    groups_of_text: dict[str, set[str]] = defaultdict(set)
    for query_row in judged_queries:
        groups_of_text[text_hash(query_row["text"])].add(JUDGED)
    for group, (_, texts) in first.items():
        for text in texts:
            groups_of_text[text_hash(text)].add(group)
    queries: list[QueryRow] = []
    judged: Judged = {}
    for group, (doc_id, all_texts) in first.items():
        texts = [text for text in dict.fromkeys(all_texts) if len(groups_of_text[text_hash(text)]) == 1]
        for number, text in enumerate(texts):
            query_id = f"{doc_id}?{number}"
            queries.append({"query_id": query_id, "text": text})
            judged[query_id] = (group, [relevant(query_id, member) for member in members[group]])
    return queries, judged


def _some(query_ids: Sequence[str], most: int) -> set[str]:
    """Return at most so many queries, chosen by the hash of their ids."""
    return set(sorted(query_ids, key=text_hash)[:most])
