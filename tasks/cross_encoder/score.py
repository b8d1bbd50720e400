"""What a cross-encoder says of pairs: soft labels for a retriever's training, and runs in a better order.

Pairs are scored some queries at a time; what shares a batch is decided by these queries alone, so a run that was
killed and taken up again ends with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder, Pair, pad_pairs, paired
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import in_one_chunk, read_table, write_table
from storage.settings import Settings
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries, Run, TeacherScores, passage_text
from tasks.retrieval.ranking import numbered, run_rows
from tasks.runtime.device import choose_device
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.runtime.token_batches import TOKENS_PER_BATCH, batches
from tasks.stage import stage

QUERIES_PER_SHARD = 128  # with 64 passages each some 10,000 pairs; a finished shard is never scored again
Places = NDArray[np.int64]


class Scoring(Settings):
    """How much of a pair a cross-encoder reads."""

    query_max_tokens: int = Field(gt=2)
    """With [CLS] and [SEP]; a longer query is cut, whatever its passage."""
    max_tokens: int
    """Of the whole pair; the passage is cut to what is left beside its query."""

    @model_validator(mode="after")
    def _passages_have_room(self) -> Scoring:
        if self.max_tokens < self.query_max_tokens + 2:
            raise ValueError(
                f"max_tokens: expected at least {self.query_max_tokens + 2}, two more than query_max_tokens, so that "
                f"something of a passage is read; found {self.max_tokens}"
            )
        return self


class Reranking(Scoring):
    """How deep a list is put into a new order."""

    depth: int = Field(gt=0)
    """Passages of each list that are scored; what lies below is dropped."""


@stage(version=2, table=TeacherScores, gpu=True)
def score(
    out: Path,
    teacher: Artifact[Checkpoint] | Source,
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    positives: Artifact[Positives],
    negatives: Artifact[Negatives],
    *,
    settings: Scoring,
) -> None:
    """Write the score of every query with each of its positives and mined negatives, in the order of the queries."""
    named: Mapping[str, pa.Table] = {
        positives.reference: read_table(positives, Positives, ["query_id", "passage_id"]),
        negatives.reference: read_table(negatives, Negatives, ["query_id", "passage_id"]),
    }
    pairs = Pairs.of(queries, passages, named)
    if not len(pairs.of_query):
        raise UserError(f"{queries.reference}: none of its queries has a positive or a negative to score")
    for span, scores, part in scored(out, pairs, teacher, settings):
        columns = {
            "query_id": pairs.asked["query_id"].take(pairs.of_query[span]),
            "passage_id": pairs.corpus["passage_id"].take(pairs.places[span]),
            "score": scores,
        }
        write_table(out, TeacherScores, pa.table(columns), part)


@stage(version=2, table=Run, gpu=True)
def rerank(
    out: Path,
    teacher: Artifact[Checkpoint] | Source,
    run: Artifact[Run],
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    *,
    settings: Reranking,
) -> None:
    """Write the first passages of each query's list in the order of the teacher's scores."""
    rows = read_table(run, Run, ["query_id", "passage_id", "view", "rank"])
    if len(views := pc.unique(rows["view"]).to_pylist()) > 1:
        raise UserError(f"{run.reference}: expected the lists of one view, found {', '.join(views)}")
    rows = rows.filter(pc.less_equal(rows["rank"], settings.depth))
    pairs = Pairs.of(queries, passages, {run.reference: rows})
    if not len(pairs.of_query):
        raise UserError(f"{run.reference}: it has no list of a query of {queries.reference}")
    ids = numbered(pairs.corpus)
    for span, scores, part in scored(out, pairs, teacher, settings):
        own, first = np.unique(pairs.of_query[span], return_index=True)
        lists = zip(np.split(pairs.places[span], first[1:]), np.split(scores, first[1:]), strict=True)
        names = pairs.asked["query_id"].take(own).to_pylist()
        write_table(out, Run, run_rows(names, [ids.in_order(*each) for each in lists], ids, "reranked"), part)


@dataclass(frozen=True)
class Pairs:
    """Queries with passages, each pair once, in the order of the queries."""

    asked: pa.Table
    """query_id, text"""
    corpus: pa.Table
    """passage_id, doc_id, title and text of the passages that occur."""
    of_query: Places
    """[N], the place of each pair's query."""
    places: Places
    """[N], the place of each pair's passage."""

    @staticmethod
    def of(queries: Artifact[Queries], passages: Artifact[Passages], named: Mapping[str, pa.Table]) -> Pairs:
        """Those of tables with query_id and passage_id, by name: a query's in their order; of other queries none."""
        asked = read_table(queries, Queries).combine_chunks()
        query_ids = asked["query_id"].combine_chunks()
        named = {name: rows.filter(pc.is_in(rows["query_id"], value_set=query_ids)) for name, rows in named.items()}
        wanted = pa.concat_tables(rows.select(["passage_id"]) for rows in named.values())["passage_id"]
        rows = read_table(passages, Passages, ["passage_id", "doc_id", "title", "text"])
        corpus = in_one_chunk(rows.filter(pc.is_in(rows["passage_id"], value_set=wanted.combine_chunks())))
        found = []
        for name, rows in named.items():
            places = pc.index_in(rows["passage_id"], value_set=corpus["passage_id"])
            if places.null_count:
                missing = rows["passage_id"].filter(places.is_null())[0].as_py()
                raise UserError(f"{name}: passage {missing!r} is not among {passages.reference}; make them again of it")
            found.append((_numbers(pc.index_in(rows["query_id"], value_set=query_ids)), _numbers(places)))
        of_query, places = (np.concatenate(each) for each in zip(*found, strict=True))
        once = np.sort(np.unique(of_query * len(corpus) + places, return_index=True)[1])
        order = once[np.argsort(of_query[once], kind="stable")]
        return Pairs(asked, corpus, of_query[order], places[order])

    def shards(self) -> list[slice]:
        """The pairs of so many queries each."""
        starts = np.flatnonzero(np.diff(self.of_query, prepend=-1))[::QUERIES_PER_SHARD]
        return [slice(*each) for each in zip(starts, [*starts[1:], len(self.of_query)], strict=True)]

    def read(self, span: slice, tokenizer: Tokenizer, settings: Scoring) -> list[Pair]:
        """Some of the pairs, as word pieces."""
        limits = {"query_max_tokens": settings.query_max_tokens, "max_tokens": settings.max_tokens}
        own, of_query = np.unique(self.of_query[span], return_inverse=True)
        places, of_passage = np.unique(self.places[span], return_inverse=True)
        asked = tokenizer.pieces(self.asked["text"].take(own).to_pylist())
        rows = self.corpus.select(["title", "text"]).take(places).to_pylist()
        texts = tokenizer.pieces([passage_text(row["title"], row["text"]) for row in rows])
        return [paired(tokenizer, asked[q], texts[p], **limits) for q, p in zip(of_query, of_passage, strict=True)]


