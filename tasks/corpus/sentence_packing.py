"""Cut a text into spans of whole sentences of at most so many word pieces.

Sentences are packed greedily; one that is too long alone is cut between words, a word that is too
long between its pieces. Spans tile the text: white space belongs to the span before it, so nothing
is lost or doubled. The promise is about each span tokenised by itself, which is what encoders do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from storage.batched import portions
from tasks.corpus.sentences import BLANKS, BLOCK, sentences

MIN_TOKENS = 8  # one character can be four pieces once accents and Hangul are decomposed
LONGEST_WORD = 100  # characters; WordPiece makes one unknown piece of a longer one, however long it is
CHARACTERS_AT_ONCE = 1_000_000  # what is tokenised together takes some hundred bytes a character
WORDS_AT_ONCE = 1000
WORDS_KEPT = 200_000  # some 30 MB; then all are forgotten, which costs less than to know which return


class Span(NamedTuple):
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
    """How many word pieces each text is by itself, without special tokens.

    That is the sum over its words, since no piece crosses a blank (`load_tokenizer` sees to it); and words return, so
    that most need no more than being looked up.
    """
    known, found = _known(tokenizer), list[int]()
    for some in portions(texts, size=len, limit=CHARACTERS_AT_ONCE):
        words = [_words(text) for text in some]
        new = list(set[str]().union(*words).difference(known))
        for few in (new[first : first + WORDS_AT_ONCE] for first in range(0, len(new), WORDS_AT_ONCE)):
            known.update(zip(few, _counted(few, tokenizer), strict=True))
        found += [sum(map(known.__getitem__, each)) for each in words]
        for word in new:
            if len(word) > LONGEST_WORD:
                del known[word]
        if len(known) > WORDS_KEPT:
            known.clear()
    return found


@lru_cache(maxsize=1)
def _known(tokenizer: Tokenizer) -> dict[str, int]:
    """Words that this process has counted with this tokenizer, and how many pieces each is."""
    return {}


def _counted(words: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """How many pieces each word is, all being one text whose pieces say where they begin: a third less time."""
    ends = np.cumsum([len(word) + len(BLANKS[0]) for word in words])
    begins = [begin for begin, _ in tokenizer.encode(BLANKS[0].join(words), add_special_tokens=False).offsets]
    counts: list[int] = np.bincount(np.searchsorted(ends, begins, "right"), minlength=len(words)).tolist()
    return counts


def _words(text: str) -> list[str]:
    """What stands between blanks; that may be nothing."""
    for blank in BLANKS[1:]:
        text = text.replace(blank, BLANKS[0])
    return text.split(BLANKS[0])


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
