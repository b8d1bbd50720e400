"""Assign contexts to every passage: the texts that pre-training decodes from its vector or contrasts it with.

Query-as-context (Wu et al. 2022, section 3) takes queries generated from the passage; CoT-MAE and coCondenser take
other passages of its document (section 2); ICT takes sentences of the passage. `tasks.pretraining.pretrain` samples
one of them at each visit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator
from tokenizers import Tokenizer

from storage.artifact import Artifact
from storage.errors import UserError
from storage.pseudo_queries import Alongside, kept_queries
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Seed, Settings
from storage.tables import Pairs, Passages, PseudoQueries, passage_text
from tasks.corpus.sentence_packing import count_tokens
from tasks.corpus.sentences import sentences
from tasks.corpus.split_corpus import TokenizerFile, load_tokenizer
from tasks.pretraining.context_shards import context_shards
from tasks.runtime.shard import ShardJob, ShardTask, part
from tasks.runtime.shards import run_shards
from tasks.session import print_line
from tasks.stage import stage
from tasks.training.seeds import random_generator

Row = dict[str, Any]
REACH = 100
"""The largest distance of a random passage of the document, in passages, as in CoT-MAE's release."""


class Contexts(Settings):
    """The contexts of a passage in pre-training."""

    pseudo_queries: int = Field(ge=0)
    """The number of pseudo-queries by rank; a passage may have fewer, and one without any is omitted."""
    passages: list[Literal["nearby", "overlap", "random", "sentences"]]
    """Passages of the same document: the one before or after (nearby); the passage's last sentences and the text after
    them (overlap); any within reach (random). Or all of the passage's own sentences (sentences)."""
    alone: Literal["leave_out", "itself"] | None
    """The treatment of a passage without a neighbour in its document, if contexts are neighbours."""

    @model_validator(mode="after")
    def _alone_is_given(self) -> Contexts:
        if self.neighbours and self.alone is None:
            raise ValueError("alone: contexts are neighbours; expected leave_out or itself for passages without one")
        if not self.neighbours and self.alone is not None:
            raise ValueError("alone: no context is a neighbour; expected null")
        if self.neighbours and "sentences" in self.passages:
            raise ValueError("passages: expected neighbours or sentences, not both")
        return self

    @property
    def neighbours(self) -> bool:
        """Return whether contexts are other passages of the document."""
        return bool(set(self.passages) - {"sentences"})


class Pairing(Contexts):
    """The contexts, and the settings with which the passages were split."""

    max_tokens: int | None
    """The largest number of tokens of an overlapping context, without special tokens; null for complete documents."""
    language: str
    seed: Seed


@stage(version=3, table=Pairs)
def pair_contexts(
    out: Path,
    passages: Artifact[Passages],
    pseudo_queries: Artifact[PseudoQueries] | None,
    tokenizer: TokenizerFile,
    *,
    settings: Pairing,
) -> None:
    """Write each passage that has a context of every requested kind, in the passages' order."""
    queries = pseudo_queries if settings.pseudo_queries else None
    inputs = passages, queries, tokenizer
    job = ShardJob(pair_part, out, inputs, settings, what="pairing contexts", unit="passages")
    run_shards(job, context_shards(passages, queries))
    if not (num_pairs := num_rows(out)):
        raise UserError(
            f"{passages.reference}: no passage has the requested contexts, so there is nothing to pre-train on"
        )
    if omitted := (total := num_rows(passages.path)) - num_pairs:
        print_line(f"{omitted:,} of {total:,} passages lack a pseudo-query or a neighbour and are omitted")


def pair_part(
    task: ShardTask,
    passages: Artifact[Passages],
    pseudo_queries: Artifact[PseudoQueries] | None,
    tokenizer: TokenizerFile,
    *,
    settings: Pairing,
) -> None:
    """Write the pairs of a shard's passages."""
    neighbours = Neighbours(load_tokenizer(str(tokenizer.path / "tokenizer.json")), settings)
    alongside = Alongside(kept_queries(pseudo_queries, *task.shard.of["queries"]) if pseudo_queries else ())
    (first, last), start = task.shard.of["passages"], task.shard.of["document"]

    def rows() -> Iterator[Row]:
        row = start
        for _, group in groupby(read_rows(passages, Passages, start), key=itemgetter("doc_id")):
            document = list(group)
            indices = range(max(first - row, 0), min(last - row, len(document)))
            yield from _pairs(document, indices, alongside, neighbours, settings)
            task.done(len(indices))
            row += len(document)
            if row >= last:
                return

    write_rows(task.out, Pairs, rows(), part(task.shard.number))
    alongside.end()


def _pairs(
    document: Sequence[Row], indices: range, alongside: Alongside, neighbours: Neighbours, settings: Pairing
) -> Iterator[Row]:
    """Yield the pairs of a document's passages at these indices."""
    for index in indices:
        passage = document[index]
        text, queries = _text(passage), alongside.texts(passage["passage_id"], settings.pseudo_queries)
        contexts = neighbours.of(document, index)
        if settings.neighbours and settings.alone == "itself":
            contexts = contexts or [text]
        if (settings.pseudo_queries and not queries) or (settings.passages and not contexts):
            continue
        yield {"passage_id": passage["passage_id"], "text": text, "queries": queries, "passages": contexts}


class Neighbours:
    """Selects the contexts of a passage from its document."""

    def __init__(self, tokenizer: Tokenizer, settings: Pairing) -> None:
        self.tokenizer, self.settings = tokenizer, settings

    def of(self, document: Sequence[Row], index: int) -> list[str]:
        """Return one context of each requested kind, or all sentences; none if the document has only one passage."""
        if "sentences" in self.settings.passages:
            return [sentence for sentence in self.sentences(document[index]) if sentence.strip()]
        if len(document) == 1:
            return []
        random = random_generator(self.settings.seed, document[index]["passage_id"])
        select = {"nearby": self.nearby, "overlap": self.overlap, "random": self.random}
        return [select[kind](document, index, random) for kind in self.settings.passages]

    def nearby(self, document: Sequence[Row], index: int, random: Generator) -> str:
        """Return the passage before or after."""
        sides = [other for other in (index - 1, index + 1) if 0 <= other < len(document)]
        return _text(document[int(random.choice(sides))])

    def random(self, document: Sequence[Row], index: int, random: Generator) -> str:
        """Return any other passage within reach."""
        reach = range(max(0, index - REACH), min(len(document), index + REACH + 1))
        return _text(document[int(random.choice([other for other in reach if other != index]))])

    def overlap(self, document: Sequence[Row], index: int, random: Generator) -> str:
        """Return at most half of the passage's last sentences and those that follow; mirrored for the last passage."""
        own, last = self.sentences(document[index]), index == len(document) - 1
        other = self.sentences(document[index - 1 if last else index + 1])
        shared = int(random.integers(1, max(1, len(own) // 2) + 1))
        if last:
            return "".join(reversed(self.fitting([*reversed(own[:shared]), *reversed(other)])))
        return "".join(self.fitting([*own[-shared:], *other]))

    def fitting(self, pieces: Sequence[str]) -> list[str]:
        """Return the first sentences that fit max_tokens, at least one."""
        if self.settings.max_tokens is None:
            return list(pieces)
        ends = np.cumsum(count_tokens(list(pieces), self.tokenizer))
        return list(pieces[: max(1, int((ends <= self.settings.max_tokens).sum()))])

    def sentences(self, passage: Row) -> list[str]:
        """Return the sentences of a passage, which join to its text."""
        return sentences(passage["text"], self.settings.language)


def _text(passage: Row) -> str:
    return passage_text(passage["title"], passage["text"])
