"""The text of each token of a vocabulary, and which tokens continue a word: WordPiece, byte-level BPE, SentencePiece.

A vocabulary marks one kind of token. WordPiece marks the tokens that continue a word (`##ing`). The other kinds mark
those with a blank before them: `Ġriver` in byte-level BPE, whose characters are bytes (Radford et al. 2019, Language
Models are Unsupervised Multitask Learners, section 2.2), and `▁river` in SentencePiece (Kudo and Richardson 2018).

In those kinds a word also begins at a punctuation mark or a symbol and after it, as in BERT, and at each token in
scripts that have no blanks between words. A sequence of letters in other scripts is never divided.
"""

from __future__ import annotations

import re
import unicodedata

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece

from models.model_files import UnusableModel

BLANK = b" "
BYTES, SENTENCEPIECE = "Ġ", "▁"
WITHOUT_BLANKS = re.compile(
    "[\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u3000-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Kana and Chinese characters
)
FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character that a SentencePiece vocabulary lacks
CONTINUATION = range(0x80, 0xC0)  # bytes within a character in UTF-8
CHINESE = range(0xE3, 0xEA)  # the first bytes of the characters from U+3000 to U+9FFF


def mark(fast: FastTokenizer) -> str:
    """Return the mark of a tokenizer's kind: `##`, `Ġ` or `▁`. Raises UnusableModel for other kinds."""
    if isinstance(fast.model, WordPiece):
        prefix: str = fast.model.continuing_subword_prefix
        return prefix
    text = "a b" if fast.normalizer is None else fast.normalizer.normalize_str("a b")
    parts = [(text, None)] if fast.pre_tokenizer is None else fast.pre_tokenizer.pre_tokenize_str(text)
    before = "".join(part for part, _ in parts).removesuffix("b")[-1:]
    if before not in (BYTES, SENTENCEPIECE):
        raise UnusableModel(
            f"expected a tokenizer with WordPiece, byte-level BPE or SentencePiece tokens, found another "
            f"{type(fast.model).__name__}; use another model"
        )
    return before


def token_texts(fast: FastTokenizer) -> dict[int, bytes]:
    """Return the text of each token in UTF-8, by id; it begins with a blank where the token follows one.

    WordPiece tokens follow a blank if they do not continue a word.
    """
    kind, added = mark(fast), fast.get_added_tokens_decoder()
    texts = {number: _text(token, kind) for token, number in fast.get_vocab().items() if number not in added}
    return texts | {number: BLANK + token.content.encode() for number, token in added.items()}


def drops_blanks(kind: str) -> bool:
    """Return whether no token contains a blank, so that the tokens of a text are those of its words."""
    return kind not in (BYTES, SENTENCEPIECE)


def continues_word(text: bytes, kind: str) -> bool:
    """Return whether the token of a text continues the word before it, where there is one; `kind` is its `mark`."""
    if drops_blanks(kind):
        return not text.startswith(BLANK)
    return not _begins_word(text)


def closes_word(text: bytes, kind: str) -> bool:
    """Return whether the token after this text begins a word wherever it is: after punctuation, as in BERT.

    WordPiece marks the tokens that continue a word, so nothing has to be known of the token before.
    """
    if drops_blanks(kind):
        return False
    start = max((index for index, byte in enumerate(text) if byte not in CONTINUATION), default=len(text))
    character = text[start:].decode("utf-8", "ignore")  # none if the last character continues in the next token
    return bool(character) and (_is_mark(character) or WITHOUT_BLANKS.match(character) is not None)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _text(token: str, kind: str) -> bytes:
    if kind == BYTES and set(token) <= BYTE_OF.keys():
        return bytes(BYTE_OF[character] for character in token)
    if kind == SENTENCEPIECE:
        byte = FALLBACK.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(SENTENCEPIECE, " ").encode()
    is_continuing = token.startswith(kind) and len(token) > len(kind)
    return token.removeprefix(kind).encode() if is_continuing else BLANK + token.encode()


def _begins_word(text: bytes) -> bool:
    if not text or text[0] in CONTINUATION:
        return False
    character = text[:4].decode("utf-8", "ignore")[:1]  # none if the token has only the first bytes of one
    if not character:
        return text[0] in CHINESE
    return character.isspace() or _is_mark(character) or WITHOUT_BLANKS.match(character) is not None


def _byte_of() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary: printable bytes represent themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + number): byte for number, byte in enumerate(others)}


BYTE_OF = _byte_of()
