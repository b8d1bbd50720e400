"""The words that a CPDAE decoder predicts from a text's vector: the paper's figure, and whether common words lose mass.

The paper (Ma et al. 2022, section 4.4, table 4) shows one text with its words shaded by their probability, and argues
(section 3.3) that the contrast lowers common words and raises discriminative ones. Its equations 7 and 8 drop a
constant on which that argument depends, so it is measured here: the relation between the mass of a text's own words and
the number of texts in which they occur. The baseline is a pre-training without contrast.

Texts are encoded unmasked, by the passage encoder. A distribution is sigmoid(z) / sum sigmoid(z) (equations 3 and 5).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn.functional import logsigmoid

from models import backbones, pretraining
from models.model_files import read_weights
from models.papers import cpdae
from models.retrievers.retriever import HEADS_FILE
from models.settings import omitted_at
from models.tokens import Tokenizer
from storage import settings as base
from storage.artifact import Artifact
from storage.errors import UserError
from storage.formats.ids import share
from storage.rows import num_rows, read_rows, read_table
from storage.tables import Analysis, Checkpoint, Pairs, Terms
from tasks.analyses import write
from tasks.analyses.measures.vocabulary_mass import VocabularyMass
from tasks.corpus.split_corpus import load_tokenizer
from tasks.retrieval.encode import TextEncoder
from tasks.runtime.device import Precision
from tasks.runtime.progress import progress
from tasks.stage import stage
from tasks.training.checkpoints import load_parameters

BATCH = 32  # texts whose distributions over the vocabulary are in memory
LEVELS = 6
"""The number of shades, as in the paper's table."""


class Settings(base.Settings):
    """The sample of texts, and the definition of a common word."""

    analysis: Literal["word_distribution"]
    texts: int = Field(ge=2)
    """The number of texts, sampled from those of the pre-training."""
    shown: int = Field(ge=1)
    """The number of texts that are shown as figures."""
    words: int = Field(ge=1)
    """The number of tokens with the greatest mass that are listed for each text."""
    common: float = Field(gt=0, lt=1)
    """A token is common if it occurs in at least this share of all texts."""
    seed: base.Seed


class Reading(Settings):
    """The settings with the maximum number of tokens."""

    max_tokens: int
    """As in pre-training, with [CLS] and [SEP]; longer texts are truncated at the end."""
    precision: Annotated[Precision | None, omitted_at(None)] = None


@stage(version=1, table=Analysis, gpu=True)
def word_distribution(
    out: Path, pairs: Artifact[Pairs], terms: Artifact[Terms], checkpoint: Artifact[Checkpoint], *, settings: Reading
) -> None:
    """Write `analysis.json` of a pre-trained CPDAE: figures of some texts, and statistics over the sample."""
    tokenizer, counts = Tokenizer.load(checkpoint.path), read_terms(terms, num_rows(pairs.path))
    decoder = read_decoder(checkpoint, counts)
    texts = sample_texts(pairs, settings)
    mass = VocabularyMass(counts, settings.common, decoder.vocabulary.out_features)
    figures: list[dict[str, Any]] = []
    for row, shares_V, ids in _decode(texts, checkpoint.path, decoder, tokenizer, settings):
        mass.add(shares_V, np.setdiff1d(ids, tokenizer.specials))
        if len(figures) < settings.shown:
            figures.append(_figure(row, shares_V, ids, checkpoint.path, counts, settings))
    write(out, settings, {"drawn": len(texts), **mass.statistics(), "pictures": figures})


def read_terms(terms: Artifact[Terms], num_texts: int) -> pretraining.TermCounts:
    """Return the number of texts in which each token occurs."""
    table = read_table(terms, Terms)
    return pretraining.TermCounts(num_texts, table["texts"].to_numpy(), table["occurrences"].to_numpy())


def read_decoder(checkpoint: Artifact[Checkpoint], terms: pretraining.TermCounts) -> cpdae.Decoder:
    """Return the decoder that was pre-trained with the encoder. Raises UserError for a checkpoint that has none."""
    path, prefix = checkpoint.path / HEADS_FILE, "decoder."
    decoder = cpdae.Decoder(backbones.load(checkpoint.path), terms)
    parameters = {prefix + name: parameter for name, parameter in decoder.named_parameters()}
    try:
        if not path.is_file():
            raise ValueError(f"there is no {HEADS_FILE}")
        load_parameters(parameters, read_weights(path), path)
    except ValueError as error:
        raise UserError(
            f"word_distribution: {checkpoint.reference}: expected a checkpoint that cpdae pre-trained, with its "
            f"decoder ({error}); leave the analysis out of recipes of other papers"
        ) from None
    return decoder.eval()


