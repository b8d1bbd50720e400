"""The configuration files of a folder in the layout of sentence-transformers (Reimers and Gurevych 2019).

`modules.json` lists the modules, `sentence_bert_config.json` has the maximum length, and
`config_sentence_transformers.json` has the prompts of queries and documents, and how vectors are compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.model_files import UnusableModel, read_json
from models.representation import Role

MODULES, CONFIG = "modules.json", "config_sentence_transformers.json"
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names of the file with the maximum length, in all releases of sentence-transformers."""
BARE_ENCODER: list[dict[str, Any]] = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": None}]
PROMPT_NAMES: Mapping[Role, Sequence[str]] = {"query": ("query",), "passage": ("document", "passage", "corpus")}
"""The names of a role's prompt; the first prompt that is not empty is used."""


def is_sentence_transformer(folder: Path) -> bool:
    """Return whether a folder has a file of sentence-transformers, or an encoder other than BERT."""
    if any((folder / name).is_file() for name in (CONFIG, *TRANSFORMER_CONFIGS)):
        return True
    modules = list_modules(folder)
    if len(modules) > len(BARE_ENCODER):
        return True
    return bool(read_optional_json(folder / modules[0]["path"] / "config.json").get("model_type", "bert") != "bert")


def list_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json, each with a type and a path within the folder."""
    path = folder / MODULES
    if not path.is_file():
        return BARE_ENCODER
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableModel(f"{path}: expected a list of modules, found none that can be read ({error})") from None
    if not isinstance(modules, list) or not all(map(_is_module, modules)):
        raise UnusableModel(
            f"{path}: expected a list of modules, each with a type and a path within the model's folder"
        )
    return modules or BARE_ENCODER


def _is_module(entry: Any) -> bool:
    """Return whether an entry of modules.json has a type and a path that stays within the model's folder."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("type", "path")):
        return False
    return not Path(entry["path"]).is_absolute() and ".." not in Path(entry["path"]).parts


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty without the file."""
    return read_json(path, "settings of sentence-transformers") if path.is_file() else {}


def prompts(folder: Path) -> dict[Role, str]:
    """Return the prompt of each role, which is put before a text."""
    stated = read_optional_json(folder / CONFIG).get("prompts") or {}

    def prompt(role: Role) -> str:
        return next((str(stated[name]) for name in PROMPT_NAMES[role] if stated.get(name)), "")

    return {"query": prompt("query"), "passage": prompt("passage")}


def compared_by_cosine(folder: Path) -> bool:
    """Return whether vectors are compared by cosine, the default of a folder with modules.json."""
    if not (folder / MODULES).is_file():
        return False
    similarity = read_optional_json(folder / CONFIG).get("similarity_fn_name") or "cosine"
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"{folder / CONFIG}: expected vectors compared by cosine or dot, found {similarity}")
    return bool(similarity == "cosine")


def transformer_config(home: Path) -> Mapping[str, Any]:
    """Return the content of the file with the maximum length; empty without the file."""
    return next((read_optional_json(home / name) for name in TRANSFORMER_CONFIGS if (home / name).is_file()), {})
