"""Split a text into spans of complete sentences with a limited number of tokens.

Sentences are packed greedily. A sentence that is too long is split between words, and a word that is too long between
its tokens. Spans cover the text without gaps or overlaps; white space belongs to the sentence before it. The limit
holds for each span tokenised separately, as encoders do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from storage.batched import portions
from tasks.corpus.sentences import BLANKS, BLOCK, sentences

MIN_TOKENS = 8  # one character can be four tokens after accents and Hangul are decomposed
PRINTED = r"[\w!-~]"  # characters that no normalisation removes or turns into a blank
LONGEST_WORD = 100  # characters; WordPiece turns any longer word into one unknown token
CHARACTERS_AT_ONCE = 1_000_000  # tokenised together, at some hundred bytes per character
WORDS_AT_ONCE = 1000
WORDS_KEPT = 200_000  # some 30 MB; then the cache is cleared, which costs less than tracking recent words


class Span(NamedTuple):
    """Characters [start, end) of a text, and their number of tokens when tokenised separately."""

    start: int
    end: int
    num_tokens: int


def spans(texts: Sequence[str], tokenizer: Tokenizer, *, limits: Sequence[int], language: str) -> Iterator[list[Span]]:
    """Yield the spans of each text: consecutive, from 0 to its length, at least one, none above the text's limit.

    Only a single character may be above the limit, if the tokenizer's normalisation makes many of it.
    """
    split = [sentences(text, language) for text in texts]
    counts = iter(count_tokens([sentence for pieces in split for sentence in pieces], tokenizer))
    for text, pieces, max_tokens in zip(texts, split, limits, strict=True):
        ends = 0
        unsplit = [Span(ends, ends := ends + len(piece), next(counts)) for piece in pieces]
        fitting = [part for span in unsplit for part in _cut(text, span, tokenizer, max_tokens)]
        yield list(_packed(text, fitting, tokenizer, max_tokens)) or [Span(0, 0, 0)]


def beginning(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
    """Return a text of at most `max_tokens` unchanged, and of a longer one the first words that fit."""
    (count,) = count_tokens([text], tokenizer)
    first = next(_cut(text, Span(0, len(text), count), tokenizer, max_tokens))
    return text[: first.end] if first.end == len(text) else text[: first.end].rstrip()


def count_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the number of tokens of each text when tokenised separately, without special tokens.

    It is the sum over its words, since tokens end before blanks (`load_tokenizer` ensures this). Most words occur
    often, so their counts are cached.
    """
    known, counts, blanks = _cached_counts(tokenizer), list[int](), Blanks.of(tokenizer)
    for some in portions(texts, size=len, limit=CHARACTERS_AT_ONCE):
        words = [blanks.words(text) for text in some]
        new = list(set[str]().union(*words).difference(known))
        for few in (new[first : first + WORDS_AT_ONCE] for first in range(0, len(new), WORDS_AT_ONCE)):
            known.update(zip(few, _counted(few, tokenizer, dropped=blanks.dropped), strict=True))
        counts += [sum(map(known.__getitem__, words_of_text)) for words_of_text in words]
        for word in new:
            if len(word) > LONGEST_WORD:
                del known[word]
        if len(known) > WORDS_KEPT:
            known.clear()
    return counts


@lru_cache(maxsize=1)
def _cached_counts(tokenizer: Tokenizer) -> dict[str, int]:
    """Return this process's cache of words and their numbers of tokens."""
    return {}


def _counted(words: Sequence[str], tokenizer: Tokenizer, *, dropped: bool) -> list[int]:
    """Return each word's number of tokens.

    If blanks are dropped, all words are tokenised as one text, which takes a third less time.
    """
    if not dropped:
        return [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(words, add_special_tokens=False)]
    ends = np.cumsum([len(word) + len(BLANKS[0]) for word in words])
    begins = [begin for begin, _ in tokenizer.encode(BLANKS[0].join(words), add_special_tokens=False).offsets]
    counts: list[int] = np.bincount(np.searchsorted(ends, begins, "right"), minlength=len(words)).tolist()
    return counts


