"""Recipes and `--set` of any content are read, or refused in one line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from flows.recipe.load import load_recipe
from flows.recipe.schema import as_yaml
from flows.recipe.shipped import find_recipe
from tests.fuzz.odd import SECONDS, check, edited, fuzz, odd_texts, odd_values, places_of
from tests.in_process import ended_by

NAMES = ("quickstart", "small/beir", "small/retrievers", "small/came", "small/dup_mae", "small/cpdae")
TEXTS = {name: find_recipe(name).read_bytes() for name in NAMES}
VALUES = {name: yaml.safe_load(text) for name, text in TEXTS.items()}


def read(text: bytes, *changes: str) -> None:
    """Read a recipe of this text as every command does."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "recipe.yaml").write_bytes(text)
        check(ended_by(lambda: as_yaml(load_recipe(str(file), changes)[0]), seconds=SECONDS))


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A small recipe as JSON, which is YAML, with a few values replaced, dropped, added or moved."""
    value = json.loads(json.dumps(VALUES[draw(st.sampled_from(NAMES))]))
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from([keys for keys in places_of(value) if keys]))
        inner: Any = value
        for step in path:
            inner = inner[step]
        what = draw(st.sampled_from(["replace", "drop", "add", "move"]))
        if what == "drop" or (what == "add" and isinstance(inner, list)):
            del inner[key]
        elif what == "add":
            inner[draw(odd_texts)] = draw(odd_values)
        elif what == "move":
            *other, last = draw(st.sampled_from([keys for keys in places_of(value) if keys]))
            there: Any = value
            for step in other:
                there = there[step]
            inner[key] = json.loads(json.dumps(there[last]))
        else:
            inner[key] = draw(odd_values)
    return json.dumps(value).encode()


@given(changed())
@fuzz(50)
def test_a_recipe_with_other_values(text: bytes) -> None:
    read(text)


@given(st.sampled_from(NAMES).flatmap(lambda name: edited(TEXTS[name])))
@fuzz(50)
def test_a_recipe_with_other_lines(text: bytes) -> None:
    read(text)


@given(st.binary(max_size=60) | odd_texts.map(lambda odd: odd.encode("utf-8", "surrogatepass")))
@fuzz(50)
@example(b"%YAML 1.2345678901234567890\n---\na")
def test_a_recipe_of_any_bytes(text: bytes) -> None:
    read(text)


@st.composite
def settings_of_places(draw: st.DrawFn) -> str:
    """A `--set` of a value of the quickstart, or of none."""
    keys = draw(st.sampled_from([keys for keys in places_of(VALUES["quickstart"]) if keys]))
    parts = [str(key) for key in keys]
    if draw(st.booleans()):
        parts[draw(st.integers(0, len(parts) - 1))] = draw(odd_texts)
    value = draw(odd_texts | odd_values.map(json.dumps))
    return f"{'.'.join(parts)}={value}"


@given(settings_of_places() | odd_texts)
@fuzz(50)
def test_any_change(change: str) -> None:
    read(TEXTS["quickstart"], change)
