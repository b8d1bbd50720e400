"""The call of a stage's body as JSON, so that another process can make it.

Classes and functions are named by module and name. Nothing is pickled: unpickling could run any code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact, Source
from storage.settings import Settings


def as_json(
    body: Callable[..., None], inputs: Sequence[Any], settings: Settings | None, root: Path | None = None
) -> dict[str, Any]:
    """Return a body with its inputs and settings as JSON; the folder that it fills is not part of it.

    Artifacts below `root`, a store, are named by their path in it: another host may have the store elsewhere.
    """
    return {
        "body": _qualified_name(body),
        "inputs": [_input_as_json(value, root) for value in inputs],
        "settings": None if settings is None else _settings_as_json(settings),
    }


def call(request: Mapping[str, Any], *first: object, root: Path | None = None) -> None:
    """Make the call that `as_json` describes; `first` are the arguments before its inputs.

    `root` is where this host has the store.
    """
    body = _imported(request["body"])
    keywords = {} if request["settings"] is None else {"settings": _settings_of(request["settings"])}
    getattr(body, "body", body)(*first, *(_input_of(value, root) for value in request["inputs"]), **keywords)


def below(path: Path, root: Path | None) -> str:
    """Return a path relative to `root`, or unchanged where it is not below it."""
    return str(path.relative_to(root) if root and path.is_relative_to(root) else path)


def _qualified_name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    thing: Any = importlib.import_module(module)
    for attribute in path.split("."):
        thing = getattr(thing, attribute)
    return thing


def _settings_as_json(settings: Settings) -> dict[str, Any]:
    """Return the values, with the name of their class and of the classes that it is generic in."""
    generic = type(settings).__pydantic_generic_metadata__
    kind, parameters = generic["origin"] or type(settings), [_qualified_name(kind) for kind in generic["args"]]
    return {
        "class": _qualified_name(kind), "of": parameters, "values": settings.model_dump(mode="json", by_alias=True)
    }  # fmt: skip


def _settings_of(value: Mapping[str, Any]) -> Settings:
    kind = _imported(value["class"])
    if value["of"]:
        kind = kind[tuple(_imported(name) for name in value["of"])]
    # Not strict: JSON has lists for tuples and text for paths. The values come from settings that were checked.
    settings: Settings = kind.model_validate(value["values"], strict=False)
    return settings


def _input_as_json(value: Any, root: Path | None) -> Any:
    if isinstance(value, Artifact):
        return {"stage": value.stage, "key": value.key, "path": below(value.path, root)}
    if isinstance(value, Source):
        return {"key": value.key, "path": str(value.path)}
    return value if value is None else [_input_as_json(member, root) for member in value]


def _input_of(value: Any, root: Path | None) -> Any:
    if isinstance(value, dict):
        path = Path(value["path"])
        if "stage" in value:
            return Artifact(value["stage"], value["key"], root / path if root else path)
        return Source(value["key"], path)
    return value if value is None else [_input_of(member, root) for member in value]
