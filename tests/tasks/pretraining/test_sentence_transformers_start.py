"""Initial weights in the layouts of bge, e5 and gte: pooling, normalisation and prompts are those of their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from models.retrievers import load, retriever
from models.retrievers.bi_encoder import load_pooling
from models.retrievers.retriever_settings import Prompts, RetrieverSettings
from models.retrievers.stated_retriever import StatedRetriever, contradiction, read_stated_retriever
from models.retrievers.views.dense import DenseSettings
from storage.artifact import Source, source_of
from storage.errors import UserError
from storage.store.store import Store
from tasks.finetuning.train import check as check_training
from tasks.finetuning.train import save_retriever
from tasks.pretraining.initialise import BackboneSettings, initialise, save_checkpoint
from tasks.retrieval.encode import Encoding
from tasks.retrieval.sentence_transformer_export import add_files
from tests.tasks.finetuning.training_tables import TRAINING
from tests.tiny import save_backbone, save_tokenizer
from tests.tiny_families import tiny_network

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TEXTS = ["river mountain castle", "king", "The castles, and the painters of a planet. " * 4]
BGE = {"query": "king of the garden: ", "document": ""}
E5 = {"query": "music: ", "document": "stone: "}
LAYOUTS: dict[str, dict[str, Any]] = {
    "bge": {"mode": "cls", "normalise": True, "prompts": BGE},
    "e5": {"mode": "mean", "normalise": True, "prompts": E5},
    "gte": {"mode": "mean", "normalise": False},
    "inner products": {"mode": "cls", "normalise": False, "similarity_fn_name": "dot"},
    "ModernBERT": {"mode": "mean", "normalise": True, "prompts": E5, "family": "modernbert"},
}  # fmt: skip


def saved(folder: Path, *, mode: Any, normalise: bool, family: str = "bert", **options: Any) -> SentenceTransformer:
    """A tiny model with random weights, as the package saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    (encoder := folder.with_name("encoder")).mkdir()
    if family == "bert":
        save_backbone(encoder, spread=0.2)
    else:
        tiny_network(family, max_position_embeddings=64).base_model.save_pretrained(encoder)
        save_tokenizer(encoder)
        special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        changed(encoder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    parts = [modules.Transformer(str(encoder)), modules.Pooling(32, mode), *([modules.Normalize()] * normalise)]
    built = SentenceTransformer(modules=parts, device="cpu", **options)
    built.save(str(folder), create_model_card=False)
    return built


def backbone(folder: Path, **changes: Any) -> BackboneSettings:
    values = {"start": "weights", "towers": "siamese", "layers": None, "dropout": 0.0, "pooling": None, "seed": 1}
    return BackboneSettings.model_validate(values | {"weights": str(folder)} | changes)


def source(folder: Path) -> Source:
    return source_of(folder, [file for file in folder.rglob("*") if file.is_file()])


def similarities(folder: Path) -> np.ndarray[Any, Any]:
    """The scores of all texts as queries and as passages, by the retriever of a folder."""
    opened = load.load(folder)
    with torch.inference_mode():
        batches = {role: opened.pad_batch(opened.encode(TEXTS, role, 64)) for role in ("query", "passage")}  # type: ignore[arg-type]
        queries, passages = (opened.retriever(batches[role], role).dense for role in ("query", "passage"))
    assert queries is not None
    assert passages is not None
    return (queries @ passages.T).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_initial_checkpoint_scores_as_the_package_does(layout: str, store: Store, tmp_path: Path) -> None:
    oracle = saved(tmp_path / "given", **LAYOUTS[layout])

    built = initialise(source(tmp_path / "given"), settings=backbone(tmp_path / "given")).path

    expected = oracle.similarity(oracle.encode_query(TEXTS), oracle.encode_document(TEXTS)).numpy()
    np.testing.assert_allclose(similarities(built), expected, atol=1e-4, rtol=1e-4)
    assert load_pooling(built) == LAYOUTS[layout]["mode"]
    assert not load.is_foreign(built)


def test_a_retriever_and_a_pretraining_keep_what_the_model_states(store: Store, tmp_path: Path) -> None:
    saved(tmp_path / "given", **LAYOUTS["e5"])
    built = initialise(source(tmp_path / "given"), settings=backbone(tmp_path / "given")).path
    own = Prompts(query="music: ", passage="stone: ")

    inherited = retriever.load_for_training(built, RetrieverSettings(dense=DenseSettings(dim=8))).settings
    otherwise = RetrieverSettings(dense=DenseSettings(dim=8, normalise=False), prompts=Prompts(query="", passage=""))
    pretrained = tmp_path / "pretrained"
    pretrained.mkdir()
    encoder = retriever.load(built).encoder
    save_checkpoint(encoder, pretrained, tokenizer=built, retriever=retriever.read_settings(built))

    assert inherited == RetrieverSettings(dense=DenseSettings(dim=8, normalise=True), prompts=own)
    assert retriever.load_for_training(built, otherwise).settings == otherwise
    assert retriever.read_settings(pretrained) == RetrieverSettings(
        dense=DenseSettings(dim=None, normalise=True), prompts=own
    )
    np.testing.assert_array_equal(similarities(pretrained), similarities(built))


@pytest.mark.parametrize("normalise", [False, True])
def test_a_checkpoint_of_this_project_starts_with_its_own_similarity(
    normalise: bool, store: Store, tmp_path: Path
) -> None:
    """Its modules.json names no similarity, for which the package's default is the cosine."""
    saved(tmp_path / "given", mode="mean", normalise=normalise, similarity_fn_name="cosine" if normalise else "dot")
    first = initialise(source(tmp_path / "given"), settings=backbone(tmp_path / "given")).path

    again = initialise(source(first), settings=backbone(first, seed=2)).path

    np.testing.assert_array_equal(similarities(again), similarities(first))
    assert read_stated_retriever(again) == StatedRetriever("mean", normalise, None)
    assert contradiction(RetrieverSettings(dense=DenseSettings(dim=None, normalise=normalise)), stated(first)) is None
    assert contradiction(RetrieverSettings(dense=DenseSettings(dim=None, normalise=not normalise)), stated(first))


def test_an_exported_retriever_with_a_projection_states_its_normalisation(store: Store, tmp_path: Path) -> None:
    saved(tmp_path / "given", **LAYOUTS["e5"])
    built = initialise(source(tmp_path / "given"), settings=backbone(tmp_path / "given")).path
    model = retriever.load_for_training(built, RetrieverSettings(dense=DenseSettings(dim=8)))
    (folder := tmp_path / "exported").mkdir()
    save_retriever(model, folder, tokenizer=built)
    add_files(folder, query_max_tokens=12, passage_max_tokens=20)

    again = initialise(source(folder), settings=backbone(folder)).path

    np.testing.assert_array_equal(similarities(again), similarities(folder))
    assert stated(folder) == RetrieverSettings(
        dense=DenseSettings(dim=None, normalise=True), prompts=Prompts(query="music: ", passage="stone: ")
    )


def stated(folder: Path) -> RetrieverSettings:
    stated_retriever = read_stated_retriever(folder)
    assert stated_retriever is not None
    return stated_retriever.settings


def test_a_stated_pooling_alone_leaves_the_rest_out_as_before(store: Store, tmp_path: Path) -> None:
    saved(tmp_path / "given", **LAYOUTS["e5"])

    built = initialise(source(tmp_path / "given"), settings=backbone(tmp_path / "given", pooling="mean")).path

    assert retriever.read_settings(built) == RetrieverSettings(dense=DenseSettings(dim=None))
    assert not (built / retriever.RETRIEVER_SETTINGS).exists()


def changed(folder: Path, file: str, value: Any) -> Path:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(value))
    return folder


