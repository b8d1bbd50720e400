"""Where a chain starts: weights, layers, random ones, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import CONFIG, BertConfig
from models.layers.unpadding import Packing
from models.model_files import WEIGHTS
from models.retrievers import towers
from models.retrievers.bi_encoder import load_pooling
from models.retrievers.retriever import HEADS_FILE, RETRIEVER_WEIGHTS
from models.retrievers.towers import load
from models.tokens import Tokenizer
from storage.artifact import Source, source_of
from storage.errors import UserError
from storage.store.store import Store
from tasks.pretraining.initialise import BackboneSettings, additional_files, initialise
from tests.tiny import PIECES, save_backbone, save_tokenizer

ALL = BackboneSettings(
    weights="tiny", start="weights", towers="siamese", layers=None, dropout=0.1, pooling="mean", seed=1
)


def source(folder: Path) -> Source:
    return source_of(folder, [file for file in folder.rglob("*") if file.is_file()])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (folder := tmp_path / "weights").mkdir()
    return save_backbone(folder, spread=0.2)


def test_the_weights_as_they_are(store: Store, weights: Path) -> None:
    built = initialise(source(weights), settings=ALL).path

    assert {name: value.tolist() for name, value in load_file(built / WEIGHTS).items()} == {
        name: value.tolist() for name, value in load_file(weights / WEIGHTS).items()
    }
    assert load_pooling(built) == "mean"
    assert Tokenizer.load(built).token_ids(["kings"]) == Tokenizer.load(weights).token_ids(["kings"])
    config = BertConfig.load(built)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert load(built).passage.bert.embeddings.dropout.p == 0.1


def test_some_layers(store: Store, weights: Path) -> None:
    built = initialise(source(weights), settings=ALL.model_copy(update={"layers": [1]})).path

    whole, part = BertForMaskedLM.load(weights), BertForMaskedLM.load(built)
    assert part.config.num_hidden_layers == 1
    ids = torch.tensor([[2, 20, 30, 3]])
    expected = whole.eval().bert.encoder.layer[1](whole.bert.embeddings(ids)[0], Packing(ids > 0))
    torch.testing.assert_close(part.eval().bert(ids, ids > 0)[0], expected)


@pytest.mark.parametrize("layers", [None, [0]])
def test_a_random_start_has_the_shape_and_the_vocabulary_alone(
    store: Store, weights: Path, layers: list[int] | None
) -> None:
    wanted = ALL.model_copy(update={"start": "random", "layers": layers})
    built = initialise(source(weights), settings=wanted).path
    other = initialise(source(weights), settings=wanted.model_copy(update={"seed": 2})).path

    config = BertConfig.load(built)
    assert config.num_hidden_layers == (1 if layers else 2)
    assert config.hidden_size == BertConfig.load(weights).hidden_size
    words, others = (load_file(tensor / WEIGHTS)["bert.embeddings.word_embeddings.weight"] for tensor in (built, other))
    assert words.std().item() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(words, others)
    assert (built / "vocab.txt").read_bytes() == (weights / "vocab.txt").read_bytes()


def test_a_head_that_the_weights_lack_starts_by_the_seed(store: Store, weights: Path) -> None:
    transformers.BertModel.from_pretrained(weights).save_pretrained(weights)
    name = "cls.predictions.transform.dense.weight"
    settings = [
        ALL.model_copy(update={"seed": seed, "pooling": pooling})
        for seed, pooling in ((1, "cls"), (1, "mean"), (2, "cls"))
    ]

    heads = [load_file(initialise(source(weights), settings=setting).path / WEIGHTS)[name] for setting in settings]

    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert heads[0].std().item() == pytest.approx(0.02, rel=0.1)


def test_the_same_start_twice_is_the_same_to_the_byte(store: Store, weights: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        initialise.body(folder, source(weights), settings=ALL.model_copy(update={"start": "random"}))

    files = [sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file()) for folder in folders]
    assert files[0] == files[1]
    assert all((folders[0] / file).read_bytes() == (folders[1] / file).read_bytes() for file in files[0])


def refused(folder: Path, settings: BackboneSettings = ALL) -> str:
    with pytest.raises(UserError) as error:
        initialise(source(folder), settings=settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_backbone_is_told_in_a_line(store: Store, weights: Path) -> None:
    assert "backbone: layers: expected some of 0 to 1, found [2]" in refused(
        weights, ALL.model_copy(update={"layers": [2]})
    )
    tokenizer = weights / "tokenizer.json"
    kept = tokenizer.read_bytes()
    tokenizer.unlink()
    assert "expected a tokenizer in tokenizer.json, found no such file" in refused(weights)
    tokenizer.write_bytes(kept)
    (weights / WEIGHTS).unlink()
    assert f"expected weights in {WEIGHTS}" in refused(weights)
    config = json.loads((weights / CONFIG).read_text())
    (weights / CONFIG).write_text(json.dumps({**config, "model_type": "longformer"}))
    assert "expected model_type bert, camembert, deberta-v2, distilbert" in refused(weights)


def test_a_tokenizer_of_another_model(store: Store, weights: Path) -> None:
    words = "bert.embeddings.word_embeddings.weight"
    tensors = load_file(weights / WEIGHTS)
    tensors[words], tensors["cls.predictions.bias"] = tensors[words][:50].clone(), torch.zeros(50)
    save_file(tensors, weights / WEIGHTS)
    config = json.loads((weights / CONFIG).read_text())
    (weights / CONFIG).write_text(json.dumps({**config, "vocab_size": 50}))
    save_tokenizer(weights)

    assert (
        f"expected a tokenizer of at most 50 tokens, as many as the model has embeddings, found {len(PIECES)}"
        in refused(weights)
    )


@pytest.mark.parametrize("kind", ["mixture", "mixture_shared_norm", "separate"])
def test_two_towers_start_alike_and_are_taken_up_again(store: Store, weights: Path, kind: str) -> None:
    built = initialise(source(weights), settings=ALL.model_copy(update={"towers": kind})).path

    encoder = load(built)
    assert towers.sharing(encoder) == kind
    ids = torch.tensor([[2, 20, 30, 3]])
    assert torch.equal(encoder.query.bert(ids, ids > 0), encoder.passage.bert(ids, ids > 0))
    assert Tokenizer.load(built / "query").token_ids(["kings"]) == Tokenizer.load(built).token_ids(["kings"])
    assert "Queries have their own encoder" in " ".join(additional_files(file.name for file in built.iterdir()))
    again = initialise(source(built), settings=ALL.model_copy(update={"towers": kind})).path
    assert towers.sharing(load(again)) == kind
    with pytest.raises(UserError, match=f"has towers that are {kind}; expected towers: {kind}"):
        initialise(source(built), settings=ALL)


def test_a_card_names_the_weights_of_views_only_where_there_are_some() -> None:
    with_weights, without = (
        " ".join(additional_files(["retriever.json", *files])) for files in ([RETRIEVER_WEIGHTS], [])
    )

    assert with_weights.endswith("the views of the retriever, and `retriever.safetensors` has their weights.")
    assert without == "`retriever.json` states the views of the retriever."


def test_heads_of_an_earlier_pretraining_come_along(store: Store, weights: Path) -> None:
    save_file({"decoder.weight": torch.ones(2)}, weights / HEADS_FILE)

    built = initialise(source(weights), settings=ALL).path
    fresh = initialise(source(weights), settings=ALL.model_copy(update={"start": "random"})).path

    assert load_file(built / HEADS_FILE)["decoder.weight"].tolist() == [1, 1]
    assert not (fresh / HEADS_FILE).exists()
