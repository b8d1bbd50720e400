"""Exported retrievers of every kind and family have the scores of this project in sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.layers.backbone import Backbone
from models.representation import Pooling
from models.retrievers import load as loading
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever import Retriever, save
from models.retrievers.retriever_settings import Prompts, RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.late import LateSettings
from models.retrievers.views.lexical import LexicalSettings
from storage.store.store import Store
from tasks.retrieval.encode import TextEncoder
from tasks.retrieval.sentence_transformer_export import Exported, add_files
from tests.tiny import LATE, LEXICAL, save_tokenizer, tiny_bert, tiny_tokenizer
from tests.tiny_families import ALIKE, FAMILIES, tiny_family

QUERIES = ["river castle", "king", "winter garden, stone. bread music planet ocean tree letter engine bridge"]
PASSAGES = ["river castle.", "king stone, bread winter", "music", "painter planet castles tree ocean music king " * 3]
LENGTHS = {"query_max_tokens": 12, "passage_max_tokens": 20}
PROMPTS = Prompts(query="king of: ", passage="stone, ")
COLBERT = LateSettings(**LATE | {"normalise": True, "query_masks": 12})
KINDS: dict[str, tuple[RetrieverSettings, str]] = {
    "dense": (RetrieverSettings(dense=DenseSettings(dim=None)), "SentenceTransformer"),
    "projected": (RetrieverSettings(dense=DenseSettings(dim=6)), "SentenceTransformer"),
    "with a bias": (RetrieverSettings(dense=DenseSettings(dim=6, bias=True)), "SentenceTransformer"),
    "normalised": (RetrieverSettings(dense=DenseSettings(dim=6, normalise=True)), "SentenceTransformer"),
    "prompts": (
        RetrieverSettings(dense=DenseSettings(dim=None, normalise=True), prompts=PROMPTS), "SentenceTransformer"
    ),
    "SPLADE": (RetrieverSettings(lexical=LexicalSettings(**LEXICAL), prompts=PROMPTS), "SparseEncoder"),
    "largest weights": (
        RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"top_passages": 9, "top_queries": 9})), "SparseEncoder"
    ),
    "ColBERT": (RetrieverSettings(late=COLBERT), "MultiVectorEncoder"),
    "late, few masks": (
        RetrieverSettings(late=LateSettings(**LATE | {"query_masks": 5, "bias": True}), prompts=PROMPTS),
        "MultiVectorEncoder",
    ),
    "late, words only": (
        RetrieverSettings(late=LateSettings(**LATE | {"use_cls": False, "use_sep": False})), "MultiVectorEncoder"
    ),
}  # fmt: skip
OF_EVERY_FAMILY = ("normalised", "SPLADE", "ColBERT")
CASES = [("bert", "siamese", kind) for kind in KINDS]
CASES += [("bert", "separate", kind) for kind in KINDS if KINDS[kind][1] != "MultiVectorEncoder"]
CASES += [(family, "siamese", kind) for family in (*FAMILIES, *ALIKE) for kind in OF_EVERY_FAMILY]
CASES.remove(("deberta-v2", "siamese", "ColBERT"))  # its [MASK]s are computed otherwise
# For `transformers` id 1 is padding in every MPNet. Here it is [UNK], which this kind's prompts have.
CASES.remove(("mpnet", "siamese", "SPLADE"))


def backbone(folder: Path, family: str) -> Backbone:
    if family == "bert":
        return tiny_bert()
    # RoBERTa's positions begin after [PAD], whose id is 0. In ModernBERT a [MASK] that is farther from all tokens than
    # its window sees nothing, and transformers gives it other states; 32 masks and the usual 128 tokens are not so far.
    fairseq = {"max_position_embeddings": 41}
    changes = {"roberta": fairseq, "xlm-roberta": fairseq, "modernbert": {"local_attention": 32}}
    (folder / family).mkdir()
    return tiny_family(folder / family, family, pad_token_id=0, **changes.get(family, {}))


def saved(folder: Path, model: Backbone, sharing: Any, settings: RetrieverSettings, pooling: Pooling = "mean") -> None:
    """A trained retriever's folder, with random weights; a query encoder of its own differs from the passages'."""
    encoder = towers.build_encoders(DenseEncoder(model, pooling), sharing)
    retriever = Retriever(encoder, settings, tiny_tokenizer())
    with torch.no_grad():
        for parameter in [*retriever.own().values(), *(encoder.query.parameters() if sharing == "separate" else ())]:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    folder.mkdir()
    save(retriever, folder)
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    for part in [folder, *([folder / towers.QUERY] if sharing == "separate" else [])]:
        save_tokenizer(part)
        configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", **special}
        (part / "tokenizer_config.json").write_text(json.dumps(configuration))


@torch.inference_mode()
def our_scores(folder: Path, queries: list[str] = QUERIES) -> np.ndarray[Any, Any]:
    opened = loading.load(folder)
    sides: list[tuple[list[str], Any, int]] = [(queries, "query", 12), (PASSAGES, "passage", 20)]
    encoded = [opened.retriever(opened.pad_batch(opened.encode(*side)), side[1]) for side in sides]
    scores = opened.retriever.scores(*encoded)  # type: ignore[union-attr, operator]
    (view,) = opened.retriever.views
    return scores[view].numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("family", "sharing", "kind"), CASES)
def test_the_package_has_our_scores(family: str, sharing: str, kind: str, tmp_path: Path) -> None:
    package: Any = pytest.importorskip("sentence_transformers")
    settings, name = KINDS[kind]
    saved(folder := tmp_path / "model", backbone(tmp_path, family), sharing, settings)
    before = our_scores(folder)

    exported = add_files(folder, **LENGTHS)

    assert exported == Exported(name, in_pylate=kind == "ColBERT")  # whose layout the package reads, too
    model = getattr(package, name)(str(folder), device="cpu", local_files_only=True)
    theirs = model.similarity(model.encode_query(QUERIES), model.encode_document(PASSAGES)).cpu().to_dense().numpy()
    np.testing.assert_allclose(theirs, before, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(our_scores(folder), before)
    assert np.ptp(before) > 0.01


REFUSED: dict[str, tuple[RetrieverSettings, str]] = {
    "two views": (
        RetrieverSettings(dense=DenseSettings(dim=None), lexical=LexicalSettings(**LEXICAL)),
        "adds the scores of dense and",
    ),
    "another head": (
        RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"head": "own"})),
        "vocabulary head but of own",
    ),
    "ReLU": (RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"activation": "relu"})), "the activation relu"),
    "no [CLS]": (RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"pool_specials": False})), "leaves out"),
    "other numbers": (
        RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"top_passages": 9})),
        "other numbers of weights",
    ),
    "exact matches": (RetrieverSettings(late=LateSettings(**LATE | {"exact_match": True})), "equal tokens only"),
    "long masks": (RetrieverSettings(late=LateSettings(**LATE | {"query_masks": 13})), "padded with .MASK. to 13"),
    "private layers": (RetrieverSettings(late=LateSettings(**LATE), shared_layers=1), "layers of its own"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_package_cannot_compute_does_not_open_there(what: str, tmp_path: Path) -> None:
    settings, reason = REFUSED[what]
    saved(folder := tmp_path / "model", tiny_bert(), "siamese", settings)

    exported = add_files(folder, **LENGTHS)

    assert exported.name is None
    assert reason in exported.reason or reason.replace(".MASK.", "[MASK]") in exported.reason
    assert not (folder / "modules.json").exists()
    assert loading.read_settings(folder) == settings


WINDOW = 4  # tokens to each side of one
MASKS = [("modernbert", WINDOW + 2, ""), ("modernbert", WINDOW + 3, "in this model above 6"),
         ("deberta-v2", 6, "in this family")]  # fmt: skip


@pytest.mark.parametrize(("family", "masks", "reason"), MASKS)
def test_masks_that_transformers_computes_otherwise_do_not_open_there(
    family: str, masks: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = pytest.importorskip("sentence_transformers")
    (start := tmp_path / "start").mkdir()
    changes = {"local_attention": 2 * WINDOW} if family == "modernbert" else {}
    model = tiny_family(start, family, pad_token_id=0, **changes)
    saved(
        folder := tmp_path / "model",
        model,
        "siamese",
        RetrieverSettings(late=LateSettings(**LATE | {"query_masks": masks})),
    )
    shutil.copytree(folder, opened := tmp_path / "opened")

    exported = add_files(folder, **LENGTHS)
    monkeypatch.setattr(type(model), "unattended_limit", classmethod(lambda cls, folder: None))
    add_files(opened, **LENGTHS)

    assert (exported.name is None) == (not (folder / "modules.json").exists()) == bool(reason)
    assert exported.reason.endswith(reason)
    theirs = package.MultiVectorEncoder(str(opened), device="cpu", local_files_only=True)
    scores = theirs.similarity(theirs.encode_query([""]), theirs.encode_document(PASSAGES)).numpy()
    assert np.allclose(scores, our_scores(folder, [""]), rtol=1e-4, atol=1e-4) == (not reason)


@pytest.mark.parametrize("normalise", [False, True])
def test_truncated_vectors_are_those_of_the_package(normalise: bool, store: Store, tmp_path: Path) -> None:
    package: Any = pytest.importorskip("sentence_transformers")
    settings = RetrieverSettings(dense=DenseSettings(dim=None, normalise=normalise))
    saved(folder := tmp_path / "model", tiny_bert(), "siamese", settings)
    encoder = TextEncoder(folder, truncate_dim=7)
    queries, passages = (encoder(texts, role, 20).dense for texts, role in ((QUERIES, "query"), (PASSAGES, "passage")))
    assert queries is not None
    assert passages is not None

    add_files(folder, query_max_tokens=20, passage_max_tokens=20)

    model = package.SentenceTransformer(str(folder), device="cpu", local_files_only=True, truncate_dim=7)
    theirs = model.similarity(model.encode_query(QUERIES), model.encode_document(PASSAGES)).numpy()
    np.testing.assert_allclose(queries @ passages.T, theirs, rtol=1e-4, atol=1e-4)
    assert queries.shape == (3, 7)
