"""Exported retrievers have the same vectors in sentence-transformers."""

from pathlib import Path

import pytest
import torch

from models.retrievers import load as loading
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever import Retriever, RetrieverSettings, save
from models.retrievers.views import dense
from tasks.retrieval.sentence_transformer_export import add_files
from tests.tiny import save_tokenizer, tiny_bert, tiny_tokenizer

TEXTS = ["river castle", "king stone, bread winter"]


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_a_projection_is_exported_with_its_bias(tmp_path: Path, bias: bool) -> None:
    package = pytest.importorskip("sentence_transformers")
    settings = RetrieverSettings(dense=dense.Settings(dim=6, bias=bias))
    retriever = Retriever(DenseEncoder(tiny_bert(), "cls"), settings, tiny_tokenizer())
    for parameter in retriever.own().values():
        parameter.add_(torch.randn_like(parameter))
    save(retriever, tmp_path)
    save_tokenizer(tmp_path)

    add_files(tmp_path, query_max_tokens=12, passage_max_tokens=20)

    ours = loading.load(tmp_path)
    expected = ours.retriever(ours.pad_batch(ours.encode(TEXTS, "passage", 20)), "passage").dense
    vectors = package.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-4)
