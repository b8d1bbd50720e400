"""Split a text of any length into sentences without loss, in time proportional to its length.

The segmenter gets a text block by block: in a long text it drops the end of a paragraph every 10,000 bytes, and in
some scripts its time grows with the square of the length.
"""

from __future__ import annotations

from itertools import pairwise

import sentencex

BLANKS = " \t\n\r"  # tokens never cross these; BERT removes other white space as control characters
BLOCK = 10_000  # characters


def sentences(text: str, language: str) -> list[str]:
    """Return sentences that join to the text; one of more than `BLOCK` characters is split, if possible at a blank."""
    complete: list[str] = []
    start = 0
    while len(text) - start > BLOCK:
        block = text[start : start + BLOCK]
        ended = _segmented(block, language)[:-1] or [block[: _last_blank(block)]]  # the last one may continue
        complete.extend(ended)
        start += sum(map(len, ended))
    return complete + _segmented(text[start:], language)


def _segmented(block: str, language: str) -> list[str]:
    """Return the segmenter's sentences with the white space that it drops; if it drops more, the block itself."""
    ends = [0]
    for sentence in sentencex.segment(language, block):
        start = block.find(sentence, ends[-1])
        if start < 0 or block[ends[-1] : start].strip():
            return [block]
        # White space before a sentence belongs to the one before it; the first begins at 0.
        ends[-1] = start if len(ends) > 1 else 0
        ends.append(start + len(sentence))
    if block[ends[-1] :].strip():
        return [block]
    # White space at the end belongs to the last sentence.
    ends[1:] = [*ends[1:-1], len(block)] if block else []
    return [block[start:end] for start, end in pairwise(ends)]


def _last_blank(block: str) -> int:
    """Return the position after the last blank, or the end if there is none."""
    return max(block.rfind(blank) for blank in BLANKS) + 1 or len(block)