def sample_texts(pairs: Artifact[Pairs], settings: Settings) -> list[dict[str, Any]]:
    """Return texts sampled by the hash of their id, with one block of the table in memory."""
    rows = progress(read_rows(pairs, Pairs), total=num_rows(pairs.path), what="sampling", unit="texts")
    keyed = ((share(row["passage_id"], str(settings.seed)), row["passage_id"], row["text"]) for row in rows)
    return [{"passage_id": name, "text": text} for _, name, text in heapq.nsmallest(settings.texts, keyed)]


def _decode(
    texts: Sequence[Mapping[str, Any]], folder: Path, decoder: cpdae.Decoder, tokenizer: Tokenizer, settings: Reading
) -> Iterator[tuple[Mapping[str, Any], NDArray[np.float64], NDArray[np.int64]]]:
    """Yield each text, its distribution over the vocabulary, and its token ids without [CLS] and [SEP]."""
    encoder = TextEncoder(folder, settings.precision)
    for start in progress(range(0, len(texts), BATCH), what="decoding", unit="batches"):
        batch = texts[start : start + BATCH]
        vectors = encoder([row["text"] for row in batch], "passage", settings.max_tokens).dense
        if vectors is None:
            raise UserError("word_distribution: expected a checkpoint with a dense view, which the decoder reads")
        shares_BV = word_shares(decoder, torch.from_numpy(vectors))
        ids = tokenizer.encode([row["text"] for row in batch], settings.max_tokens)
        for row, shares_V, own in zip(batch, shares_BV, ids, strict=True):
            yield row, shares_V, np.asarray(own[1:-1], np.int64)


@torch.inference_mode()
def word_shares(decoder: cpdae.Decoder, vectors_BH: torch.Tensor) -> NDArray[np.float64]:
    """Return sigmoid(z) / sum sigmoid(z) of each vector over the vocabulary, [B, V]."""
    logs_BV = logsigmoid(decoder(vectors_BH).double())
    shares_BV: NDArray[np.float64] = (logs_BV - logs_BV.logsumexp(1, keepdim=True)).exp().numpy()
    return shares_BV


def _figure(
    row: Mapping[str, Any],
    shares_V: NDArray[np.float64],
    ids: NDArray[np.int64],
    folder: Path,
    terms: pretraining.TermCounts,
    settings: Settings,
) -> dict[str, Any]:
    """Return a text in shaded stretches, and the tokens with the greatest mass."""
    fast, own = load_tokenizer(str(folder / "tokenizer.json")), set(ids.tolist())
    heaviest, frequency = np.argsort(-shares_V, kind="stable")[: settings.words].tolist(), terms.document_frequency
    top: list[dict[str, Any]] = [
        {"piece": fast.id_to_token(piece), "mass": float(shares_V[piece]), "own": piece in own,
         "texts": float(frequency[piece] / terms.num_texts) if piece < len(frequency) else 0.0}
        for piece in heaviest
    ]  # fmt: skip
    return {
        "passage_id": row["passage_id"],
        "stretches": stretches(row["text"], fast.encode(row["text"], add_special_tokens=False), shares_V, len(ids)),
        "top": top,
    }


def stretches(text: str, encoding: Any, shares_V: NDArray[np.float64], read: int) -> list[dict[str, Any]]:
    """Return the words of a text, with their mass and shade, and the characters between them.

    A word's mass is the sum over its tokens; the word with the greatest mass has the darkest shade. Text beyond the
    first `read` tokens is omitted.
    """
    encoded = list(zip(encoding.word_ids, encoding.offsets, encoding.ids, strict=True))[:read]
    words = [
        (group[0][1][0], group[-1][1][1], float(shares_V[[token for _, _, token in group]].sum()))
        for group in (list(tokens) for _, tokens in groupby(encoded, key=itemgetter(0)))
    ]
    heaviest, end = max((mass for _, _, mass in words), default=0.0), 0
    parts: list[dict[str, Any]] = []
    for start, stop, mass in words:
        if start > end:
            parts.append({"text": text[end:start], "mass": None, "level": 0})
        level = min(LEVELS - 1, int(LEVELS * mass / heaviest)) if heaviest else 0
        parts.append({"text": text[start:stop], "mass": mass, "level": level})
        end = stop
    return parts
