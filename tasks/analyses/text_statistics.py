"""Compare queries with passages: length, parts of speech, and questions, phrases or statements.

CoT-MoTE (Ma et al. 2023, section 1 and figure 1) motivates an expert for each by the mean length and the syntax of MS
MARCO's queries and passages. Lengths are measured on all texts. Parts of speech and sentences are measured on a sample,
since a tagger takes milliseconds for each text; it is trained on complete sentences and errs more often on queries.
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
from storage.artifact import Artifact
from storage.formats.ids import share
from storage.rows import num_rows, table_blocks
from storage.tables import Analysis, Passages, Queries
from tasks.analyses import write
from tasks.analyses.measures.pos_tagger import PARTS, Tagger
from tasks.corpus.sentence_packing import count_tokens
from tasks.corpus.sentences import sentences
from tasks.corpus.split_corpus import TokenizerFile, load_tokenizer
from tasks.pseudo_queries.quality_counts import quantiles, ratio
from tasks.pseudo_queries.query_text import is_question, words_of
from tasks.runtime.progress import progress
from tasks.stage import stage

FORMS = ("question", "statement", "phrase")

Text = tuple[str, str, int]
"""Id, text and number of tokens."""


class Settings(base.Settings):
    """The sample of texts that are tagged, and the tagger."""

    analysis: Literal["text_statistics"]
    tagger: str | None
    """An installed spaCy pipeline; null to measure only lengths."""
    texts: int = Field(gt=0)
    """The number of queries, and of passages, that are tagged."""
    seed: base.Seed


class Reading(Settings):
    """The settings with the language of the texts."""

    language: str


class Lengths:
    """Histograms of the numbers of words and of tokens, in memory that does not grow with the texts."""

    def __init__(self) -> None:
        self.words: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()

    def of(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Yield the texts while counting them."""
        for text in texts:
            self.words[len(words_of(text[1]))] += 1
            self.tokens[text[2]] += 1
            yield text

    def statistics(self) -> dict[str, Any]:
        """Return means, quantiles, and the numbers of texts with 0, 1, 2, 3 to 4, 5 to 8, ... words."""
        texts = self.words.total()
        up_to: Counter[int] = Counter()
        for words, count in self.words.items():
            up_to[0 if words == 0 else 2 ** math.ceil(math.log2(words))] += count
        return {
            "texts": texts,
            "mean_words": ratio(sum(number * count for number, count in self.words.items()), texts),
            "words_quantiles": quantiles(self.words),
            "mean_pieces": ratio(sum(number * count for number, count in self.tokens.items()), texts),
            "pieces_quantiles": quantiles(self.tokens),
            "words_up_to": [[limit, up_to[limit]] for limit in sorted(up_to)],
        }


@stage(version=1, table=Analysis)
def text_statistics(
    out: Path, queries: Artifact[Queries], passages: Artifact[Passages], tokenizer: TokenizerFile, *, settings: Reading
) -> None:
    """Write `analysis.json`. Passages are measured without titles, tokens without special tokens."""
    wordpiece = load_tokenizer(str(tokenizer.path / "tokenizer.json"))
    lengths = {"queries": Lengths(), "passages": Lengths()}
    query_texts = progress(
        read_queries(queries, wordpiece), total=num_rows(queries.path), what="measuring", unit="queries"
    )
    sample = {"queries": sample_texts(lengths["queries"].of(query_texts), settings)}
    passage_texts = progress(read_passages(passages), total=num_rows(passages.path), what="measuring", unit="passages")
    sample["passages"] = sample_texts(lengths["passages"].of(passage_texts), settings)
    write(out, settings, {
        "lengths": {name: counts.statistics() for name, counts in lengths.items()},
        "syntax": syntax(sample, settings) if settings.tagger else None,
    })  # fmt: skip


def read_queries(queries: Artifact[Queries], wordpiece: Tokenizer) -> Iterator[Text]:
    """Yield all queries."""
    for block in table_blocks(queries.path, Queries):
        ids, texts = block["query_id"].to_pylist(), block["text"].to_pylist()
        yield from zip(ids, texts, count_tokens(texts, wordpiece), strict=True)


def read_passages(passages: Artifact[Passages]) -> Iterator[Text]:
    """Yield all passages."""
    for block in table_blocks(passages.path, Passages, ["passage_id", "text", "num_tokens"]):
        yield from zip(*(column.to_pylist() for column in block.columns), strict=True)


def sample_texts(texts: Iterable[Text], settings: Settings) -> list[str]:
    """Return texts sampled by the hash of their ids."""
    by_hash = ((share(name, str(settings.seed)), name, text) for name, text, _ in texts)
    return [text for _, _, text in heapq.nsmallest(settings.texts, by_hash)]


def syntax(sample: Mapping[str, Sequence[str]], settings: Reading) -> dict[str, Any]:
    """Return the shares of the parts of speech among the tokens, and of the forms among the sentences."""
    tagger = Tagger(settings.tagger or "")
    shares: dict[str, Any] = {"tagger": tagger.version}
    for name, texts in sample.items():
        split = [
            sentence.strip() for text in texts for sentence in sentences(text, settings.language) if words_of(sentence)
        ]
        parts_of_speech: Counter[str] = Counter()
        forms: Counter[str] = Counter()
        tagged = progress(tagger(split), total=len(split), what=f"tagging {name}", unit="sentences")
        for sentence, tags in zip(split, tagged, strict=True):
            parts_of_speech += tags.parts
            forms[form(sentence, finite=tags.finite)] += 1
        shares[name] = {
            "texts": len(texts),
            "sentences": len(split),
            "tokens": parts_of_speech.total(),
            "parts": {part: ratio(parts_of_speech[part], parts_of_speech.total()) for part in PARTS},
            "forms": {name_of_form: ratio(forms[name_of_form], len(split)) for name_of_form in FORMS},
        }
    return shares


def form(sentence: str, *, finite: bool) -> str:
    """Return the form of a sentence: question, statement or phrase.

    A question ends with a question mark or, without a full stop, begins with an English question word. Other sentences
    with a finite verb are statements; those without are phrases: names, headings, commands.
    """
    if is_question(sentence, [] if sentence.endswith(".") else words_of(sentence)):
        return "question"
    return "statement" if finite else "phrase"