def scored(
    out: Path, pairs: Pairs, teacher: Artifact[Checkpoint] | Source, settings: Scoring
) -> Iterator[tuple[slice, NDArray[np.float32], str]]:
    """The shards that `out` has not: which pairs they are, their scores, and the part to write them to."""
    shards = {f"part-{number:05d}": span for number, span in enumerate(pairs.shards())}
    lacking = set(unfinished(out, [f"{part}.parquet" for part in shards]))
    missing = {part: span for part, span in shards.items() if f"{part}.parquet" in lacking}
    if not missing:
        return
    scorer, total = Scorer(teacher, settings), len(pairs.of_query)
    done = total - sum(span.stop - span.start for span in missing.values())
    with bar(what="scoring", unit="pairs", total=total, done=done) as counter:
        for part, span in missing.items():
            scores = scorer(pairs.read(span, scorer.tokenizer, settings), counter.update)
            _check(scores, pairs, span.start, teacher.reference)
            yield span, scores, part  # the caller writes the part before it asks for the next
            record(out, f"{part}.parquet")


def _check(scores: NDArray[np.float32], pairs: Pairs, start: int, teacher: str) -> None:
    """Refuse scores that are no numbers."""
    if (wrong := np.flatnonzero(~np.isfinite(scores))).size:
        place = start + int(wrong[0])
        query, passage = pairs.asked["query_id"][pairs.of_query[place]], pairs.corpus["passage_id"][pairs.places[place]]
        raise UserError(
            f"{teacher}: its score of query {query.as_py()!r} with passage {passage.as_py()!r} is not a number; train "
            "it again with a lower learning rate"
        )


class Scorer:
    """A teacher's tokenizer and network, on the device of the run."""

    def __init__(self, teacher: Artifact[Checkpoint] | Source, settings: Scoring, name: str = "teacher") -> None:
        """`name` is what errors call it, and where a recipe names it."""
        self.device = choose_device()
        self.tokenizer, encoder = opened_teacher(teacher.path, settings, name)
        self.encoder = encoder.to(self.device)

    @torch.inference_mode()
    def __call__(self, pairs: Sequence[Pair], done: Callable[[int], object]) -> NDArray[np.float32]:
        """Return the score of each pair; `done` is called with each batch's size.

        Equal pairs have equal scores. A network alone does not ensure that: its last digit depends on a row's position
        in the batch, in a way that differs between CPUs, and so would the order of two passages with the same text.
        """
        scores = np.empty(len(pairs), np.float32)
        for batch in batches([len(ids) for ids, _ in pairs], TOKENS_PER_BATCH[self.device.type]):
            tokens = pad_pairs(self.tokenizer, [pairs[place] for place in batch]).to(self.device)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
                scores[batch] = self.encoder(tokens).cpu().numpy()
            done(len(batch))
        first: dict[tuple[tuple[int, ...], int], int] = {}
        return scores[[first.setdefault((tuple(ids), begin), place) for place, (ids, begin) in enumerate(pairs)]]


def _numbers(values: pa.ChunkedArray) -> Places:
    found: Places = values.to_numpy().astype(np.int64)
    return found


def opened_teacher(folder: Path, settings: Scoring, name: str) -> tuple[Tokenizer, CrossEncoder]:
    """The tokenizer and the trained cross-encoder of a folder; errors call it `name`."""
    return opened(folder, cross_encoder.load, settings, name)


def opened(
    folder: Path, load: Callable[[Path], CrossEncoder], settings: Scoring, name: str
) -> tuple[Tokenizer, CrossEncoder]:
    """The tokenizer and the cross-encoder of a folder, which fit each other and the settings."""
    try:
        tokenizer, encoder = Tokenizer.load(folder), load(folder)
        tokenizer.must_fit(encoder.config.vocab_size, folder)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if settings.max_tokens > (positions := encoder.config.max_position_embeddings):
        raise UserError(f"{name}: max_tokens: expected at most {positions}, found {settings.max_tokens}")
    return tokenizer, encoder
