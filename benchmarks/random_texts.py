"""Texts of random WordPiece tokens, as long as the leads of Wikipedia's articles, and a tokenizer with these tokens."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece

from models.pretraining import RawBatch
from models.tokens import Tokenizer

LONGEST = 144
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY, CONTINUING = 30_522, 0.19  # pieces of bert-base-uncased, and the share of them that continue a word
MEDIAN, SPREAD = 98, 0.47  # tokens of the leads: a log-normal distribution


def texts(number: int, vocabulary: int, *, full: bool) -> RawBatch:
    """Return texts and contexts of random tokens with evenly spread quantiles of the length distribution."""
    draws = np.random.default_rng(0)
    shares = [(stratum + 0.5) / number for stratum in draws.permutation(number).tolist()]
    natural = [math.exp(NormalDist(math.log(MEDIAN), SPREAD).inv_cdf(share)) for share in shares]
    lengths = [LONGEST - 2 if full else min(LONGEST - 2, round(length)) for length in natural]
    contexts = draws.integers(5, 13, size=number)

    def ids(length: int) -> list[int]:
        drawn: list[int] = draws.integers(len(SPECIALS), vocabulary, size=length).tolist()
        return drawn

    return RawBatch([ids(length) for length in lengths], [ids(length) for length in contexts])


def word_pieces(vocabulary: int) -> Tokenizer:
    """Return a tokenizer with a number of tokens; the share that continues a word is that of BERT's."""
    continuing = round(CONTINUING * vocabulary)
    beginning = vocabulary - continuing - len(SPECIALS)
    pieces = [*SPECIALS, *(f"word{n}" for n in range(beginning)), *(f"##piece{n}" for n in range(continuing))]
    fast = FastTokenizer(WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    fast.add_special_tokens(SPECIALS)
    return Tokenizer(fast)
