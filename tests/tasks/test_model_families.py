"""Other families than BERT through the stages: initialise, pre-train, train, encode; and what is refused before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.papers import cot_mae
from models.retrievers import towers
from models.retrievers.load import load
from models.retrievers.retriever import HEADS_FILE
from models.retrievers.retriever import load as load_retriever
from models.tokens import Tokenizer
from storage.artifact import Artifact, Source, source_of
from storage.errors import UserError
from storage.store.store import Store
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries
from storage.vectors import Encoded, num_shards, read_shard
from tasks.cross_encoder.train_teacher import check as check_teacher
from tasks.estimates.flops import Costs
from tasks.finetuning.train import check as check_training
from tasks.finetuning.train import train
from tasks.pretraining.initialise import BackboneSettings, initialise
from tasks.pretraining.pretrain import check, pretrain
from tasks.retrieval.encode import Encoding, encode
from tests.tasks.finetuning.training_tables import (
    NEGATIVES,
    POSITIVES,
    TRAINING,
    negatives,
    passages,
    passages_texts,
    positives,
    queries,
)
from tests.tasks.pretraining.test_pretrain import given_pairs, settings
from tests.tiny import save_tokenizer
from tests.tiny_families import tiny_network

ENCODING = Encoding(query_max_tokens=12, passage_max_tokens=20)
both_families = pytest.mark.parametrize("family", ["modernbert", "roberta"])


def saved(folder: Path, family: str, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    positions = {"max_position_embeddings": 41} if family == "roberta" else {}  # they begin after [PAD], whose id is 0
    tiny_network(family, pad_token_id=0, **positions | changes).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def backbone(folder: Path, **changes: Any) -> BackboneSettings:
    values = {
        "weights": str(folder), "start": "weights", "towers": "siamese", "layers": None, "dropout": 0.0,
        "pooling": "mean", "seed": 1,
    }  # fmt: skip
    return BackboneSettings.model_validate(values | changes)


def source(folder: Path) -> Source:
    return source_of(folder, [file for file in folder.rglob("*") if file.is_file()])


@pytest.mark.slow
@both_families
@pytest.mark.usefixtures("on_one_thread")
def test_from_a_folder_to_vectors(family: str, store: Store, written: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "given", family)

    start = initialise(source(folder), settings=backbone(folder))
    pretrained = pretrain(pairs=given_pairs(), start=start, settings=settings(steps=3))
    passage_table = written(Passages, passages())
    trained = Artifact[Checkpoint]("train", "three_steps", tmp_path / "trained")
    trained.path.mkdir()
    train.body(
        trained.path, pretrained, written(Queries, queries(POSITIVES)), passage_table,
        written(Positives, positives(POSITIVES)), written(Negatives, negatives(NEGATIVES)), None,
        settings=TRAINING.model_copy(update={"epochs": None, "steps": 3}),
    )  # fmt: skip
    encode.body(tmp_path / "vectors", passage_table, trained, settings=ENCODING)

    parts = [read_shard(tmp_path / "vectors", shard) for shard in range(num_shards(tmp_path / "vectors"))]
    vectors = Encoded.concatenated(parts).dense
    assert (pretrained.path / HEADS_FILE).is_file()
    assert vectors is not None
    np.testing.assert_allclose(vectors, by_transformers(trained.path, passages_texts()), atol=1e-4)
    differences = [
        np.abs(vectors - by_transformers(model.path, passages_texts())).max() for model in (start, pretrained)
    ]
    assert min(differences) > 1e-3
    loaded = load(pretrained.path)
    assert type(loaded.retriever) is type(load_retriever(trained.path))
    assert loaded.retriever.encoder.pooling == "mean"


@torch.no_grad()
def by_transformers(folder: Path, texts: list[str]) -> Any:
    """The mean of the last hidden states, by transformers, one text at a time."""
    from transformers import AutoModel

    model, vectors = AutoModel.from_pretrained(folder, attn_implementation="eager").eval(), []
    for ids in Tokenizer.load(folder).encode(texts, 20):
        vectors.append(model(torch.tensor([ids])).last_hidden_state[0].mean(0))
    return torch.stack(vectors).numpy()


@both_families
def test_random_weights_some_layers_and_two_encoders(family: str, store: Store, tmp_path: Path) -> None:
    folder = saved(tmp_path / "given", family)

    built = initialise(source(folder), settings=backbone(folder, start="random", layers=[0, 2], towers="mixture"))

    encoder = towers.load(built.path)
    assert towers.sharing(encoder) == "mixture"
    assert encoder.passage.config.num_hidden_layers == len(encoder.query.layers) == 2
    assert not torch.equal(encoder.passage.words, towers.load(folder).passage.words)


def test_layers_that_are_kept_compute_the_same(store: Store, tmp_path: Path) -> None:
    folder = saved(tmp_path / "given", "modernbert", num_hidden_layers=4)

    built = initialise(source(folder), settings=backbone(folder, layers=[0, 2, 3])).path

    tokens = Tokenizer.load(folder).pad_batch([[2, *range(10, 30), 3], [2, 20, 3]])
    complete, part = (towers.load(path).passage for path in (folder, built))
    kept = [complete.layers[number] for number in (0, 2, 3)]
    complete.layers[1].forward = lambda hidden, **others: hidden  # type: ignore[method-assign]
    assert len(kept) == len(part.layers)
    torch.testing.assert_close(part(tokens), complete(tokens))
    with pytest.raises(UserError, match=r"layers: ModernBERT's first layer has no normalisation, so expected 0"):
        initialise(source(folder), settings=backbone(folder, layers=[1, 2]))


@both_families
def test_what_does_not_fit_is_refused_before_anything_is_built(family: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, family)
    valid = settings()

    check(valid, backbone(folder), folder)
    with pytest.raises(UserError, match="max_tokens: expected at most 40, found 41"):
        check(settings(objective=valid.objective.__dict__ | {"max_tokens": 41}), backbone(folder), folder)
    with pytest.raises(UserError, match=r"backbone: vocabulary: only that of a BERT can be reduced, found "):
        check(valid, backbone(folder, vocabulary=20), folder)
    too_long = ENCODING.model_copy(update={"passage_max_tokens": 41})
    with pytest.raises(UserError, match=r"encode.passage_max_tokens: expected at most 40, found 41"):
        check_training("r1", TRAINING, too_long, backbone(folder), folder)
    assert isinstance(valid.objective, cot_mae.Settings)
    assert Costs(folder, backbone(folder)).pretraining(valid).flops > 1e4
    with pytest.raises(UserError, match=r"teacher.weights: a teacher is a BERT, and .* has another model_type; name"):
        check_teacher(folder)


def test_narrow_embeddings_are_refused_where_they_would_have_to_be_vectors(tmp_path: Path) -> None:
    folder = saved(tmp_path, "electra", embedding_size=16)
    lexical = {
        "activation": "none", "head": "embeddings", "pool_specials": True, "top_passages": None, "top_queries": None
    }  # fmt: skip
    views = {"lexical": lexical, "dense": None, "late": None, "shared_layers": None}
    training = type(TRAINING).model_validate(TRAINING.model_dump() | {"retriever": views, "contrasts": ["lexical"]})

    with pytest.raises(UserError, match=r"lexical.head: expected a model whose word embeddings .*, found 16 and 32"):
        check_training("r1", training, ENCODING, backbone(folder), folder)