def with_dense(folder: Path) -> Path:
    listed = json.loads((folder / "modules.json").read_text())
    return changed(folder, "modules.json", [*listed[:2], {"path": "2_Dense", "type": "a.Dense"}])


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another pooling": (None, {"pooling": "cls"}, r"states the pooling mean in 1_Pooling.*; expected mean, or null"),
    "pooling of the maximum": (
        lambda folder: changed(folder, "1_Pooling/config.json", {"pooling_mode": "max"}), {}, "expected cls or mean"
    ),
    "a further layer": (with_dense, {}, r"expected Transformer .*, found Transformer, Pooling, Dense"),
    "prompts outside the pooling": (
        lambda folder: changed(folder, "1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}), {},
        "leaves the prompt out",
    ),
    "another similarity": (
        lambda folder: changed(folder, "config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}), {},
        "cosine or dot, found euclidean",
    ),
    "no files": (lambda folder: (folder / "modules.json").unlink(), {}, r"no modules.json .*expected cls or mean"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_contradicts_is_refused(what: str, store: Store, tmp_path: Path) -> None:
    change, changes, message = REFUSED[what]
    saved(folder := tmp_path / "given", mode="mean", normalise=False, similarity_fn_name="cosine")
    if change is not None:
        change(folder)

    with pytest.raises(UserError, match=message) as error:
        initialise(source(folder), settings=backbone(folder, **changes))
    assert "\n" not in str(error.value)


ROUNDS: dict[str, tuple[dict[str, Any], str | None]] = {
    "nothing stated": ({"dense": {"dim": None}}, None),
    "the same": ({"dense": {"dim": 8, "normalise": True}, "prompts": {"query": "music: ", "passage": "stone: "}}, None),
    "inner products": (
        {"dense": {"dim": None, "normalise": False}}, "dense.normalise: .* length 1; expected null or true"
    ),
    "other prompts": (
        {"dense": {"dim": None}, "prompts": {"query": "", "passage": ""}}, "prompts: the backbone has 'music: ' and"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ROUNDS)
def test_a_round_that_contradicts_its_backbone_is_refused(what: str, tmp_path: Path) -> None:
    views, message = ROUNDS[what]
    saved(folder := tmp_path / "given", **LAYOUTS["e5"])
    training = type(TRAINING).model_validate(TRAINING.model_dump() | {"retriever": views})
    encoding = Encoding(query_max_tokens=12, passage_max_tokens=20)

    def check(**changes: Any) -> None:
        check_training("r1", training, encoding, backbone(folder, **changes), folder, starts_there=True)

    check(pooling="mean")
    if message is None:
        check()
    else:
        with pytest.raises(UserError, match=f"rounds: r1: train.retriever: {message}.* backbone.pooling mean"):
            check()
