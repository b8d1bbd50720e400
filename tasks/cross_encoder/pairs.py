"""Pairs of a query and a passage, and their scores by a cross-encoder, computed shard by shard.

A shard is a number of queries with all their passages. The pairs of a shard alone decide which pairs share a batch, so
a run that is killed and resumed ends with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder, Pair, encode_pair, pad_pairs
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.row_index import RowIndex
from storage.rows import in_one_chunk, read_table
from storage.settings import Settings
from storage.tables import Checkpoint, Passages, Queries, passage_text
from tasks.finetuning.training_data import missing_passage
from tasks.runtime.device import choose_device
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.progress import bar
from tasks.runtime.token_batches import TOKENS_PER_BATCH, batches

QUERIES_PER_SHARD = 128  # some 10,000 pairs with 64 passages per query; a finished shard is never scored again
RowNumbers = NDArray[np.int64]


class Scoring(Settings):
    """The lengths at which a cross-encoder truncates a pair."""

    query_max_tokens: int = Field(gt=2)
    """Includes [CLS] and [SEP]; a longer query is truncated, whatever its passage."""
    max_tokens: int
    """Of the complete pair; the passage is truncated to what its query leaves free."""

    @model_validator(mode="after")
    def _passages_have_room(self) -> Scoring:
        if self.max_tokens < self.query_max_tokens + 2:
            raise ValueError(
                f"max_tokens: expected at least {self.query_max_tokens + 2}, two more than query_max_tokens, so that "
                f"something of a passage is read; found {self.max_tokens}"
            )
        return self

    @property
    def limits(self) -> dict[str, int]:
        """The keyword arguments of `encode_pair`."""
        return {"query_max_tokens": self.query_max_tokens, "max_tokens": self.max_tokens}


@dataclass(frozen=True)
class Pairs:
    """N different pairs of a query and a passage, in the order of the queries."""

    queries: pa.Table
    """query_id, text"""
    passages: pa.Table
    """passage_id, doc_id, title and text of the passages that occur."""
    query_rows: RowNumbers
    """[N], the row of each pair's query in `queries`."""
    passage_rows: RowNumbers
    """[N], the row of each pair's passage in `passages`."""

    @staticmethod
    def of(queries: Artifact[Queries], passages: Artifact[Passages], sources: Mapping[str, pa.Table]) -> Pairs:
        """Return the pairs of tables with query_id and passage_id, by reference; rows of other queries are left out.

        The pairs of a query are in the order of the tables. Raises UserError if a passage is not in `passages`.
        """
        topics = read_table(queries, Queries).combine_chunks()
        query_index, query_ids = RowIndex(topics["query_id"]), topics["query_id"].combine_chunks()
        sources = {name: rows.filter(pc.is_in(rows["query_id"], value_set=query_ids)) for name, rows in sources.items()}
        needed = pa.concat_tables(rows.select(["passage_id"]) for rows in sources.values())["passage_id"]
        corpus = read_table(passages, Passages, ["passage_id", "doc_id", "title", "text"])
        corpus = in_one_chunk(corpus.filter(pc.is_in(corpus["passage_id"], value_set=needed.combine_chunks())))
        passage_index = RowIndex(corpus["passage_id"])
        query_rows = np.concatenate([query_index.rows(rows["query_id"]) for rows in sources.values()])
        passage_rows = np.concatenate(
            [
                passage_index.require(rows["passage_id"], partial(missing_passage, name, passages))
                for name, rows in sources.items()
            ]
        )
        first = np.sort(np.unique(query_rows * len(corpus) + passage_rows, return_index=True)[1])
        order = first[np.argsort(query_rows[first], kind="stable")]
        return Pairs(topics, corpus, query_rows[order], passage_rows[order])

    def shards(self) -> list[slice]:
        """Return the pairs of each QUERIES_PER_SHARD queries."""
        starts = np.flatnonzero(np.diff(self.query_rows, prepend=-1))[::QUERIES_PER_SHARD]
        return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(self.query_rows)], strict=True)]

    def read(self, span: slice, tokenizer: Tokenizer, settings: Scoring) -> list[Pair]:
        """Return a shard's pairs as token ids."""
        query_rows, query_of_pair = np.unique(self.query_rows[span], return_inverse=True)
        passage_rows, passage_of_pair = np.unique(self.passage_rows[span], return_inverse=True)
        queries = tokenizer.token_ids(self.queries["text"].take(query_rows).to_pylist())
        rows = self.passages.select(["title", "text"]).take(passage_rows).to_pylist()
        passages = tokenizer.token_ids([passage_text(row["title"], row["text"]) for row in rows])
        return [
            encode_pair(tokenizer, queries[query], passages[passage], **settings.limits)
            for query, passage in zip(query_of_pair, passage_of_pair, strict=True)
        ]


