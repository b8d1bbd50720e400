"""The cross-encoder: by the formula, as others open it, and what a training step of it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import CONFIG, BertConfig
from models.model_files import WEIGHTS
from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder, Groups, PairTokens, encode_pair, pad_pairs
from models.tokens import Tokenizer
from tests import slow
from tests.tiny import SHAPE, WORDS, save_backbone, save_tokenizer

PRECISION = {"atol": 1e-5, "rtol": 1e-5}
LIMITS = {"query_max_tokens": 8, "max_tokens": 20}
QUERIES = ["kingly rivers", "music", "the painter in winter, a letter", "bread", ""]
PASSAGES = ["the castle on the mountain.", "ocean", "", "stone bridges and engines of an ocean planet", "a king"]


def tiny_cross_encoder(*, dropout: float = 0.0, seed: int = 0) -> CrossEncoder:
    """Random weights, far from 0."""
    torch.manual_seed(seed)
    config = BertConfig(**SHAPE, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    encoder = CrossEncoder(config)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return encoder.eval()


def folder_of(encoder: CrossEncoder, folder: Path) -> Path:
    cross_encoder.save(encoder, folder)
    save_tokenizer(folder)
    return folder


def read(tokenizer: Tokenizer, queries: list[str], passages: list[str], **limits: int) -> PairTokens:
    query_ids, texts = tokenizer.token_ids(queries), tokenizer.token_ids(passages)
    return pad_pairs(
        tokenizer,
        [encode_pair(tokenizer, query, text, **LIMITS | limits) for query, text in zip(query_ids, texts, strict=True)],
    )


def slow_score(encoder: CrossEncoder, ids: list[int]) -> float:
    """One pair, in numpy: the passage's type begins after the first [SEP]."""
    w, passage = slow.numbers(encoder), ids.index(3) + 1
    last = slow.bert_layers(w, ids, [int(position >= passage) for position in range(len(ids))])[-1]
    pooled = np.tanh(slow.dense(last[0], w, "bert.pooler.dense"))
    return float(slow.dense(pooled, w, "classifier")[0])


def test_scores_are_the_formulas(tokenizer: Tokenizer) -> None:
    encoder, pairs = tiny_cross_encoder(), read(tokenizer, QUERIES, PASSAGES)

    scores = encoder(pairs)

    rows = [ids[mask].tolist() for ids, mask in zip(pairs.tokens.ids, pairs.tokens.mask, strict=True)]
    assert len({len(row) for row in rows}) > 2
    assert scores.shape == (5,)
    assert scores.tolist() == pytest.approx([slow_score(encoder, row) for row in rows], abs=1e-5)
    assert scores.std() > 0.1


@pytest.mark.parametrize(
    ("query", "passage", "kept_query", "kept_passage"),
    [(3, 4, 3, 4), (6, 11, 6, 11), (6, 12, 6, 11), (7, 3, 6, 3), (30, 30, 6, 11), (2, 30, 2, 15), (0, 30, 0, 17),
     (30, 0, 6, 0)],
)  # fmt: skip
def test_the_query_is_cut_first_and_the_passage_to_what_is_left(
    tokenizer: Tokenizer, query: int, passage: int, kept_query: int, kept_passage: int
) -> None:
    query_ids, text = list(range(10, 10 + query)), list(range(50, 50 + passage))

    ids, begin = encode_pair(tokenizer, query_ids, text, query_max_tokens=8, max_tokens=20)

    cls, sep = tokenizer.cls, tokenizer.sep
    assert ids == [cls, *query_ids[:kept_query], sep, *text[:kept_passage], sep]
    assert len(ids) <= 20
    assert begin == kept_query + 2


def test_types_and_padding(tokenizer: Tokenizer) -> None:
    pairs = read(tokenizer, ["king", "river tree"], ["ocean ocean bread", ""])

    assert pairs.types.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0]]
    assert pairs.tokens.mask.sum(1).tolist() == [7, 5]


def test_pairs_are_those_of_hugging_faces_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(QUERIES, PASSAGES, padding=True, return_tensors="pt")
    ours = read(tokenizer, QUERIES, PASSAGES, query_max_tokens=40, max_tokens=64)

    assert torch.equal(ours.tokens.ids, theirs["input_ids"])
    assert torch.equal(ours.types, theirs["token_type_ids"])
    assert torch.equal(ours.tokens.mask, theirs["attention_mask"].bool())


def test_a_saved_folder_gives_the_same_scores_in_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = tiny_cross_encoder()
    folder_of(encoder, tmp_path)
    pairs = read(tokenizer, QUERIES, PASSAGES)

    reference, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )

    assert not any(report.values()), report
    assert reference.config.num_labels == 1
    logits = reference.eval()(pairs.tokens.ids, pairs.tokens.mask.long(), pairs.types).logits
    torch.testing.assert_close(encoder(pairs), logits[:, 0], **PRECISION)


def test_a_saved_folder_gives_the_same_scores_in_sentence_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = tiny_cross_encoder()
    folder_of(encoder, tmp_path)

    reference = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")

    theirs = reference.predict(list(zip(QUERIES, PASSAGES, strict=True)), convert_to_tensor=True)
    ours = encoder(read(tokenizer, QUERIES, PASSAGES, query_max_tokens=40, max_tokens=64))
    torch.testing.assert_close(ours, theirs, **PRECISION)
    assert not ((theirs > 0) & (theirs < 1)).all()


