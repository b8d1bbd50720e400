"""Train a query generator on a collection's train pairs, as docT5query was trained (Nogueira and Lin 2019).

It is for machines without access to a model hub: a small T5 with a small vocabulary is initialised so that it can copy
(`tasks.pseudo_queries.generators.copy_init`), learns to generate pieces of passages, and then queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing_files
from storage.rows import num_rows, read_rows
from storage.settings import Seed, Settings
from storage.tables import Checkpoint, Passages, Positives, Queries, passage_text
from tasks.pseudo_queries.generators.seq2seq_objective import Examples, Seq2SeqObjective
from tasks.stage import stage
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings
from tasks.training.seeds import random_generator

if TYPE_CHECKING:  # reading a recipe must not import transformers
    from transformers import T5Config

QUERY_WEIGHT = 3  # the weight of a query's tokens, relative to a passage's, when the vocabulary is selected
TEXTS_AT_ONCE = 10_000


class GeneratorTraining(Settings):
    """The generator's architecture and its training."""

    vocabulary: Annotated[int, Field(ge=100)]
    """WordPiece tokens: those of the initial checkpoint that passages and train queries use most."""
    layers: Annotated[int, Field(ge=2)]
    """Layers of the encoder, and as many of the decoder."""
    hidden_size: Annotated[int, Field(ge=8)]
    heads: Annotated[int, Field(ge=2)]
    """An even number that divides `hidden_size`."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    prefix: str
    """Put before each passage; generate with the same prefix."""
    input_max_tokens: Annotated[int, Field(ge=8)]
    """Tokens of prefix and passage, with special tokens; the rest is truncated."""
    query_max_tokens: Annotated[int, Field(ge=2)]
    """Tokens of a query, with its end; a longer one is truncated."""
    copy_steps: Annotated[int, Field(ge=0)]
    """The number of first steps, in which the targets are pieces of any passage."""
    copy_share: Annotated[float, Field(ge=0, lt=1)]
    """The share of the other steps in which they still are."""
    copy_min_tokens: Annotated[int, Field(ge=1)]
    copy_max_tokens: Annotated[int, Field(ge=1)]
    """A piece begins at a word and has so many tokens, unless its passage ends before."""
    steps: Annotated[int, Field(ge=1)]
    """All steps, including those of copying."""
    batch: Annotated[int, Field(ge=1)]
    fit: OptimisationSettings
    seed: Seed

    @model_validator(mode="after")
    def _fits(self) -> GeneratorTraining:
        if self.heads % 2 or self.hidden_size % self.heads:
            raise ValueError(f"heads {self.heads}: expected an even number that divides hidden_size {self.hidden_size}")
        if self.copy_min_tokens > self.copy_max_tokens or self.copy_steps > self.steps:
            raise ValueError("expected copy_min_tokens <= copy_max_tokens and copy_steps <= steps")
        return self


@stage(version=1, table=Checkpoint, gpu=True)
def train_generator(
    out: Path, queries: Artifact[Queries], positives: Artifact[Positives], passages: Artifact[Passages],
    start: Artifact[Checkpoint], *, settings: GeneratorTraining,
) -> None:  # fmt: skip
    """Write a T5 trained to generate a query for its positive passage.

    `start` is any BERT checkpoint, from which the WordPiece tokens and their embeddings are taken.
    """
    from transformers.utils import logging as transformers_logging

    from tasks.pseudo_queries.generators.copy_init import copying_t5, resized
    from tasks.pseudo_queries.generators.vocabulary import embeddings_of, frequent_pieces, save_tokenizer

    texts = read_texts(queries, positives, passages, settings)
    vocabulary = frequent_pieces(start.path, texts.groups(), settings.vocabulary)
    save_tokenizer(vocabulary, start.path, out)
    tokenizer = Tokenizer.load(out)
    embeddings = resized(embeddings_of(vocabulary, start.path), settings.hidden_size, settings.seed)
    model = copying_t5(embeddings, shape(tokenizer, settings), settings.seed)
    examples = Examples(texts.passages, texts.pairs, tokenizer, settings)
    fit(Seq2SeqObjective(model), examples.batch, settings.steps, out=out, settings=settings.fit, seed=settings.seed)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with writing_files(out) as folder:
        model.save_pretrained(str(folder))


def shape(tokenizer: Tokenizer, settings: GeneratorTraining) -> T5Config:
    """Return the configuration of a T5 whose sequences begin and end with the special tokens of BERT's tokenizer."""
    from transformers import T5Config

    return T5Config(  # type: ignore[call-arg]  # what generation reads is no part of its signature
        vocab_size=tokenizer.vocab_size, d_model=settings.hidden_size, d_kv=settings.hidden_size // settings.heads,
        num_heads=settings.heads, d_ff=4 * settings.hidden_size, num_layers=settings.layers,
        dropout_rate=settings.dropout, decoder_start_token_id=tokenizer.cls, eos_token_id=tokenizer.sep,
        pad_token_id=tokenizer.pad,
    )  # fmt: skip


@dataclass(frozen=True)
class Texts:
    """The texts that the generator is trained on."""

    passages: list[str]
    """The passages of the pairs, and as many others as the steps can visit; each begins with the prefix."""
    pairs: list[tuple[int, str]]
    """The index of a positive passage in `passages`, and its query."""

    def groups(self) -> Iterator[tuple[list[str], int]]:
        """Yield all texts in groups, each with its weight for the vocabulary."""
        queries = [query for _, query in self.pairs]
        for texts, weight in ((self.passages, 1), (queries, QUERY_WEIGHT)):
            for first in range(0, len(texts), TEXTS_AT_ONCE):
                yield texts[first : first + TEXTS_AT_ONCE], weight


def read_texts(
    queries: Artifact[Queries],
    positives: Artifact[Positives],
    passages: Artifact[Passages],
    settings: GeneratorTraining,
) -> Texts:
    """Return the texts of the pairs, and a sample of other passages for copying."""
    of_query = {row["query_id"]: row["text"] for row in read_rows(queries, Queries)}
    pairs = [(row["passage_id"], row["query_id"]) for row in read_rows(positives, Positives)]
    positive_ids, total = {passage_id for passage_id, _ in pairs}, num_rows(passages.path)
    visits = settings.steps * settings.batch
    sampled = set(random_generator(settings.seed, 0).permutation(total)[:visits].tolist())
    texts: list[str] = []
    index_of: dict[str, int] = {}
    for number, row in enumerate(read_rows(passages, Passages)):
        if number in sampled or row["passage_id"] in positive_ids:
            index_of[row["passage_id"]] = len(texts)
            texts.append(settings.prefix + passage_text(row["title"], row["text"]))
    text_pairs = [(index_of[passage_id], of_query[query_id]) for passage_id, query_id in pairs if query_id in of_query]
    if not text_pairs:
        raise UserError(f"{positives.path}: no positive names a query of {queries.path}; a generator needs train pairs")
    return Texts(texts, text_pairs)
