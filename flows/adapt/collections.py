"""The two collections of an adaptation, in BEIR's layout.

`original` has the documents as they are; its index is what the user searches, and real queries are judged on it.
`training` has the pseudo-queries of two splits, `train` and `heldout`, and the documents that these should retrieve.
Of documents of `heldout` neither the queries nor, in pre-training, the texts are trained on. In fine-tuning their texts
may be negatives of other queries. Duplicates are in the same split, and are all relevant to their queries.
"""

from __future__ import annotations

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
from storage.files import sha256_of
from storage.formats.records import QrelRow, QueryRow, TextRow
from tasks.pseudo_queries.salient_sentences import DocumentFrequencies, cloze, one_part, parts

HELD_OUT = 200  # of 1,000 documents of a small collection
MOST_HELD_OUT = 1_000  # documents of a large one
FEWEST, FEWEST_DOCUMENTS = 10, 5  # queries and their documents, of either split
MOST_DECIDING = 2_000  # queries
TRAINED_PER_HOUR, FEWEST_TRAINED, MOST_TRAINED = 10_000, 5_000, 1_000_000  # queries
JUDGED, HELDOUT, TRAIN = "judged", "heldout", "train"
ORIGINAL, TRAINING = "original", "training"


@dataclass(frozen=True)
class Pseudo:
    """A document as it is searched for, and its pseudo-queries."""

    row: TextRow
    queries: Sequence[str]
    has_parts: bool
    """Whether parts of the queries are queries, too."""

    def texts(self, query: str, *, held_out: bool) -> list[str]:
        """Return what a query becomes: to train on, itself and one part; to decide with, all its parts.

        Whole sentences hardly decide: on long documents a good start has nearly the best value on them (docs/log.md).
        """
        if not self.has_parts:
            return [query]
        return parts(query) if held_out else [query, one_part(query)]


def of_salient_sentences(documents: Sequence[TextRow], language: str) -> list[Pseudo]:
    """Return documents without their salient sentences and titles, which are their pseudo-queries."""
    frequencies = DocumentFrequencies(row["text"] for row in documents)
    pseudo = []
    for row in documents:
        gaps = cloze(text_hash(row["text"]), row["title"], row["text"], frequencies, language)
        row_without = TextRow(doc_id=row["doc_id"], title=gaps.title, text=gaps.text)
        pseudo.append(Pseudo(row_without, gaps.queries, has_parts=True))
    return pseudo


def of_generated(documents: Sequence[TextRow], generated: Mapping[str, Sequence[str]]) -> list[Pseudo]:
    """Return complete documents with their generated queries, by document id."""
    return [Pseudo(row, generated.get(row["doc_id"], ()), has_parts=False) for row in documents]


def write_collections(
    out: Path,
    documents: Sequence[TextRow],
    pseudo: Sequence[Pseudo],
    judgements: Judgements | None,
    hours: float | None,
) -> dict[str, int]:
    """Write both collections below a folder; return the numbers of train and held-out queries.

    Of many pseudo-queries some are chosen by the hash of their ids: to train on, as many as the hours allow, or all
    without a number of hours. Raises UserError where there are too few to train and to decide.
    """
    groups = [text_hash(row["text"] if row["text"].strip() else row["title"]) for row in documents]
    held_out = {group for group in groups if per_mille(group) < _held_out_per_mille(len(set(groups)))}
    of_user = [] if judgements is None else [*judgements.queries, *judgements.left_out]
    queries, qrels = _topics(groups, pseudo, held_out, of_user)
    chosen = {
        TRAIN: _some([name for name, (group, _) in qrels.items() if group not in held_out], most_trained(hours)),
        HELDOUT: _some([name for name, (group, _) in qrels.items() if group in held_out], MOST_DECIDING),
    }
    counts = {split: len(names) for split, names in chosen.items()}
    num_documents = {split: len({qrels[name][0] for name in names}) for split, names in chosen.items()}
    if min(counts.values()) < FEWEST or min(num_documents.values()) < FEWEST_DOCUMENTS:
        raise UserError(
            f"the collection gives {counts[TRAIN]} pseudo-queries of {num_documents[TRAIN]} documents to train on and "
            f"{counts[HELDOUT]} of {num_documents[HELDOUT]} to decide with; expected {FEWEST} of {FEWEST_DOCUMENTS} "
            "for both; add documents of several sentences, or name a generator that fits your texts"
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


def most_trained(hours: float | None) -> int | None:
    """Return the most queries that are trained on, so that their mining takes a small part of the hours."""
    return None if hours is None else max(FEWEST_TRAINED, int(min(TRAINED_PER_HOUR * hours, MOST_TRAINED)))


def write_originals(folder: Path, documents: Sequence[TextRow]) -> None:
    """Write the documents as they are."""
    write_json_lines(folder / "corpus.jsonl.gz", map(text_line, documents))


def digest(out: Path) -> str:
    """Return a hash of the files that `write_collections` has written, which are equal bytes for equal texts."""
    content = sha256()
    for file in sorted(path for name in (ORIGINAL, TRAINING) for path in (out / name).rglob("*") if path.is_file()):
        content.update(f"{file.relative_to(out)} {sha256_of(file)}\n".encode())
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
    first: dict[str, Pseudo] = {}
    for group, document in zip(groups, pseudo, strict=True):
        members[group].append(document.row["doc_id"])
        first.setdefault(group, document)
    groups_of_text: dict[str, set[str]] = defaultdict(set)
    for query_row in judged_queries:
        groups_of_text[text_hash(query_row["text"])].add(JUDGED)
    texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for group, document in first.items():
        for query in document.queries:
            for text in document.texts(query, held_out=group in held_out):
                texts[group].append((query, text))
                groups_of_text[text_hash(query)].add(group)
                groups_of_text[text_hash(text)].add(group)
    queries: list[QueryRow] = []
    judged: Judged = {}
    for group, document in first.items():
        doc_id = document.row["doc_id"]
        own = (pair[1] for pair in texts[group] if all(len(groups_of_text[text_hash(one)]) == 1 for one in pair))
        for number, text in enumerate(dict.fromkeys(own)):
            query_id = f"{doc_id}?{number}"
            queries.append({"query_id": query_id, "text": text})
            judged[query_id] = (group, [relevant(query_id, member) for member in members[group]])
    return queries, judged


def _some(query_ids: Sequence[str], most: int | None) -> set[str]:
    """Return at most so many queries, chosen by the hash of their ids; None is all of them."""
    return set(sorted(query_ids, key=text_hash)[:most])
