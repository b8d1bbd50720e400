"""The bi-encoder: pooling, its files, InfoNCE over a batch, and passages that are known to be relevant."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.encoder import DenseEncoder, Examples, Finetuning, known_positives, load_pooling, save_pooling
from models.representation import Pooling, Representation, pooled
from models.similarity import dot
from models.tokens import Tokenizer, Tokens, pad
from models.towers import load
from tests.models.test_losses import slow_contrast
from tests.tiny import SHAPE, save_backbone, tiny_bert

TEXTS = ["Rivers of the mountain castle.", "king", "painting, music, planets and oceanland"]


def random_tokens(count: int, seed: int) -> Tokens:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=random).tolist()
    return pad([torch.randint(5, SHAPE["vocab_size"], (length,), generator=random).tolist() for length in lengths])


def test_pooling_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[0.0, 1.0], [2.0, 2.0], [4.0, 6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])

    assert pooled(hidden, mask, "cls").tolist() == [[1, 2], [0, 1]]
    assert pooled(hidden, mask, "mean").tolist() == [[2, 4], [2, 3]]


def test_dot_is_every_query_with_every_passage() -> None:
    queries, passages = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]])

    scores = dot(Representation(dense=queries), Representation(dense=passages))

    assert scores.tolist() == [[11, 17, 2], [4, 6, 1]]
    with pytest.raises(ValueError, match="dense view"):
        dot(Representation(), Representation(dense=passages))


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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("group", [1, 3])
def test_fine_tuning_contrasts_each_query_with_all_passages_of_the_batch(group: int, masked: bool) -> None:
    objective = Finetuning(DenseEncoder(tiny_bert().eval(), "cls"), temperature=4.0)
    excluded = torch.zeros(4, 4 * group, dtype=torch.bool)
    excluded[0, group] = excluded[3, 0] = masked
    batch = Examples(random_tokens(4, 1), random_tokens(4 * group, 2), group, excluded if masked else None)

    vectors, local = objective.encode(batch)
    losses = objective.compare(vectors, batch)

    scores = torch.tensor([[float(q @ p) for p in vectors[1].detach()] for q in vectors[0].detach()])
    expected = slow_contrast(scores, [n * group for n in range(4)], 4.0, excluded)
    assert local == {}
    assert losses["contrastive"].item() == pytest.approx(expected, rel=1e-4)


def test_rows_keep_queries_with_their_passages() -> None:
    batch = Examples(random_tokens(4, 1), random_tokens(12, 2), 3, None)

    part = batch.rows(1, 3)

    assert len(part) == 2
    assert torch.equal(part.queries.ids, batch.queries.ids[1:3])
    assert torch.equal(part.passages.ids, batch.passages.ids[3:9])
    assert torch.equal(part.passages.mask, batch.passages.mask[3:9])


def slow_exclusions(relevant: list[set[str]], documents: list[str], group: int) -> Tensor:
    excluded = torch.zeros(len(relevant), len(documents), dtype=torch.bool)
    for query in range(len(relevant)):
        for column in range(len(documents)):
            if documents[column] in relevant[query] and column != query * group:
                excluded[query, column] = True
    return excluded


def test_known_positives_are_told_by_their_document() -> None:
    relevant = [{"a"}, {"b", "c"}, {"c"}]
    documents = ["a", "x", "b", "a", "c", "y"]  # two passages a query, the first its positive

    excluded = known_positives(relevant, documents, 2)

    assert excluded is not None
    assert excluded.tolist() == [
        [False, False, False, True, False, False],
        [False, False, False, False, True, False],
        [False] * 6,
    ]
    assert torch.equal(excluded, slow_exclusions(relevant, documents, 2))


def test_known_positives_of_random_batches() -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        group = int(torch.randint(1, 4, (), generator=random))
        documents = [f"d{n}" for n in torch.randint(0, 9, (5 * group,), generator=random).tolist()]
        relevant = [{documents[q * group], f"d{q}"} for q in range(5)]

        excluded, expected = known_positives(relevant, documents, group), slow_exclusions(relevant, documents, group)

        assert (excluded is None) == (not expected.any())
        assert excluded is None or torch.equal(excluded, expected)
