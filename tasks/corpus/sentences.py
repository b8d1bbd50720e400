"""Find the sentences of a text, however long it is: nothing is lost, and time grows with its length alone.

A text is given to the segmenter block by block. Of a long one it drops the end of a paragraph every 10,000 bytes, and
in some scripts its time grows with the square of the length.
"""

from __future__ import annotations

from itertools import pairwise

import sentencex

BLANKS = " \t\n\r"  # word pieces never cross these; other white space may be a control character, which BERT removes
BLOCK = 10_000  # characters


def sentences(text: str, language: str) -> list[str]:
    """Sentences that join to the text; one of more than `BLOCK` characters is cut, at a blank if it has any."""
    found: list[str] = []
    start = 0
    while len(text) - start > BLOCK:
        block = text[start : start + BLOCK]
        whole = _segmented(block, language)[:-1] or [block[: _last_blank(block)]]  # the last one may go on
        found.extend(whole)
        start += sum(map(len, whole))
    return found + _segmented(text[start:], language)


def _segmented(block: str, language: str) -> list[str]:
    """The segmenter's sentences, each with the white space that it drops; the block itself, should more be missing."""
    ends = [0]
    for sentence in sentencex.segment(language, block):
        start = block.find(sentence, ends[-1])
        if start < 0 or block[ends[-1] : start].strip():
            return [block]
        ends[-1] = start if len(ends) > 1 else 0
        ends.append(start + len(sentence))
    if block[ends[-1] :].strip():
        return [block]
    ends[1:] = [*ends[1:-1], len(block)] if block else []
    return [block[start:end] for start, end in pairwise(ends)]


def _last_blank(block: str) -> int:
    """Where what follows the last blank begins; the end where there is none."""
    return max(block.rfind(blank) for blank in BLANKS) + 1 or len(block)