@dataclass(frozen=True)
class Blanks:
    """A tokenizer's behaviour at blanks."""

    ends: str
    """The blanks of `BLANKS` before which every token ends."""
    dropped: bool
    """Whether no token contains any of `BLANKS`, as in BERT; in other tokenizers a word's token contains one."""

    @staticmethod
    @lru_cache(maxsize=1)
    def of(tokenizer: Tokenizer) -> Blanks:
        """Return a tokenizer's behaviour, determined by examples."""
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        parts = _parts("".join(f"a{blank}" for blank in BLANKS) + "a", tokenizer)
        dropped = [part for part, _ in parts] == ["a"] * (len(BLANKS) + 1) and not set("".join(added)) & set(BLANKS)
        ends = [
            blank for blank in BLANKS
            if all(_divided(f"{before}{blank}a", tokenizer) for before in "a1.")
            and not any(re.search(rf"\S{blank}", content) for content in added)
        ]  # fmt: skip
        return Blanks("".join(ends), dropped)

    def words(self, text: str) -> list[str]:
        """Return strings, some empty, whose tokens are those of the text: without blanks if these are dropped."""
        if not self.dropped:
            return re.split(rf"(?<={PRINTED})(?=[{self.ends}])", text)
        for blank in BLANKS[1:]:
            text = text.replace(blank, BLANKS[0])
        return text.split(BLANKS[0])

    def divides(self, text: str, position: int) -> bool:
        """Return whether the tokens of a text are those before and those after a position, 0 < position < length."""
        if self.dropped:
            return text[position - 1] in BLANKS or text[position] in BLANKS
        return text[position] in self.ends and re.match(PRINTED, text[position - 1]) is not None


def _divided(text: str, tokenizer: Tokenizer) -> bool:
    """Return whether no part of a text that is tokenised separately has both the first and the second character."""
    return all(end <= 1 or start >= 1 for _, (start, end) in _parts(text, tokenizer))


def _parts(text: str, tokenizer: Tokenizer) -> list[tuple[str, tuple[int, int]]]:
    """Return the parts of a text that are tokenised separately, and their characters in the normalised text."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return [(text, (0, len(text)))]
    parts: list[tuple[str, tuple[int, int]]] = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return parts


def _cut(text: str, span: Span, tokenizer: Tokenizer, max_tokens: int) -> Iterator[Span]:
    """Yield the span, or parts of it that fit.

    A part may have more tokens than it had within its word; then it is split again.
    """
    if span.num_tokens <= max_tokens:
        yield span
        return
    encoding = tokenizer.encode(text[span.start : span.end], add_special_tokens=False)
    cuts = [0, *_cuts(encoding, max_tokens), span.end - span.start]
    pieces = [(span.start + start, span.start + end) for start, end in pairwise(cuts)]
    for (start, end), count in zip(pieces, count_tokens([text[a:b] for a, b in pieces], tokenizer), strict=True):
        if end - start == span.end - span.start:
            yield span  # a single character, which cannot be split
        else:
            yield from _cut(text, Span(start, end, count), tokenizer, max_tokens)


def _cuts(encoding: Encoding, max_tokens: int) -> Iterator[int]:
    """Yield the characters at which windows of at most `max_tokens` end: at the start of a word, or else of a token."""
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


def _joined(text: str, first: Span, second: Span, tokenizer: Tokenizer, max_tokens: int) -> Span | None:
    """Return both as one span if they fit, also by characters, since one unknown token may be as long as a text.

    Their counts add up if the tokenizer divides texts there, or if blanks are dropped and one has no token; otherwise
    they are tokenised together.
    """
    start, end, count = first.start, second.end, first.num_tokens + second.num_tokens
    blanks, is_empty = Blanks.of(tokenizer), not (first.num_tokens and second.num_tokens)
    if not is_empty and end - start > max(BLOCK, LONGEST_WORD * max_tokens):
        return None
    if not (blanks.dropped and is_empty) and not blanks.divides(text, second.start):
        (count,) = count_tokens([text[start:end]], tokenizer)
    return Span(start, end, count) if count <= max_tokens else None
