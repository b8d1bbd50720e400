"""Models in the layout of sentence-transformers give the vectors that sentence-transformers gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers
from transformers import DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel

from models.retrievers import load, retriever
from models.retrievers.bi_encoder import save_pooling
from tests.tiny import PIECES, fast_tokenizer, save_backbone, save_t5, save_tokenizer, tiny_bert, tiny_retriever

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TEXTS = ["river mountain castle", "king", "The castles, and the painters of a planet. " * 4, "Winter Garden"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def encoder(folder: Path, kind: str) -> Path:
    """A tiny encoder of `transformers` with its tokenizer."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(3)
    shape = {"vocab_size": len(PIECES), "max_position_embeddings": 64}
    if kind == "t5":
        return save_t5(folder, PIECES)
    if kind == "bert":
        return save_backbone(folder, spread=0.2)
    if kind == "distilbert":
        built: Any = DistilBertModel(DistilBertConfig(**shape, dim=32, n_layers=2, n_heads=4, hidden_dim=48))
    else:  # its positions begin after the padding's number
        built = RobertaModel(RobertaConfig(**shape, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                          intermediate_size=48, pad_token_id=0))  # fmt: skip
    built.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def saved(folder: Path, kind: str, *parts: str, max_tokens: int | None = None, **options: Any) -> SentenceTransformer:
    """Such an encoder with what follows it, as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(4)
    first = modules.Transformer(str(encoder(folder / kind, kind)), max_seq_length=max_tokens)
    size = first.get_embedding_dimension()
    pooling = modules.Pooling(size, options.pop("mode", "mean"), include_prompt=options.pop("include_prompt", True))
    then: dict[str, Any] = {
        "dense": lambda: modules.Dense(pooling.get_embedding_dimension(), 24),
        "gelu": lambda: modules.Dense(24, 20, bias=False, activation_function=torch.nn.GELU()),
        "normalise": modules.Normalize, "dropout": lambda: modules.Dropout(0.5),
    }  # fmt: skip
    built = SentenceTransformer(modules=[first, pooling, *(then[part]() for part in parts)], device="cpu", **options)
    built.save(str(folder / "saved"), create_model_card=False)
    return built


def vectors(folder: Path, texts: list[str], role: Any, max_tokens: int = 64) -> np.ndarray:
    """Ours, of the texts in one batch."""
    result = load.load(folder)
    with torch.inference_mode():
        batch = result.pad_batch(result.encode(texts, role, max_tokens))
        dense = result.retriever(batch, role).dense
    assert dense is not None
    return dense.numpy()


def assert_same(folder: Path, oracle: SentenceTransformer, *, cosine: bool = True) -> None:
    queries, passages = oracle.encode_query(TEXTS), oracle.encode_document(TEXTS)
    ours = [vectors(folder, TEXTS, "query"), vectors(folder, TEXTS, "passage")]
    for mine, theirs in zip(ours, [queries, passages], strict=True):
        lengths = np.linalg.norm(theirs, axis=1, keepdims=True) if cosine else 1.0
        np.testing.assert_allclose(mine, theirs / lengths, atol=1e-5)
    np.testing.assert_allclose(ours[0] @ ours[1].T, oracle.similarity(queries, passages).numpy(), atol=1e-4)


@pytest.mark.parametrize("mode", [*MODES, ("cls", "mean")])
def test_every_pooling_is_theirs(tmp_path: Path, mode: Any) -> None:
    assert_same(tmp_path / "saved", saved(tmp_path, "bert", mode=mode))


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "t5"])
def test_every_encoder_is_theirs(tmp_path: Path, kind: str) -> None:
    assert_same(tmp_path / "saved", saved(tmp_path, kind, max_tokens=20))
    assert load.max_tokens(tmp_path / "saved") == 20


def test_what_follows_the_pooling_is_theirs(tmp_path: Path) -> None:
    oracle = saved(tmp_path, "bert", "dense", "gelu", "dropout", "normalise")

    assert_same(tmp_path / "saved", oracle)
    assert vectors(tmp_path / "saved", TEXTS, "query").shape == (4, 20)


@pytest.mark.parametrize("mode", MODES)
def test_prompts_are_theirs_also_where_the_pooling_leaves_them_out(tmp_path: Path, mode: str) -> None:
    prompts = {"query": "king of the ", "document": "stone: "}
    oracle = saved(tmp_path, "bert", mode=mode, prompts=prompts, include_prompt=False)

    assert_same(tmp_path / "saved", oracle)
    queries, passages = (vectors(tmp_path / "saved", TEXTS, role) for role in ("query", "passage"))
    assert not np.allclose(queries, passages)


def test_inner_products_stay_where_the_model_says_so(tmp_path: Path) -> None:
    oracle = saved(tmp_path, "bert", similarity_fn_name="dot", mode="cls")

    assert_same(tmp_path / "saved", oracle, cosine=False)


def test_lower_case_is_theirs(tmp_path: Path) -> None:
    """A tokenizer that keeps capitals reads small ones where the model says so."""
    saved(tmp_path, "bert")
    folder = tmp_path / "saved"
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": true}')
    kept = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kept.normalizer = normalizers.BertNormalizer(lowercase=False)
    kept.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 64}'
    )

    from sentence_transformers import SentenceTransformer

    assert_same(folder, SentenceTransformer(str(folder), device="cpu"))
    np.testing.assert_array_equal(vectors(folder, ["WINTER"], "query"), vectors(folder, ["winter"], "query"))
    (folder / "sentence_bert_config.json").write_text("{}")
    assert not np.allclose(vectors(folder, ["WINTER"], "query"), vectors(folder, ["winter"], "query"))


def test_texts_are_cut_where_the_shorter_limit_says(tmp_path: Path) -> None:
    oracle = saved(tmp_path, "bert", max_tokens=12)
    long, folder = ["river " * 40], tmp_path / "saved"

    np.testing.assert_allclose(vectors(folder, long, "query"), vectors(folder, ["river " * 10], "query"), atol=1e-6)
    oracle.max_seq_length = 7
    theirs = oracle.encode_query(long, normalize_embeddings=True)
    np.testing.assert_allclose(vectors(folder, long, "query", max_tokens=7), theirs, atol=1e-5)


def test_the_layout_of_old_releases_opens(tmp_path: Path) -> None:
    """The encoder in a folder of its own, names by module, poolings as booleans."""
    oracle, folder = saved(tmp_path, "bert", mode="max"), tmp_path / "saved"
    (folder / "0_Transformer").mkdir()
    for file in [path for path in folder.iterdir() if path.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(folder / "0_Transformer" / file.name)
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]))  # fmt: skip
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 32, "pooling_mode_cls_token": false, "pooling_mode_max_tokens": true}'
    )

    assert_same(folder, oracle)


def test_a_bare_encoder_is_its_first_tokens_state(tmp_path: Path) -> None:
    encoder(tmp_path, "distilbert")
    model = DistilBertModel.from_pretrained(tmp_path)
    ids = fast_tokenizer().encode(TEXTS[0]).ids

    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).last_hidden_state[:, 0]
    np.testing.assert_allclose(vectors(tmp_path, TEXTS, "query")[:1], theirs.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["dpr", "mixture"])
def test_our_own_checkpoints_are_not_taken_for_theirs(tmp_path: Path, kind: str) -> None:
    retriever.save(tiny_retriever(kind), tmp_path)
    save_tokenizer(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text("{}")  # as some tools put it beside

    assert not load.is_foreign(tmp_path)
    assert load.read_settings(tmp_path) == retriever.read_settings(tmp_path)
    assert load.max_tokens(tmp_path) == 64


def test_a_plain_bert_is_ours(tmp_path: Path) -> None:
    tiny_bert().save(tmp_path)
    save_tokenizer(tmp_path)
    assert not load.is_foreign(tmp_path)

    save_pooling(tmp_path, "mean", 32)
    assert not load.is_foreign(tmp_path)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", [{"path": "", "type": "a.Transformer"}, {"path": "x", "type": "b.Router"}], "found .*Router"),
        ("modules.json", [{"path": "", "type": "a.Transformer"}, {"path": "", "type": "a.WordWeights"}], "WordWeights"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "manhattan"}, "cosine or dot, found manhattan"),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "1_Pooling/config.json: .*'attention'"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "expected a map of the pooled vector"),
        ("2_Dense/model.safetensors", None, "save the model as safetensors"),
        ("model.safetensors", None, "save the model as safetensors"),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path: Path, file: str, value: Any, message: str) -> None:
    saved(tmp_path, "bert", "dense")
    if value is None:
        (tmp_path / "saved" / file).unlink()
    else:
        (tmp_path / "saved" / file).write_text(json.dumps(value))

    with pytest.raises(ValueError, match=message):
        load.load(tmp_path / "saved")


@pytest.mark.parametrize("read", [load.load, load.max_tokens])
def test_without_the_package_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    saved(tmp_path, "bert")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)

    with pytest.raises(ValueError, match=r"pip install 'pretrieve\[sentence-transformers\]'") as error:
        read(tmp_path / "saved")
    assert "\n" not in str(error.value)
