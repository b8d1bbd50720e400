"""Describe a recipe's error in one line: the key's full name, what was expected, and an example."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from flows.recipe.schema_keys import known_keys, stated_example, without_tags
from flows.recipe.shipped import SHIPPED
from storage.errors import quoted, suggestion
from storage.formats.yaml_files import read_yaml
from storage.settings import Settings

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of pydantic models, and of dataclasses
EXAMPLES = SHIPPED / "quickstart.yaml"
LONGEST_EXAMPLE = 120  # characters
SECTION = re.compile(r"a (valid )?dictionary or .*")  # what pydantic writes of a value that replaces a section
MEMBER = re.compile(r".*\[.*\]|str|int|float|bool")  # the member of a union in a location, by its type or tag
SHOULD_BE = "Input should be "
INNER_KEY = re.compile(r"([a-z_]+(?:\.[a-z_]+)*): ")  # how a message about a key of the section itself begins


def in_one_line(error: ValidationError, shape: type[Settings]) -> str:
    """Return the first problem of a recipe; an unknown key comes first, since a typo explains a missing key."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] not in UNKNOWN)
    first = problems[0]
    location = _location(first, shape)
    if first["type"] in UNKNOWN:
        message = f"unknown key{hint(str(location[-1]), known_keys(location[:-1], shape))}"
    elif first["type"] == "missing":
        message = f"this key is missing{_example(location, shape)}"
    else:
        alternatives = [problem for problem in problems if _location(problem, shape) == location]
        message = _expected([problem["msg"] for problem in alternatives])
        problems = [first, *(problem for problem in problems if problem not in alternatives)]
        value = first["input"]
        if location and (inner := INNER_KEY.match(message)):
            location += inner[1].split(".")
            message = message[inner.end() :]
        message += "" if isinstance(value, (dict, list, Settings)) else f", found {quoted(value)}"
        if isinstance(value, str) and first["type"] == "float_type":
            message += " (YAML reads 1e-4 as text: write 1.0e-4)"
        message += _example(location, shape, _first_choice(first))
    message = f"{_name(location)}: {message}" if location else message
    return message + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _location(problem: Any, shape: type[Settings]) -> list[int | str]:
    """Return the key of a problem, without the members of unions that pydantic puts into its location."""
    parts = [part for part in problem["loc"] if isinstance(part, int) or not MEMBER.fullmatch(part)]
    return without_tags(parts, shape)


def _expected(messages: Sequence[str]) -> str:
    """Return what was expected of a value, which may be one of several kinds, as one message."""
    first, *others = (message.removeprefix("Value error, ") for message in messages)
    kinds = [message.removeprefix(SHOULD_BE) for message in others if message.startswith(SHOULD_BE)]
    return SECTION.sub("a section of keys", " or ".join([first, *kinds]))


def hint(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the known name that resembles it, or all known names."""
    return f"; {suggestion(name, sorted(set(known)), cutoff=0.5)}" if known else ""


def _name(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location))


def _first_choice(problem: Any) -> Any:
    """Return the first value of a key that has a fixed set of values; None for another problem."""
    if problem["type"] != "literal_error":
        return None
    return yaml.safe_load(re.split(r", | or ", problem["ctx"]["expected"])[0])


def _example(location: Sequence[int | str], shape: type[Settings], choice: Any = None) -> str:
    """Return the end of a message: a valid value of the key or else of the section around it, where one is known.

    `choice` is a valid value of the key, for a key that neither its description nor the quickstart gives one.
    """
    for length in range(len(location), 0, -1):
        key = location[:length]
        value = stated_example(key, shape)
        value = _in_quickstart(key) if value is None else value
        value = choice if value is None and length == len(location) else value
        text = "" if value is None else yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
        text = text.removesuffix("\n...\n").strip()
        if text and len(text) <= LONGEST_EXAMPLE:
            return f"; for example {_name(key)}: {text}"
    return ""


def _in_quickstart(location: Sequence[int | str]) -> Any:
    """Return the quickstart's value at a location, or None where it has none."""
    value: Any = read_yaml(EXAMPLES)
    for part in location:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value
