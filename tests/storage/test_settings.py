"""No settings of the project take a number that is none, whatever section of a recipe they belong to."""

import dataclasses
import importlib
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from storage.settings import Settings

PROJECT = Path(__file__).resolve().parents[2]
FINITE = "finite_number"


def classes() -> list[type[Any]]:
    """Every settings class: pydantic models, and the dataclasses of `models` that recipes are made of."""
    names = [
        ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("flows", "models", "storage", "tasks")
        for path in sorted((PROJECT / folder).rglob("*.py"))
    ]
    for name in names:
        importlib.import_module(name)
    sections = [
        value
        for name in names
        for value in vars(sys.modules[name]).values()
        if isinstance(value, type) and value.__module__ == name and dataclasses.is_dataclass(value)
        if hasattr(value, "__pydantic_config__")
    ]
    return [*below(Settings), *sections]


def below(kind: type[Settings]) -> Iterator[type[Settings]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from below(subclass)


def numbers() -> Iterator[tuple[type[Any], str, Callable[[float], Any]]]:
    """Every field that holds floating-point numbers, and what puts one where the field expects it."""
    for kind in classes():
        for name, annotation in get_type_hints(kind, include_extras=True).items():
            if put := holder(annotation):
                yield kind, name, put


def holder(annotation: Any) -> Callable[[float], Any] | None:
    """What makes a value of an annotation such as `list[float] | None` of a number; None where it holds none."""
    if annotation is float:
        return lambda number: number
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin in (Union, types.UnionType):
        return next(filter(None, map(holder, inner)), None)
    if origin is list and (put := holder(inner[0])):
        return lambda number: [number, number]
    if origin is dict and (put := holder(inner[1])):
        return lambda number: {"nDCG@10": put(number)}
    return None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_setting_is_infinite_or_not_a_number(value: float) -> None:
    accepted, tried = [], 0
    for kind, name, put in numbers():
        tried += 1
        with pytest.raises(ValidationError) as error:  # of an unknown key, at least
            TypeAdapter(kind).validate_python({name: put(value), "no such key": 1})
        if FINITE not in [problem["type"] for problem in error.value.errors() if problem["loc"][0] == name]:
            accepted.append(f"{kind.__module__}.{kind.__qualname__}.{name}")
    assert tried > 60
    assert not accepted
