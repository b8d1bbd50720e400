"""CPDAE's word distributions: against the formulas, by loops, and as the picture shows them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr

from models.layers.bert_config import BertConfig
from models.pretraining import TermCounts
from models.retrievers.retriever import HEADS_FILE
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Pairs, Terms
from tasks.analyses.measures.vocabulary_mass import VocabularyMass
from tasks.analyses.word_distribution import Reading, read_decoder, stretches, word_distribution, word_shares
from tasks.pretraining.count_terms import count_terms
from tests.slow import Array, gelu
from tests.tasks.analyses.drawing import section
from tests.tiny import PIECES, WORDS, fast_tokenizer, save_backbone

pytestmark = pytest.mark.usefixtures("store")
SETTINGS = {
    "analysis": "word_distribution", "texts": 30, "shown": 2, "words": 5, "common": 0.5, "seed": 1, "max_tokens": 12,
}  # fmt: skip
V = len(PIECES)
EVERY_TEXT = "king"


@pytest.fixture(scope="module")
def texts(written: Any) -> Artifact[Pairs]:
    """Each has one word that all have, and others."""
    random = np.random.default_rng(0)
    rows = [
        {"passage_id": f"p{n}", "text": " ".join([EVERY_TEXT, *random.choice(WORDS, 5), "<b>."]), "queries": [],
         "passages": []}
        for n in range(40)
    ]  # fmt: skip
    artifact: Artifact[Pairs] = written(Pairs, rows)
    return artifact


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Any]:
    """A tiny BERT, and beside it a decoder whose weights are random."""
    folder = save_backbone(tmp_path_factory.mktemp("pretrain"), spread=0.2)
    hidden, random = BertConfig.load(folder).hidden_size, torch.Generator().manual_seed(0)
    shapes = {
        "transform.dense.weight": (hidden, hidden), "transform.dense.bias": (hidden,),
        "transform.LayerNorm.weight": (hidden,), "transform.LayerNorm.bias": (hidden,),
        "vocabulary.weight": (V, hidden), "vocabulary.bias": (V,),
    }  # fmt: skip
    save_file({f"decoder.{name}": torch.randn(shape, generator=random) for name, shape in shapes.items()},
              folder / HEADS_FILE)  # fmt: skip
    return Artifact("pretrain", "tiny", folder)


@pytest.fixture(scope="module")
def terms(texts: Artifact[Pairs], checkpoint: Artifact[Any], run_stage: Any, on_one_thread: Any) -> Artifact[Terms]:
    artifact: Artifact[Terms] = run_stage(count_terms, pairs=texts, tokenizer=checkpoint)
    return artifact


@pytest.fixture(scope="module")
def analysis(texts: Any, terms: Any, checkpoint: Any, run_stage: Any, on_one_thread: Any) -> dict[str, Any]:
    """What the stage writes."""
    artifact = run_stage(
        word_distribution, pairs=texts, terms=terms, checkpoint=checkpoint, settings=Reading(**SETTINGS)
    )
    content: dict[str, Any] = json.loads((artifact.path / "analysis.json").read_text())
    return content


def test_shares_equal_the_formula(checkpoint: Artifact[Any]) -> None:
    heads = {name: tensor.double().numpy() for name, tensor in load_file(checkpoint.path / HEADS_FILE).items()}
    vectors = np.random.default_rng(1).normal(size=(3, len(heads["decoder.transform.dense.bias"])))
    counted = TermCounts(9, np.ones(V, np.int64), np.ones(V, np.int64))

    shares = word_shares(read_decoder(checkpoint, counted), torch.from_numpy(vectors))

    for row, vector in zip(shares, vectors, strict=True):
        np.testing.assert_allclose(row, slow_shares(vector, heads), rtol=1e-4)


def slow_shares(vector: Array, heads: dict[str, Array]) -> Array:
    """sigmoid(W2 LN(GELU(W1 h + b1)) + b2), each by what all add up to."""
    weights = {name.removeprefix("decoder."): head for name, head in heads.items()}
    inner = gelu(weights["transform.dense.weight"] @ vector + weights["transform.dense.bias"])
    middle = (inner - inner.mean()) / np.sqrt(((inner - inner.mean()) ** 2).mean() + 1e-12)
    normed = middle * weights["transform.LayerNorm.weight"] + weights["transform.LayerNorm.bias"]
    chances = [1 / (1 + math.exp(-z)) for z in weights["vocabulary.weight"] @ normed + weights["vocabulary.bias"]]
    return np.array(chances) / sum(chances)


def test_statistics_equal_the_reference() -> None:
    random, often = np.random.default_rng(2), [0, 1, 2, 4, 8, 16, 20, 20, 3, 10]
    shares = random.dirichlet(np.ones(10), size=6)
    own = [np.sort(random.choice(np.arange(1, 10), size=n, replace=False)) for n in (4, 5, 2, 6, 3, 4)]
    result = VocabularyMass(TermCounts(20, np.array(often), np.array(often)), common=0.4, size=10)
    for row, words in zip(shares, own, strict=True):
        result.add(row, words)

    figures = result.statistics()

    on_own, top, common_mass, common_words, correlations = [], [], [], [], []
    for row, words in zip(shares, own, strict=True):
        mass = sum(row[word] for word in words)
        common = [word for word in words if often[word] >= 8]
        heaviest = sorted(range(10), key=lambda word: -row[word])[: len(words)]
        on_own.append(mass)
        top.append(len(set(heaviest) & set(words.tolist())) / len(words))
        common_mass.append(sum(row[word] for word in common) / mass)
        common_words.append(len(common) / len(words))
        if len(words) > 2:
            correlations.append(spearmanr([row[word] for word in words], [often[word] for word in words]).statistic)
    means = {name: figure["mean"] for name, figure in figures["means"].items()}
    assert means == pytest.approx({
        "on_own_words": np.mean(on_own), "own_among_top": np.mean(top), "common_mass": np.mean(common_mass),
        "common_words": np.mean(common_words), "rank_correlation": np.mean(correlations),
        "common_difference": np.mean(np.subtract(common_mass, common_words)),
    })  # fmt: skip
    assert figures["means"]["rank_correlation"]["texts"] == 5
    information = np.mean(
        [sum(p * math.log(p / q) for p, q in zip(row, shares.mean(0), strict=True)) for row in shares]
    )
    assert figures["told_apart"] == pytest.approx(math.exp(information))
    assert sum(row["words"] for row in figures["profile"]) == sum(map(len, own))
    total = sum(row["words"] * row["mass"] for row in figures["profile"])
    assert total == pytest.approx(sum(map(len, own)))  # 1 is an even share
    assert all(row["from"] <= 1.0001 * row["to"] for row in figures["profile"])


def test_the_number_of_distinguished_texts() -> None:
    same, other = (VocabularyMass(TermCounts(4, np.ones(4, np.int64), np.ones(4, np.int64)), 0.5, 4) for _ in range(2))
    for number in range(4):
        same.add(np.array([0.1, 0.2, 0.3, 0.4]), np.array([1, 2]))
        other.add(np.eye(4)[number], np.array([number]))

    assert same.statistics()["told_apart"] == pytest.approx(1)
    assert other.statistics()["told_apart"] == pytest.approx(4)


def test_stretches_have_the_mass_of_their_words() -> None:
    text, shares = "Kings, the mountaining.", np.arange(V) / 1_000
    encoding = fast_tokenizer().encode(text, add_special_tokens=False)
    number = {piece: token_id for token_id, piece in enumerate(PIECES)}

    drawn = stretches(text, encoding, shares, read=len(encoding.ids))

    assert "".join(row["text"] for row in drawn) == text
    words = {row["text"]: row["mass"] for row in drawn}
    assert words["Kings"] == pytest.approx((number["king"] + number["##s"]) / 1_000)
    assert words["mountaining"] == pytest.approx((number["mountain"] + number["##ing"]) / 1_000)
    assert words[","] == pytest.approx(number[","] / 1_000)
    assert words[" "] is None
    levels = {row["text"]: row["level"] for row in drawn if row["mass"] is not None}
    assert levels[max((word for word in words if words[word]), key=lambda word: words[word])] == 5
    assert "".join(stretch["text"] for stretch in stretches(text, encoding, shares, read=3)) == "Kings,"


def test_the_stage_analyses_the_requested_number_of_texts(analysis: dict[str, Any]) -> None:
    assert analysis["drawn"] == 30
    assert len(analysis["pictures"]) == 2
    assert all(len(picture["top"]) == 5 for picture in analysis["pictures"])
    for picture in analysis["pictures"]:
        assert "".join(stretch["text"] for stretch in picture["stretches"]).startswith(EVERY_TEXT)
        assert [row["mass"] for row in picture["top"]] == sorted((row["mass"] for row in picture["top"]), reverse=True)
        assert not any(row["own"] and row["texts"] == 0 for row in picture["top"])
    assert analysis["profile"][-1]["words"] >= 30  # the word of every text


@pytest.mark.parametrize("heads", [None, {"decoder.0.weight": torch.zeros(2)}])
def test_a_checkpoint_of_another_paper_is_refused(heads: dict[str, torch.Tensor] | None, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path)
    if heads is not None:
        save_file(heads, folder / HEADS_FILE)

    with pytest.raises(UserError, match="expected a checkpoint that cpdae pre-trained"):
        read_decoder(Artifact("pretrain", "other", folder), TermCounts(9, np.ones(V, np.int64), np.ones(V, np.int64)))


def test_the_page_shows_texts_as_texts(analysis: dict[str, Any]) -> None:
    seen = section("word_distribution", analysis)

    assert seen.tags.count("blockquote") == 2
    assert "b" not in seen.tags
    assert "<b>" in seen.text
    assert f"{100 * analysis['means']['on_own_words']['mean']:.1f} %" in seen.text


@pytest.mark.parametrize(
    ("interval", "expected"),
    [([-0.2, -0.1], "they are suppressed"), ([0.1, 0.2], "but raised"), ([-0.1, 0.1], "no more and no less"),
     (None, "no more and no less")],
)  # fmt: skip
def test_the_page_states_the_effect_on_common_words(
    interval: list[float] | None, expected: str, analysis: dict[str, Any]
) -> None:
    figure = {"mean": 0.0, "interval": interval, "texts": 9}

    seen = section("word_distribution", {**analysis, "means": {**analysis["means"], "common_difference": figure}})

    assert expected in seen.text
