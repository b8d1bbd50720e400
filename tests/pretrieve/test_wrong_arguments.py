"""Arguments of the Python API that a notebook gives without a type checker: paths, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import pretrieve
from storage.errors import UserError
from tests.tiny import save_backbone


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A collection whose only document is empty, which an adaptation refuses after it has read the models."""
    path = tmp_path / "texts.jsonl"
    path.write_text('{"id": "1", "text": ""}\n')
    return path


@pytest.mark.parametrize("parameter", ["start", "generator", "teacher"])
def test_a_model_of_an_adaptation_is_named_by_a_path(parameter: str, collection: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_backbone(model, pooling="mean")

    def adapt(folder: Path) -> None:
        models = {"start": model} | {parameter: folder}
        pretrieve.adapt(collection, out=tmp_path / "out", store=tmp_path / "store", progress=False, **models)

    with pytest.raises(UserError, match="expected documents with a text, found none"):
        adapt(model)
    with pytest.raises(UserError, match="none: no folder on this machine"):
        adapt(tmp_path / "none")
