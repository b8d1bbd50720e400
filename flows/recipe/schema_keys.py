"""The keys and sections that the schema of a recipe has at a location such as `queries.filter`."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from storage.settings import Settings


def known_keys(location: Sequence[int | str], shape: type[Settings]) -> list[str]:
    """Return the keys of the section at a location, or those of all sections that may be there."""
    return [name for section in _sections_at(location, shape) for name in _fields(section)]


def has_section(location: Sequence[int | str], shape: type[Settings]) -> bool:
    """Return whether the key at a location may have a section of settings as its value."""
    *outer, key = location
    annotations = [_fields(section)[key] for section in _sections_at(outer, shape) if key in _fields(section)]
    return any(True for annotation in annotations if get_origin(annotation) is not list for _ in _sections(annotation))


def stated_example(location: Sequence[int | str], shape: type[Settings]) -> Any:
    """Return the example that the schema states for the key at a location, or None where it states none."""
    *outer, key = location
    for section in _sections_at(outer, shape):
        field: FieldInfo | None = getattr(section, "model_fields", {}).get(key)
        if field is not None and field.examples:
            return field.examples[0]
    return None


def without_tags(location: Sequence[int | str], shape: type[Settings]) -> list[int | str]:
    """Return a location without the tags of unions, such as `top` in `rounds.0.mine.top.depth`.

    A tag is a value of a key of the section, such as `miner: top`, and no key itself.
    """
    kept: list[int | str] = []
    for part in location:
        fields = [_fields(section) for section in _sections_at(kept, shape)]
        annotations = [annotation for known in fields for annotation in known.values()]
        is_value = any(get_origin(annotation) is Literal and part in get_args(annotation) for annotation in annotations)
        if not is_value or any(part in known for known in fields):
            kept.append(part)
    return kept


def _sections_at(location: Sequence[int | str], shape: type[Settings]) -> list[type[Any]]:
    """Return the classes that a section at a location may have.

    Numbers of list items, and the names that pydantic gives the members of a union, are skipped.
    """
    sections: list[type[Any]] = [shape]
    for part in location:
        annotations = [_fields(section)[part] for section in sections if part in _fields(section)]
        sections = [section for annotation in annotations for section in _sections(annotation)] or sections
    return sections


def _sections(annotation: Any) -> Iterator[type[Any]]:
    """Yield the settings classes in an annotation such as `list[Round]` or `Training | None`."""
    if isinstance(annotation, type) and (issubclass(annotation, Settings) or dataclasses.is_dataclass(annotation)):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, list, Annotated):
        for inner in get_args(annotation):
            yield from _sections(inner)


def _fields(section: type[Any]) -> dict[Any, Any]:
    """Return the annotation of each key, as YAML spells it."""
    if issubclass(section, Settings):
        return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
    return {field.name: field.type for field in dataclasses.fields(section)}
