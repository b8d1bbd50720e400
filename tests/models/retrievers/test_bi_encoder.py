"""The bi-encoder: pooling and its files."""

import json
from pathlib import Path

import pytest
import torch

from models.representation import Pooling, pool
from models.retrievers.bi_encoder import load_pooling, save_pooling
from models.retrievers.towers import load
from models.tokens import Tokenizer
from tests.tiny import save_backbone

TEXTS = ["Rivers of the mountain castle.", "king", "painting, music, planets and oceanland"]


def test_pooling_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[0.0, 1.0], [2.0, 2.0], [4.0, 6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])

    assert pool(hidden, mask, "cls").tolist() == [[1, 2], [0, 1]]
    assert pool(hidden, mask, "mean").tolist() == [[2, 4], [2, 3]]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_saved_encoder_makes_the_same_vectors_in_sentence_transformers(tmp_path: Path, pooling: Pooling) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    save_backbone(tmp_path, pooling=pooling, spread=0.2)
    encoder, tokenizer = load(tmp_path), Tokenizer.load(tmp_path)

    with torch.inference_mode():
        ours = encoder(tokenizer.pad_batch(tokenizer.encode(TEXTS, 64)), "passage").dense

    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode(
        TEXTS, convert_to_tensor=True
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert (theirs.norm(dim=1) > 1.1).all()  # neither normalises


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pooling_comes_back(tmp_path: Path, pooling: Pooling) -> None:
    save_pooling(tmp_path, pooling, 32)

    assert load_pooling(tmp_path) == pooling
    assert load(save_backbone(tmp_path, pooling=pooling)).pooling == pooling
    assert not load(tmp_path).training


@pytest.mark.parametrize(
    ("content", "pooling"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, "mean"),
        ({"pooling_mode": "cls", "embedding_dimension": 32}, "cls"),
    ],
)
def test_pooling_as_sentence_transformers_writes_it(tmp_path: Path, content: dict[str, object], pooling: str) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(content))

    assert load_pooling(tmp_path) == pooling


def test_a_pooling_that_we_have_not(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')

    with pytest.raises(ValueError, match="expected cls or mean"):
        load_pooling(tmp_path)


def test_a_folder_that_says_nothing_of_pooling_means_cls(tmp_path: Path) -> None:
    assert load_pooling(tmp_path) == "cls"
