"""The call of a stage's body as JSON, so that another process can make it.

Classes and functions stand there by name; what is read back is checked as strictly as a recipe.
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
    """A body with what it is given, all but the folder that it fills.

    Artifacts below `root`, a store, are named by their place there: another host may have it elsewhere.
    """
    return {
        "body": _name(body),
        "inputs": [_input_as_json(each, root) for each in inputs],
        "settings": None if settings is None else _settings_as_json(settings),
    }


def call(written: Mapping[str, Any], *given: object, root: Path | None = None) -> None:
    """Make the call that `as_json` wrote, with what is given before its inputs: first the folder.

    `root` is where the store is that was named there.
    """
    body = _named(written["body"])
    keywords = {} if written["settings"] is None else {"settings": _settings_of(written["settings"])}
    getattr(body, "body", body)(*given, *(_input_of(each, root) for each in written["inputs"]), **keywords)


def below(path: Path, root: Path | None) -> str:
    """A path as it stands below a folder; as it is where it does not."""
    return str(path.relative_to(root) if root and path.is_relative_to(root) else path)


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _named(name: str) -> Any:
    module, _, place = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in place.split("."):
        found = getattr(found, part)
    return found


def _settings_as_json(settings: Settings) -> dict[str, Any]:
    """The values with the name of their class, and of what it is generic in."""
    made = type(settings).__pydantic_generic_metadata__
    kind, of = made["origin"] or type(settings), [_name(each) for each in made["args"]]
    return {"class": _name(kind), "of": of, "values": settings.model_dump(mode="json", by_alias=True)}


def _settings_of(value: Mapping[str, Any]) -> Settings:
    kind = _named(value["class"])
    if value["of"]:
        kind = kind[tuple(_named(each) for each in value["of"])]
    # These are dumped settings, in which JSON has lists for tuples and texts for paths: strict settings refuse both.
    settings: Settings = kind.model_validate(value["values"], strict=False)
    return settings


def _input_as_json(given: Any, root: Path | None) -> Any:
    if isinstance(given, Artifact):
        return {"stage": given.stage, "key": given.key, "path": below(given.path, root)}
    if isinstance(given, Source):
        return {"key": given.key, "path": str(given.path)}
    return given if given is None else [_input_as_json(each, root) for each in given]


def _input_of(value: Any, root: Path | None) -> Any:
    if isinstance(value, dict):
        path = Path(value["path"])
        if "stage" in value:
            return Artifact(value["stage"], value["key"], root / path if root else path)
        return Source(value["key"], path)
    return value if value is None else [_input_of(each, root) for each in value]
