"""Open a folder's model as the `Backbone` of its family, which its config.json names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from models.layers.backbone import Backbone
from models.layers.bert_config import CONFIG, BertConfig
from models.model_files import UnusableModel, read_json

FAMILIES = Path(__file__).parent / "families"


def families() -> list[str]:
    """Return the supported model types, as config.json names them."""
    return sorted(path.stem.replace("_", "-") for path in FAMILIES.glob("[!_]*.py"))


def family(folder: Path) -> type[Backbone]:
    """Return the family of a folder's model; UnusableModel for a model type without one."""
    path = folder / CONFIG
    model_type = str(read_json(path, "the configuration of an encoder").get("model_type"))
    if model_type.replace("_", "-") not in families():
        raise UnusableModel(f"{path}: expected model_type {', '.join(families())}, found {model_type}")
    family_class: type[Backbone] = import_module(f"models.families.{model_type.replace('-', '_')}").Family
    return family_class


def sizes(folder: Path) -> BertConfig:
    """Return the sizes of a folder's model without loading it; ValueError for a configuration that cannot be used."""
    return family(folder).sizes(folder)


def create(folder: Path, config: BertConfig | None = None, *, layers: Sequence[int] | None = None) -> Backbone:
    """Return a model like a folder's with random weights; `config` has other sizes than the folder's, if given."""
    model = family(folder)
    return model.create(config or model.sizes(folder), folder, layers)


def load(folder: Path, *, layers: Sequence[int] | None = None) -> Backbone:
    """Load a folder's model, or only the layers with the given indices, counted from 0."""
    return family(folder).load(folder, layers=layers)
