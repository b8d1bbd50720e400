"""Which words a CPDAE decoder reads off a text's vector: the paper's picture, and whether common words are suppressed.

The paper (Ma et al. 2022, section 4.4, table 4) prints one text with its words shaded by their probability, and argues
(section 3.3) that the contrast lowers common words and raises those that tell texts apart. Its equations 7 and 8 drop a
constant on which that argument rests, so it is measured here: how the mass that a text's own words get goes with the
number of texts that they occur in. What to compare with is the same from a pre-training without contrast.

Texts are read unmasked, by the passages' BERT. A distribution is sigmoid(z) / sum sigmoid(z) (equations 3 and 5).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import logsigmoid

from models import pretraining
from models.layers import bert
from models.model_files import read_weights
from models.papers import cpdae
from models.retrievers.retriever import HEADS
from models.tokens import Tokenizer
from storage import settings as base
from storage.artifact import Artifact
from storage.errors import UserError
from storage.formats.ids import share
from storage.rows import num_rows, read_rows, read_table
from storage.tables import Analysis, Checkpoint, Pairs, Terms
from tasks.analyses import write
from tasks.analyses.measures.vocabulary_mass import Found, Ids, Values
from tasks.corpus.split_corpus import load_tokenizer
from tasks.retrieval.encode import TextEncoder
from tasks.runtime.progress import progress
from tasks.stage import stage
from tasks.training.loop import load_parameters

AT_ONCE = 32  # texts whose distributions over the vocabulary are in memory
LEVELS = 6
"""Shades of a word, as many as in the paper's table."""


class Settings(base.Settings):
    """How many texts are looked at, and which words count as common."""

    analysis: Literal["word_distribution"]
    texts: int = Field(ge=2)
    """Drawn of those that were pre-trained on."""
    shown: int = Field(ge=1)
    """Of these, the first so many are pictures."""
    words: int = Field(ge=1)
    """How many of the pieces with most mass are listed for each."""
    common: float = Field(gt=0, lt=1)
    """A piece that occurs in this share of all texts, or more, is common."""
    seed: base.Seed


class Reading(Settings):
    """The same, and what is read of a text."""

    max_tokens: int
    """As in pre-training, with [CLS] and [SEP]; longer texts are cut at the end."""


@stage(version=1, table=Analysis, gpu=True)
def word_distribution(
    out: Path, pairs: Artifact[Pairs], terms: Artifact[Terms], checkpoint: Artifact[Checkpoint], *, settings: Reading
) -> None:
    """Write `analysis.json` of a pre-trained CPDAE: pictures, and figures over all texts that were drawn."""
    tokenizer, counted = Tokenizer.load(checkpoint.path), read_terms(terms, num_rows(pairs.path))
    decoder = read_decoder(checkpoint, counted)
    texts = draw(pairs, settings)
    found = Found(counted, settings.common, decoder.vocabulary.out_features)
    pictures: list[dict[str, Any]] = []
    for row, shares_V, ids in _decoded(texts, checkpoint.path, decoder, tokenizer, settings):
        found.add(shares_V, np.setdiff1d(ids, tokenizer.specials))
        if len(pictures) < settings.shown:
            pictures.append(_picture(row, shares_V, ids, checkpoint.path, counted, settings))
    write(out, settings, {"drawn": len(texts), **found.figures(), "pictures": pictures})


def read_terms(terms: Artifact[Terms], num_texts: int) -> pretraining.TermCounts:
    """In how many of the texts each piece occurs."""
    table = read_table(terms, Terms)
    return pretraining.TermCounts(num_texts, table["texts"].to_numpy(), table["occurrences"].to_numpy())


def read_decoder(checkpoint: Artifact[Checkpoint], terms: pretraining.TermCounts) -> cpdae.Decoder:
    """What was learned beside the encoder. Raises UserError where another paper pre-trained it, or nobody."""
    path, name = checkpoint.path / HEADS, "decoder."
    decoder = cpdae.Decoder(bert.load(checkpoint.path), terms)
    wanted = {name + each: parameter for each, parameter in decoder.named_parameters()}
    try:
        if not path.is_file():
            raise ValueError(f"there is no {HEADS}")
        load_parameters(wanted, read_weights(path), path)
    except ValueError as error:
        raise UserError(
            f"word_distribution: {checkpoint.reference}: expected a checkpoint that cpdae pre-trained, with its "
            f"decoder ({error}); leave the analysis out of recipes of other papers"
        ) from None
    return decoder.eval()


