"""Arguments of the Python API that a notebook gives without a type checker: paths, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
        models: dict[str, Any] = {"start": model} | {parameter: folder}
        pretrieve.adapt(collection, out=tmp_path / "out", store=tmp_path / "store", progress=False, **models)

    with pytest.raises(UserError, match="expected documents with a text, found none"):
        adapt(model)
    with pytest.raises(UserError, match="none: no folder on this machine"):
        adapt(tmp_path / "none")


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("collection", ["a", "b"], r"collection: expected a path as a text or a Path, found \['a', 'b'\]"),
        ("collection", "", "collection: expected a path as a text or a Path, found ''"),
        ("out", None, "out: expected a path as a text or a Path, found None"),
        ("start", 5, "start: expected a model's name or folder as a text or a Path, found 5"),
        ("generator", ["a"], r"generator: expected a model's name or folder as a text or a Path, found \['a'\]"),
        ("teacher", 5, "teacher: expected a model's name or folder as a text or a Path, found 5"),
        ("judgements", ["a"], r"judgements: expected a path as a text or a Path, found \['a'\]"),
        ("hours", "1", "hours: expected a number, found '1'"),
        ("hours", None, "hours: expected a number, found None"),
    ],
)
def test_an_adaptation_names_the_argument_of_a_wrong_type(
    parameter: str, value: Any, message: str, collection: Path, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"collection": collection, "out": tmp_path / "out"} | {parameter: value}

    with pytest.raises(UserError, match=f"^{message}$"):
        pretrieve.adapt(**arguments, store=tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()


def test_hours_of_numpy_are_a_number(collection: Path, tmp_path: Path) -> None:
    hours: Any = np.float32(1)

    with pytest.raises(UserError, match="expected documents with a text, found none"):
        pretrieve.adapt(collection, hours=hours, out=tmp_path / "out", store=tmp_path / "store", progress=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda of: of.search(None), "question: expected one question as a text, found None"),
        (lambda of: of.search(["a", "b"]), r"question: expected one question as a text, found \['a', 'b'\]"),
        (lambda of: of.search("x", top_k="2"), "top_k: expected a number of passages, found '2'"),
        (lambda of: of.encode_queries(5), "texts: expected a list of texts, found 5"),
        (lambda of: of.encode_passages(text for text in "ab"), "texts: expected a list of texts, found <generator .*"),
    ],
)
def test_a_retriever_names_the_argument_of_a_wrong_type(
    call: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    save_backbone(tmp_path / "model", pooling="mean")
    retriever = pretrieve.load(tmp_path / "model", store=tmp_path / "store")

    with pytest.raises(UserError, match=f"^{message}$"):
        call(retriever)


def test_a_recipe_and_a_version_name_the_argument_of_a_wrong_type(tmp_path: Path) -> None:
    untyped: Any = pretrieve

    with pytest.raises(UserError, match=r"^seed: expected a value of a recipe, found <object object at "):
        untyped.recipe("quickstart").replace(seed=object())
    assert untyped.recipe("quickstart").replace(seed=np.int64(3)).settings["seed"] == 3
    with pytest.raises(UserError, match=r"^set: expected a dictionary such as .*, found \['seed=1'\]$"):
        untyped.reproduce("quickstart", set=["seed=1"], store=tmp_path / "store")
    with pytest.raises(UserError, match=r"^set: expected the name of a setting as a text, found 1$"):
        untyped.reproduce("quickstart", set={1: 2}, store=tmp_path / "store")
    with pytest.raises(UserError, match=r"^version: expected a text such as 'small/beir@2', found 3$"):
        untyped.queries(3, store=tmp_path / "store")
