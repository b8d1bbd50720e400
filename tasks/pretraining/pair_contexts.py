"""Give every passage its contexts: what its pre-training may decode from its vector, or hold it together with.

Query-as-context (Wu et al. 2022, section 3) takes queries generated from the passage; CoT-MAE and coCondenser
took other passages of its document (section 2); ICT takes the passage's own sentences. One of them is drawn at
each visit, by `tasks.pretraining.pretrain`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator
from tokenizers import Tokenizer

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.pseudo_queries import Alongside, kept_queries
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Seed, Settings
from storage.tables import Pairs, Passages, PseudoQueries, passage_text
from tasks.corpus.sentence_packing import count_tokens
from tasks.corpus.sentences import sentences
from tasks.corpus.split_corpus import load_tokenizer
from tasks.runtime.progress import progress
from tasks.stage import stage

log = logging.getLogger(__name__)

Row = dict[str, Any]
REACH = 100
"""A random passage of the document lies at most so many passages away, as in CoT-MAE's release."""


class Contexts(Settings):
    """What stands beside a passage in pre-training."""

    pseudo_queries: int = Field(ge=0)
    """The first so many by rank; a passage that has fewer keeps those, one that has none is left out."""
    passages: list[Literal["nearby", "overlap", "random", "sentences"]]
    """Of the same document: the passage before or after; the passage's last sentences and what follows them; any
    within reach. Or all of the passage's own sentences."""
    alone: Literal["leave_out", "itself"] | None
    """What becomes of a passage without a neighbour in its document, where contexts are neighbours."""

    @model_validator(mode="after")
    def _alone_is_said(self) -> Contexts:
        if self.neighbours and self.alone is None:
            raise ValueError("alone: contexts are neighbours; expected leave_out or itself for passages without one")
        if not self.neighbours and self.alone is not None:
            raise ValueError("alone: no context is a neighbour; expected null")
        if self.neighbours and "sentences" in self.passages:
            raise ValueError("passages: expected neighbours or sentences, not both")
        return self

    @property
    def neighbours(self) -> bool:
        """Whether contexts are other passages of the document."""
        return bool(set(self.passages) - {"sentences"})


class Pairing(Contexts):
    """The contexts, and what the passages were split by."""

    max_tokens: int | None
    """Of an overlapping context, without special tokens; null where documents are whole."""
    language: str
    seed: Seed


@stage(version=2, table=Pairs)
def pair_contexts(
    out: Path,
    passages: Artifact[Passages],
    pseudo_queries: Artifact[PseudoQueries] | None,
    tokenizer: Source,
    *,
    settings: Pairing,
) -> None:
    """Write each passage that has a context of every kind asked for, in the passages' order."""
    total = num_rows(passages.path)
    rows = progress(read_rows(passages, Passages), total=total, what="pairing contexts", unit="passages")
    neighbours = Neighbours(load_tokenizer(str(tokenizer.path / "tokenizer.json")), settings)
    alongside = Alongside(kept_queries(pseudo_queries) if pseudo_queries and settings.pseudo_queries else ())
    if not (num_pairs := write_rows(out, Pairs, _pairs(rows, alongside, neighbours, settings))):
        raise UserError(
            f"{passages.reference}: no passage has the contexts asked for, so there is nothing to pre-train on"
        )
    alongside.end()
    if num_pairs < total:
        log.warning("%d of %d passages lack a pseudo-query or a neighbour and are left out", total - num_pairs, total)


def _pairs(passages: Iterator[Row], alongside: Alongside, neighbours: Neighbours, settings: Pairing) -> Iterator[Row]:
    for _, group in groupby(passages, key=itemgetter("doc_id")):
        document = list(group)
        for place, passage in enumerate(document):
            text, queries = _text(passage), alongside.texts(passage["passage_id"], settings.pseudo_queries)
            found = neighbours.of(document, place)
            if settings.neighbours and settings.alone == "itself":
                found = found or [text]
            if (settings.pseudo_queries and not queries) or (settings.passages and not found):
                continue
            yield {"passage_id": passage["passage_id"], "text": text, "queries": queries, "passages": found}


class Neighbours:
    """Chooses the passages that may stand beside a passage."""

    def __init__(self, tokenizer: Tokenizer, settings: Pairing) -> None:
        self.tokenizer, self.settings = tokenizer, settings

    def of(self, document: Sequence[Row], place: int) -> list[str]:
        """One context of each kind asked for, or all sentences; none where a document has but one passage."""
        if "sentences" in self.settings.passages:
            return [each for each in self.sentences(document[place]) if each.strip()]
        if len(document) == 1:
            return []
        random = np.random.default_rng((self.settings.seed, *document[place]["passage_id"].encode()))
        choose = {"nearby": self.nearby, "overlap": self.overlap, "random": self.random}
        return [choose[kind](document, place, random) for kind in self.settings.passages]

    def nearby(self, document: Sequence[Row], place: int, random: Generator) -> str:
        """The passage before or after."""
        sides = [other for other in (place - 1, place + 1) if 0 <= other < len(document)]
        return _text(document[int(random.choice(sides))])

    def random(self, document: Sequence[Row], place: int, random: Generator) -> str:
        """Any other passage within reach."""
        reach = range(max(0, place - REACH), min(len(document), place + REACH + 1))
        return _text(document[int(random.choice([other for other in reach if other != place]))])

    def overlap(self, document: Sequence[Row], place: int, random: Generator) -> str:
        """The passage's last sentences, at most half of them, and those that follow; for the last one mirrored."""
        own, last = self.sentences(document[place]), place == len(document) - 1
        other = self.sentences(document[place - 1 if last else place + 1])
        shared = int(random.integers(1, max(1, len(own) // 2) + 1))
        if last:
            return "".join(reversed(self.fitting([*reversed(own[:shared]), *reversed(other)])))
        return "".join(self.fitting([*own[-shared:], *other]))

    def fitting(self, pieces: Sequence[str]) -> list[str]:
        """The first of the sentences, as many as max_tokens allows, one at least."""
        if self.settings.max_tokens is None:
            return list(pieces)
        ends = np.cumsum(count_tokens(list(pieces), self.tokenizer))
        return list(pieces[: max(1, int((ends <= self.settings.max_tokens).sum()))])

    def sentences(self, passage: Row) -> list[str]:
        """The sentences of a passage, which join to its text."""
        return sentences(passage["text"], self.settings.language)


def _text(passage: Row) -> str:
    return passage_text(passage["title"], passage["text"])