def draw(pairs: Artifact[Pairs], settings: Settings) -> list[dict[str, Any]]:
    """Texts by the hash of their id, with one block of the table in memory."""
    rows = progress(read_rows(pairs, Pairs), total=num_rows(pairs.path), what="drawing", unit="texts")
    keyed = ((share(row["passage_id"], str(settings.seed)), row["passage_id"], row["text"]) for row in rows)
    return [{"passage_id": name, "text": text} for _, name, text in heapq.nsmallest(settings.texts, keyed)]


def _decoded(
    texts: Sequence[Mapping[str, Any]], folder: Path, decoder: cpdae.Decoder, tokenizer: Tokenizer, settings: Reading
) -> Iterator[tuple[Mapping[str, Any], Values, Ids]]:
    """Each text, its distribution over the vocabulary, and the ids that were read of it, without [CLS] and [SEP]."""
    encoder = TextEncoder(folder)
    for start in progress(range(0, len(texts), AT_ONCE), what="decoding", unit="batches"):
        some = texts[start : start + AT_ONCE]
        vectors = encoder([row["text"] for row in some], "passage", settings.max_tokens).dense
        if vectors is None:
            raise UserError("word_distribution: expected a checkpoint with a dense view, which the decoder reads")
        shares_BV = word_shares(decoder, torch.from_numpy(vectors))
        ids = tokenizer.encode([row["text"] for row in some], settings.max_tokens)
        for row, shares_V, own in zip(some, shares_BV, ids, strict=True):
            yield row, shares_V, np.asarray(own[1:-1], np.int64)


@torch.inference_mode()
def word_shares(decoder: cpdae.Decoder, vectors_BH: torch.Tensor) -> Values:
    """sigmoid(z) / sum sigmoid(z) of each vector, over the vocabulary; [B, V]."""
    logs_BV = logsigmoid(decoder(vectors_BH).double())
    shares_BV: Values = (logs_BV - logs_BV.logsumexp(1, keepdim=True)).exp().numpy()
    return shares_BV


def _picture(
    row: Mapping[str, Any], shares_V: Values, ids: Ids, folder: Path, terms: pretraining.TermCounts, settings: Settings
) -> dict[str, Any]:
    """A text in stretches with a shade each, and the pieces with most mass."""
    fast, own = load_tokenizer(str(folder / "tokenizer.json")), set(ids.tolist())
    heaviest = np.argsort(-shares_V, kind="stable")[: settings.words].tolist()
    top: list[dict[str, Any]] = [
        {"piece": fast.id_to_token(piece), "mass": float(shares_V[piece]), "own": piece in own,
         "texts": float(terms.texts[piece] / terms.num_texts) if piece < len(terms.texts) else 0.0}
        for piece in heaviest
    ]  # fmt: skip
    return {
        "passage_id": row["passage_id"],
        "stretches": stretches(row["text"], fast.encode(row["text"], add_special_tokens=False), shares_V, len(ids)),
        "top": top,
    }


def stretches(text: str, encoding: Any, shares_V: Values, read: int) -> list[dict[str, Any]]:
    """The text in words and what is between them; a word has the mass of its pieces, added up, and a shade.

    The darkest shade is that of the text's heaviest word. What was not read of the text is left out.
    """
    pieces = list(zip(encoding.word_ids, encoding.offsets, encoding.ids, strict=True))[:read]
    words = [
        (group[0][1][0], group[-1][1][1], float(shares_V[[piece for _, _, piece in group]].sum()))
        for group in (list(each) for _, each in groupby(pieces, key=itemgetter(0)))
    ]
    heaviest, end = max((mass for _, _, mass in words), default=0.0), 0
    found: list[dict[str, Any]] = []
    for start, stop, mass in words:
        if start > end:
            found.append({"text": text[end:start], "mass": None, "level": 0})
        level = min(LEVELS - 1, int(LEVELS * mass / heaviest)) if heaviest else 0
        found.append({"text": text[start:stop], "mass": mass, "level": level})
        end = stop
    return found
