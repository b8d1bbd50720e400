"""How queries differ from passages: length, parts of speech, and questions, phrases or statements.

CoT-MoTE (Ma et al. 2023, section 1 and figure 1) argues for an expert for each from the average length and the syntax
of MS MARCO's queries and passages. Lengths are of all texts. Parts of speech and sentences are of a draw of texts,
since a tagger takes milliseconds for each; it is a model, trained on whole sentences, and errs more often in queries.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tokenizers import Tokenizer

from storage import settings as base
from storage.artifact import Artifact, Source
from storage.formats.ids import share
from storage.rows import num_rows, parts, read_blocks
from storage.tables import Analysis, Passages, Queries
from tasks.analyses import write
from tasks.analyses.measures.pos_tagger import PARTS, Tagger
from tasks.corpus.sentence_packing import count_tokens
from tasks.corpus.sentences import sentences
from tasks.corpus.split_corpus import load_tokenizer
from tasks.pseudo_queries.quality_counts import quantiles, ratio
from tasks.pseudo_queries.query_text import is_question, words_of
from tasks.runtime.progress import progress
from tasks.stage import stage

FORMS = ("question", "statement", "phrase")

Text = tuple[str, str, int]
"""Id, text and number of word pieces."""


class Settings(base.Settings):
    """Which texts are looked at more closely, and by whom."""

    analysis: Literal["text_statistics"]
    tagger: str | None
    """A spaCy pipeline that is installed; null tells lengths alone."""
    texts: int = Field(gt=0)
    """Queries, and as many passages, that are tagged."""
    seed: base.Seed


class Reading(Settings):
    """The same, and the language of the texts."""

    language: str


class Lengths:
    """Counts of words and of word pieces, in a memory that does not grow with the texts."""

    def __init__(self) -> None:
        self.words: Counter[int] = Counter()
        self.pieces: Counter[int] = Counter()

    def of(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Pass texts on while they are counted."""
        for text in texts:
            self.words[len(words_of(text[1]))] += 1
            self.pieces[text[2]] += 1
            yield text

    def figures(self) -> dict[str, Any]:
        """Means, quantiles, and how many texts have 0, 1, 2, 3 to 4, 5 to 8, ... words."""
        texts = self.words.total()
        doubling: Counter[int] = Counter()
        for words, count in self.words.items():
            doubling[0 if words == 0 else 2 ** math.ceil(math.log2(words))] += count
        return {
            "texts": texts,
            "mean_words": ratio(sum(number * count for number, count in self.words.items()), texts),
            "words_quantiles": quantiles(self.words),
            "mean_pieces": ratio(sum(number * count for number, count in self.pieces.items()), texts),
            "pieces_quantiles": quantiles(self.pieces),
            "words_up_to": [[most, doubling[most]] for most in sorted(doubling)],
        }


@stage(version=1, table=Analysis)
def text_statistics(
    out: Path, queries: Artifact[Queries], passages: Artifact[Passages], tokenizer: Source, *, settings: Reading
) -> None:
    """Write `analysis.json`. A passage is its text, without a title; word pieces are without special tokens."""
    pieces = load_tokenizer(str(tokenizer.path / "tokenizer.json"))
    lengths = {"queries": Lengths(), "passages": Lengths()}
    asked = progress(queries_of(queries, pieces), total=num_rows(queries.path), what="measuring", unit="queries")
    drawn = {"queries": draw(lengths["queries"].of(asked), settings)}
    found = progress(passages_of(passages), total=num_rows(passages.path), what="measuring", unit="passages")
    drawn["passages"] = draw(lengths["passages"].of(found), settings)
    write(out, settings, {
        "lengths": {name: each.figures() for name, each in lengths.items()},
        "syntax": syntax(drawn, settings) if settings.tagger else None,
    })  # fmt: skip


def queries_of(queries: Artifact[Queries], pieces: Tokenizer) -> Iterator[Text]:
    """Every query."""
    for path in parts(queries.path):
        for block in read_blocks(path, Queries):
            ids, texts = block["query_id"].to_pylist(), block["text"].to_pylist()
            yield from zip(ids, texts, count_tokens(texts, pieces), strict=True)


def passages_of(passages: Artifact[Passages]) -> Iterator[Text]:
    """Every passage."""
    for path in parts(passages.path):
        for block in read_blocks(path, Passages, ["passage_id", "text", "num_tokens"]):
            yield from zip(*(column.to_pylist() for column in block.columns), strict=True)


def draw(texts: Iterable[Text], settings: Settings) -> list[str]:
    """As many texts as the settings say, by the hash of their ids."""
    by_hash = ((share(name, str(settings.seed)), name, text) for name, text, _ in texts)
    return [text for _, _, text in heapq.nsmallest(settings.texts, by_hash)]


def syntax(drawn: Mapping[str, Sequence[str]], settings: Reading) -> dict[str, Any]:
    """What shares of the words and signs are which part of speech, and of the sentences which form."""
    tagger = Tagger(settings.tagger or "")
    found: dict[str, Any] = {"tagger": tagger.version}
    for name, texts in drawn.items():
        said = [each.strip() for text in texts for each in sentences(text, settings.language) if words_of(each)]
        words: Counter[str] = Counter()
        forms: Counter[str] = Counter()
        tagged = progress(tagger(said), total=len(said), what=f"tagging {name}", unit="sentences")
        for sentence, told in zip(said, tagged, strict=True):
            words += told.parts
            forms[form(sentence, finite=told.finite)] += 1
        found[name] = {
            "texts": len(texts),
            "sentences": len(said),
            "tokens": words.total(),
            "parts": {part: ratio(words[part], words.total()) for part in PARTS},
            "forms": {each: ratio(forms[each], len(said)) for each in FORMS},
        }
    return found


def form(sentence: str, *, finite: bool) -> str:
    """A question ends with its mark or, where it has no full stop, begins with an English question word. What else has
    a finite verb is a statement, and what has none a phrase: a name, a heading, a command."""
    if is_question(sentence, [] if sentence.endswith(".") else words_of(sentence)):
        return "question"
    return "statement" if finite else "phrase"