def reference_of(folder: Path, **shape: Any) -> Any:
    torch.manual_seed(5)
    reference = transformers.BertForSequenceClassification(transformers.BertConfig(**SHAPE, **shape)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    reference.save_pretrained(folder)
    return reference


def test_cross_encoders_from_elsewhere_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    reference, pairs = reference_of(tmp_path, num_labels=1), read(tokenizer, QUERIES, PASSAGES)

    encoder = cross_encoder.load(tmp_path)

    logits = reference(pairs.tokens.ids, pairs.tokens.mask.long(), pairs.types).logits
    assert not encoder.training
    torch.testing.assert_close(encoder(pairs), logits[:, 0], **PRECISION)


def test_a_classifier_of_several_labels(tmp_path: Path) -> None:
    reference_of(tmp_path, num_labels=3)

    for read_folder in (cross_encoder.load, cross_encoder.load_for_training):
        with pytest.raises(ValueError, match=r"one label expected classifier.weight of shape \[1, 32\], found \[3, 32"):
            read_folder(tmp_path)


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    encoder = tiny_cross_encoder(dropout=0.1)
    folder_of(encoder, tmp_path)

    for again in (cross_encoder.load(tmp_path), cross_encoder.load_for_training(tmp_path)):
        assert again.config == encoder.config
        assert all(torch.equal(value, encoder.state_dict()[name]) for name, value in again.state_dict().items())


def test_a_masked_language_model_is_a_start(tmp_path: Path) -> None:
    save_backbone(tmp_path, spread=0.2)
    torch.manual_seed(7)
    encoder = cross_encoder.load_for_training(tmp_path)
    torch.manual_seed(7)
    again = cross_encoder.load_for_training(tmp_path)

    body = BertForMaskedLM.load(tmp_path).bert.state_dict()
    assert all(torch.equal(value, encoder.bert.state_dict()[name]) for name, value in body.items())
    pooler = encoder.bert.pooler.dense
    assert 0.018 < pooler.weight.std().item() < 0.022
    assert 0.012 < encoder.classifier.weight.std().item() < 0.028
    assert not pooler.bias.any()
    assert not encoder.classifier.bias.any()
    assert torch.equal(encoder.classifier.weight, again.classifier.weight)
    with pytest.raises(ValueError, match=r"a cross-encoder of one label, found no bert\.pooler\.dense\.weight"):
        cross_encoder.load(tmp_path)


def test_a_bare_encoders_pooler_is_taken(tmp_path: Path) -> None:
    torch.manual_seed(5)
    reference = transformers.BertModel(transformers.BertConfig(**SHAPE))
    reference.save_pretrained(tmp_path)
    assert "pooler.dense.weight" in load_file(tmp_path / WEIGHTS)

    encoder = cross_encoder.load_for_training(tmp_path)

    assert torch.equal(encoder.bert.pooler.dense.weight, reference.pooler.dense.weight)
    assert torch.equal(encoder.bert.embeddings.word_embeddings.weight, reference.embeddings.word_embeddings.weight)


def test_a_classifier_without_a_pooler_is_no_cross_encoder(tmp_path: Path) -> None:
    folder_of(tiny_cross_encoder(), tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file({name: value for name, value in weights.items() if "pooler" not in name}, tmp_path / WEIGHTS)

    with pytest.raises(ValueError, match=r"found no bert\.pooler"):
        cross_encoder.load(tmp_path)


def test_a_bert_of_one_token_type(tmp_path: Path) -> None:
    config = BertConfig(**SHAPE, type_vocab_size=1)

    with pytest.raises(ValueError, match="needs token types 0 and 1, found 1"):
        CrossEncoder(config)


def test_the_folder_still_is_a_berts(tmp_path: Path) -> None:
    encoder = tiny_cross_encoder()
    folder_of(encoder, tmp_path)

    assert json.loads((tmp_path / CONFIG).read_text())["architectures"] == ["BertForSequenceClassification"]
    assert torch.equal(
        BertForMaskedLM.load(tmp_path).bert.embeddings.word_embeddings.weight,
        encoder.bert.embeddings.word_embeddings.weight,
    )


def groups(tokenizer: Tokenizer, queries: int = 5, group: int = 3) -> Groups:
    random = np.random.default_rng(2)
    topics = [" ".join(random.choice(WORDS, size=random.integers(1, 9))) for _ in range(queries)]
    texts = [" ".join(random.choice(WORDS, size=random.integers(0, 20))) for _ in range(queries * group)]
    return Groups(read(tokenizer, [text for text in topics for _ in range(group)], texts), group)


def test_what_stands_in_padding_or_another_pair_changes_nothing(tokenizer: Tokenizer) -> None:
    encoder, batch = tiny_cross_encoder(), groups(tokenizer)
    tokens, alone = batch.pairs.tokens, batch.rows(2, 3)
    changed = torch.where(tokens.mask, tokens.ids, 7)

    scores = encoder(batch.pairs)

    torch.testing.assert_close(scores[6:9], encoder(alone.pairs), atol=1e-6, rtol=1e-5)
    pairs = PairTokens(type(tokens)(changed, tokens.mask), batch.pairs.types)
    torch.testing.assert_close(scores, encoder(pairs), atol=1e-6, rtol=1e-5)


def test_scores_are_float32_under_autocast(tokenizer: Tokenizer) -> None:
    encoder, pairs = tiny_cross_encoder(), read(tokenizer, QUERIES, PASSAGES)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = encoder(pairs)

    assert scores.dtype == torch.float32
    assert (scores != scores.bfloat16().float()).any()
    torch.testing.assert_close(scores, encoder(pairs), atol=0.1, rtol=0.1)