def score_shards(
    out: Path, pairs: Pairs, teacher: Artifact[Checkpoint] | Source, settings: Scoring
) -> Iterator[tuple[slice, NDArray[np.float32], str]]:
    """Yield each shard that `out` lacks: its pairs, their scores, and the name of the part to write."""
    shards = {f"part-{number:05d}": span for number, span in enumerate(pairs.shards())}
    lacking = set(unfinished(out, [f"{part}.parquet" for part in shards]))
    missing = {part: span for part, span in shards.items() if f"{part}.parquet" in lacking}
    if not missing:
        return
    scorer, total = Scorer(teacher, settings), len(pairs.query_rows)
    done = total - sum(span.stop - span.start for span in missing.values())
    with bar(what="scoring", unit="pairs", total=total, done=done) as counter:
        for part, span in missing.items():
            scores = scorer(pairs.read(span, scorer.tokenizer, settings), counter.update)
            _check_finite(scores, pairs, span.start, teacher.reference)
            yield span, scores, part  # the caller writes the part before it takes the next shard
            record(out, f"{part}.parquet")


def _check_finite(scores: NDArray[np.float32], pairs: Pairs, start: int, teacher: str) -> None:
    if (wrong := np.flatnonzero(~np.isfinite(scores))).size:
        number = start + int(wrong[0])
        query = pairs.queries["query_id"][pairs.query_rows[number]]
        passage = pairs.passages["passage_id"][pairs.passage_rows[number]]
        raise UserError(
            f"{teacher}: its score of query {query.as_py()!r} with passage {passage.as_py()!r} is not a number; train "
            "it again with a lower learning rate"
        )


class Scorer:
    """A cross-encoder and its tokenizer, on the device of the run."""

    def __init__(self, teacher: Artifact[Checkpoint] | Source, settings: Scoring, name: str = "teacher") -> None:
        """Load the cross-encoder; error messages call it `name`, the key of the recipe that names it."""
        self.device = choose_device()
        self.tokenizer, encoder = load_teacher(teacher.path, settings, name)
        self.encoder = encoder.to(self.device)

    @torch.inference_mode()
    def __call__(self, pairs: Sequence[Pair], done: Callable[[int], object]) -> NDArray[np.float32]:
        """Return the score of each pair; `done` is called with the size of each batch.

        Equal pairs have equal scores. The network does not ensure this: the last digit of a score depends on the
        pair's position in its batch, in a way that differs between CPUs, and so would the order of two passages with
        the same text.
        """
        scores = np.empty(len(pairs), np.float32)
        for batch in batches([len(ids) for ids, _ in pairs], TOKENS_PER_BATCH[self.device.type]):
            tokens = pad_pairs(self.tokenizer, [pairs[number] for number in batch]).to(self.device)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
                scores[batch] = self.encoder(tokens).cpu().numpy()
            done(len(batch))
        first: dict[tuple[tuple[int, ...], int], int] = {}
        return scores[[first.setdefault((tuple(ids), begin), number) for number, (ids, begin) in enumerate(pairs)]]


def load_teacher(folder: Path, settings: Scoring, name: str) -> tuple[Tokenizer, CrossEncoder]:
    """Return the tokenizer and the trained cross-encoder of a folder; error messages call it `name`."""
    return load_cross_encoder(folder, cross_encoder.load, settings, name)


def load_cross_encoder(
    folder: Path, load: Callable[[Path], CrossEncoder], settings: Scoring, name: str
) -> tuple[Tokenizer, CrossEncoder]:
    """Return a folder's tokenizer and its network by `load`; raise UserError if they or the settings do not fit."""
    try:
        tokenizer, encoder = Tokenizer.load(folder), load(folder)
        tokenizer.check_vocabulary_size(encoder.config.vocab_size, folder)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if settings.max_tokens > (positions := encoder.config.max_position_embeddings):
        raise UserError(f"{name}: max_tokens: expected at most {positions}, found {settings.max_tokens}")
    return tokenizer, encoder
