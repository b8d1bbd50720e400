"""Cut a text into spans of whole sentences of at most so many word pieces.

Sentences are packed greedily; one that is too long alone is cut between words, a word that is too
long between its pieces. Spans tile the text: white space belongs to the span before it, so nothing
is lost or doubled. The promise is about each span tokenised by itself, which is what encoders do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import Encoding, Tokenizer

from storage.portions import portions
from tasks.sentences import BLANKS, BLOCK, sentences

MIN_TOKENS = 8  # one character can be four pieces once accents and Hangul are decomposed
LONGEST_WORD = 100  # characters; WordPiece makes one unknown piece of a longer one, however long it is
CHARACTERS_AT_ONCE = 1_000_000  # what is tokenised together takes some hundred bytes a character


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a text, and how many word pieces they are by themselves."""

    start: int
    end: int
    num_tokens: int


def spans(texts: Sequence[str], tokenizer: Tokenizer, *, max_tokens: int, language: str) -> Iterator[list[Span]]:
    """The spans of each text: consecutive, from 0 to its length, one at least, each of at most `max_tokens`."""
    split = [sentences(text, language) for text in texts]
    counts = iter(count_tokens([each for pieces in split for each in pieces], tokenizer))
    for text, pieces in zip(texts, split, strict=True):
        ends = 0
        whole = [Span(ends, ends := ends + len(piece), next(counts)) for piece in pieces]
        fitting = [part for span in whole for part in _cut(text, span, tokenizer, max_tokens)]
        yield list(_packed(text, fitting, tokenizer, max_tokens)) or [Span(0, 0, 0)]


def count_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """How many word pieces each text is by itself, without special tokens."""
    return [
        len(encoding)
        for some in portions(texts, size=len, limit=CHARACTERS_AT_ONCE)
        for encoding in tokenizer.encode_batch_fast(some, add_special_tokens=False)
    ]


def _cut(text: str, span: Span, tokenizer: Tokenizer, max_tokens: int) -> Iterator[Span]:
    """The span, or pieces of it that fit.

    A piece may count more by itself than it did within its word: then it is cut again.
    """
    if span.num_tokens <= max_tokens:
        yield span
        return
    encoding = tokenizer.encode(text[span.start : span.end], add_special_tokens=False)
    cuts = [0, *_cuts(encoding, max_tokens), span.end - span.start]
    pieces = [(span.start + start, span.start + end) for start, end in pairwise(cuts)]
    for (start, end), count in zip(pieces, count_tokens([text[a:b] for a, b in pieces], tokenizer), strict=True):
        if end - start == span.end - span.start:
            yield span  # a single character, which cannot be cut
        else:
            yield from _cut(text, Span(start, end, count), tokenizer, max_tokens)


def _cuts(encoding: Encoding, max_tokens: int) -> Iterator[int]:
    """Characters at which windows of at most `max_tokens` end: where a word starts, or else where a piece does."""
    starts, words = [start for start, _ in encoding.offsets], encoding.word_ids
    begin = 0
    while len(starts) - begin > max_tokens:
        window = range(begin + 1, begin + max_tokens + 1)
        pieces = [i for i in window if starts[i] > starts[i - 1]]  # not within a character
        if not pieces:
            return
        begin = ([i for i in pieces if words[i] != words[i - 1]] or pieces)[-1]
        yield starts[begin]


def _packed(text: str, pieces: Sequence[Span], tokenizer: Tokenizer, max_tokens: int) -> Iterator[Span]:
    current: Span | None = None
    for piece in pieces:
        joined = _joined(text, current, piece, tokenizer, max_tokens) if current else piece
        if current and joined is None:
            yield current
        current = joined or piece
    if current:
        yield current


def _joined(text: str, left: Span, right: Span, tokenizer: Tokenizer, max_tokens: int) -> Span | None:
    """Both as one span, if they fit; by their characters too, since one unknown piece may be as long as a text.

    Their counts add up where a blank parts them or one of them has none, else they are counted together.
    """
    start, end, count = left.start, right.end, left.num_tokens + right.num_tokens
    if left.num_tokens and right.num_tokens:
        if end - start > max(BLOCK, LONGEST_WORD * max_tokens):
            return None
        if text[left.end - 1] not in BLANKS and text[right.start] not in BLANKS:
            (count,) = count_tokens([text[start:end]], tokenizer)
    return Span(start, end, count) if count <= max_tokens else None
